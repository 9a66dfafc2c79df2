"""Drafting switched off where it does not pay, probed, and switched on again."""

import pytest
import torch
from table_models import TableDrafter, TableTarget

from dspark_ext.engine import DSparkEngine, SamplingParams, SpeculativeConfig
from dspark_ext.engine.switch import AcceptanceSwitch
from dspark_ext.verify import CostTable

EYE = torch.where(torch.eye(3) > 0, 9.0, -9.0).float()  # a token repeats itself
SHIFT = EYE.roll(1, 0)  # the drafter says another one


def feed(switch, accepted, steps, verified=4, requests=2):
    """Run `steps` steps; returns which of them drafted."""
    drafted = []
    for _ in range(steps):
        on = switch.should_draft(requests, 0)
        counts = (verified * requests, accepted * requests) if on else (0, 0)
        switch.update(requests, on, *counts, 0)
        drafted.append(on)
    return drafted


def test_it_waits_for_a_window_then_probes():
    switch = AcceptanceSwitch(min_acceptance=0.5, window=8, probe_interval=3)
    assert feed(switch, 1, 5) == [True] * 4 + [False]  # 8 blocks are 4 steps of 2
    assert feed(switch, 1, 8) == [False, False, True] + [False] * 3 + [True, False]


def test_it_comes_back_after_good_probes():
    switch = AcceptanceSwitch(min_acceptance=0.5, window=8, probe_interval=3)
    feed(switch, 0, 5)
    assert not switch.on
    assert feed(switch, 4, 3) == [False, False, True] and switch.on
    assert all(feed(switch, 4, 20))


def test_a_rate_at_the_bound_is_enough():
    switch = AcceptanceSwitch(min_acceptance=0.5, window=4, probe_interval=3)
    assert all(feed(switch, 2, 10))


def test_old_blocks_are_forgotten():
    switch = AcceptanceSwitch(min_acceptance=0.5, window=8, probe_interval=3)
    feed(switch, 4, 50)
    drafted = feed(switch, 0, 10)
    assert drafted.index(False) == 3  # 2 of the 8 blocks are good ones still: 8 of 32


def test_without_verified_drafts_nothing_is_decided():
    switch = AcceptanceSwitch(min_acceptance=0.9, window=2, probe_interval=1)
    assert all(feed(switch, 0, 20, verified=0))


def make(**config):
    target, drafter = TableTarget(EYE, 2, 400), TableDrafter(SHIFT, torch.ones(3), 3, 2, 400)
    return DSparkEngine(target, drafter, SpeculativeConfig(**config))


GREEDY = SamplingParams(temperature=0.0, max_new_tokens=200)


def test_an_engine_decodes_plainly_while_drafts_are_refused():
    engine = make(min_acceptance=0.3, acceptance_window=16, probe_interval=20)
    generation = engine.generate([[0], [1]], GREEDY)
    assert [output.token_ids for output in generation.outputs] == [[0] * 200, [1] * 200]
    stats = generation.stats
    assert stats.steps == 200 and 180 <= stats.plain_steps <= 195
    assert engine.drafter.calls == stats.steps - stats.plain_steps
    engine.drafter.logits = EYE  # the drafter has learnt it
    again = engine.generate([[0], [1]], GREEDY)
    assert engine.switch.on
    assert again.stats.steps < 100
    assert [output.token_ids for output in again.outputs] == [[0] * 200, [1] * 200]


def test_the_gate_weighs_time():
    table = CostTable([1, 8], [1.0, 2.0], request_rows=[1, 2], request_seconds=[1.0, 1.0])
    engine = make(draft_gate=True, cost_table=table)
    generation = engine.generate([[0], [1]], GREEDY)
    assert generation.stats.plain_steps > 100
    assert generation.outputs[1].token_ids == [1] * 200


def test_a_switched_off_step_costs_no_drafts_and_keeps_the_context():
    engine = make(min_acceptance=0.3, acceptance_window=2, probe_interval=50)
    output = engine.generate([[0, 1, 2]], GREEDY).outputs[0]
    assert engine.drafter.lengths[0] == 2 + len(output.token_ids)  # all but the last token
    assert output.stats.drafted == 3 * engine.drafter.calls < 20


def test_lengths_by_batch_size():
    engine = make(num_speculative_tokens_per_batch_size=((1, 1, 3), (2, 2, 0)))
    engine.drafter.logits = EYE
    params = [SamplingParams(temperature=0.0, max_new_tokens=count) for count in (60, 20)]
    outputs = engine.generate([[0], [1]], params).outputs
    assert outputs[1].stats.drafted == 0 and outputs[1].passes == 20
    assert outputs[0].passes == 20 + 40 // 4
    assert engine.drafts_for(99) == 0


@pytest.mark.parametrize("schedule", ["early_stop", "lagged", "uniform"])
def test_schedules_that_weigh_rows_trim_poor_drafts(schedule):
    table = CostTable([1, 8], [1.0, 8.0])
    engine = make(schedule=schedule, cost_table=table)
    engine.drafter.confidence = torch.full((3,), 0.05)
    generation = engine.generate([[0], [1]], GREEDY)
    stats = generation.stats
    assert stats.trimmed_rows > 0.9 * stats.drafted
    assert stats.verified_drafts == stats.acceptance.drafted
    assert stats.to_dict()["trimmed_rows"] == stats.trimmed_rows
