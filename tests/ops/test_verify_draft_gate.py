"""dspark_ext DraftGate: drafting only where it pays, at a bounded price for finding out."""

import pathlib
import random
import re

import pytest
import torch

from dspark_ext.verify import CostTable, DraftGate, schedule

# One row 1 s, each further one 10 ms: drafts are cheap for few requests, dear for many.
ROWS = CostTable([1, 1001], [1.0, 11.0])


def draft_seconds(num_requests):
    return 0.2 + 0.03 * num_requests


def serve(gate, num_requests, steps, acceptance, seed=0, num_drafts=3, catch_up=0.0):
    """(tokens, seconds, drafted by step) of a loop that verifies whole blocks; each plain step adds
    `catch_up` to the seconds of the next drafting."""
    generator = random.Random(seed)
    tokens, seconds, drafted, behind = 0, 0.0, [], 0.0
    for _ in range(steps):
        drafted.append(gate.should_draft(num_requests, catch_up_seconds=behind))
        verified = drafted[-1] * num_requests * num_drafts
        accepted = 0
        for _ in range(verified // num_drafts):
            for _ in range(num_drafts):
                if generator.random() >= acceptance:
                    break
                accepted += 1
        gate.update(num_requests, drafted[-1], verified, accepted, catch_up_seconds=behind)
        tokens += num_requests + accepted
        seconds += ROWS.cost(num_requests + verified)
        seconds += draft_seconds(num_requests) + behind if drafted[-1] else 0.0
        behind = 0.0 if drafted[-1] else behind + catch_up
    return tokens, seconds, drafted


def plain_rate(num_requests):
    return num_requests / ROWS.cost(num_requests)


@pytest.mark.parametrize("num_requests", [1, 8, 16, 40])
def test_it_stays_open_where_drafting_pays(num_requests):
    tokens, seconds, drafted = serve(DraftGate(ROWS, draft_seconds), num_requests, 400, 0.8)
    assert all(drafted)
    assert tokens / seconds > 1.02 * plain_rate(num_requests)


@pytest.mark.parametrize("catch_up", [0.0, 0.002])
@pytest.mark.parametrize("num_requests", [1, 8, 16, 40, 256])
def test_where_drafting_never_pays_it_loses_little(num_requests, catch_up):
    """Probes cost a percent of the time, what the drafter has to catch up with included."""
    gate = DraftGate(ROWS, draft_seconds)
    serve(gate, num_requests, 64, 0.05)
    assert not gate.pays(num_requests)
    tokens, seconds, drafted = serve(gate, num_requests, 4000, 0.05, seed=1, catch_up=catch_up)
    assert any(drafted)
    assert tokens / seconds > 0.989 * plain_rate(num_requests)


def test_it_opens_again():
    gate = DraftGate(ROWS, draft_seconds, half_life=128.0, probe_share=0.02)
    serve(gate, 8, 200, 0.05)
    assert not gate.pays(8)
    *_, drafted = serve(gate, 8, 3000, 0.9, seed=2)
    assert all(drafted[-100:])


def test_without_probes_it_stays_closed():
    gate = DraftGate(ROWS, draft_seconds, probe_share=0.0)
    serve(gate, 8, 100, 0.0)
    *_, drafted = serve(gate, 8, 500, 1.0)
    assert not any(drafted)


def test_sizes_are_told_apart_and_the_nearest_is_asked_first():
    gate = DraftGate(ROWS, draft_seconds)
    serve(gate, 1, 100, 0.6)
    assert gate.pays(1)
    # never seen: judged by what single requests accepted, at the cost of 256
    assert not gate.pays(256) and not gate.should_draft(256)
    serve(gate, 256, 20, 0.05)
    assert not gate.pays(256) and gate.pays(1)


def test_a_probe_waits_until_it_can_afford_the_catching_up():
    gate = DraftGate(ROWS, draft_seconds)
    serve(gate, 8, 20, 0.0)
    waited = next(n for n in range(1000) if gate.should_draft(8) or gate.update(8, False))
    assert waited > 10
    assert not gate.should_draft(8, catch_up_seconds=1.0)
    more = next(n for n in range(1000) if gate.should_draft(8, 0, 1.0) or gate.update(8, False))
    assert more == pytest.approx(1.0 / (0.01 * ROWS.cost(8)), abs=2)


def test_a_number_not_seen_yet_is_judged_by_the_nearest():
    gate = DraftGate(ROWS, lambda count: 0.2)
    serve(gate, 1, 100, 0.9)
    for _ in range(3):
        gate.update(256, True, 5 * 256, 0)
    assert gate.pays(2) and gate.pays(4)
    assert not gate.pays(128) and not gate.pays(64)


def test_one_large_step_does_not_close_it():
    gate = DraftGate(ROWS, draft_seconds)
    for closed in (False, False, True):
        gate.update(256, True, 5 * 256, 0)
        assert gate.pays(256) != closed


def test_half_a_row_costs_half():
    """Every other block verifies a draft, of which two in three are accepted: 4/3 s of plain steps
    against 1.25 s and the drafting."""
    table = CostTable([1, 2], [1.0, 1.5])
    for drafting, expected in ((0.07, True), (0.1, False)):
        gate = DraftGate(table, lambda count, s=drafting: s, half_life=1e9, probe_share=0.0)
        for _ in range(4000):
            for verified, accepted in ((0, 0), (1, 1), (0, 0), (1, 1), (1, 0), (0, 0)):
                gate.update(1, True, verified, accepted)
        assert gate.pays(1) == expected


def test_by_hand():
    """One of two drafts accepted on average: 2 tokens and a standard error of them, against 1.2 s
    and the drafting."""
    table = CostTable([1, 3], [1.0, 1.2])
    blocks = 1.0 / (1.0 - 0.5 ** (1 / 1024))  # what a half life of 1024 blocks leaves
    bound = 2.0 + (1.0 * 2.0 / blocks) ** 0.5 - 1.2
    for drafting, expected in ((bound - 0.001, True), (bound + 0.001, False)):
        gate = DraftGate(table, lambda count, s=drafting: s * count, probe_share=0.0)
        for accepted in (0, 2) * 10000:
            gate.update(1, True, 2, accepted)
        assert gate.should_draft(1) == gate.pays(1) == expected


def test_prefill_rows_make_drafting_cheaper():
    """Beside a long prefill the drafting weighs less."""
    gate = DraftGate(ROWS, lambda count: 0.4, probe_share=0.0)
    serve(gate, 1, 200, 0.25)
    assert not gate.pays(1) and gate.pays(1, num_other_rows=500)


def test_the_second_curve_of_the_table_is_the_drafting():
    table = CostTable([1, 1001], [1.0, 11.0], request_rows=[1, 2], request_seconds=[0.1, 5.0])
    gate = DraftGate(table)
    serve(gate, 1, 100, 0.6)
    assert gate.pays(1) and not gate.pays(2)
    # given draft_seconds, every step pays it: the plain ones too
    gate = DraftGate(table, lambda count: 0.1)
    serve(gate, 1, 100, 0.6)
    assert gate.pays(2)


def test_no_requests():
    gate = DraftGate(ROWS, draft_seconds)
    assert not gate.should_draft(0)
    gate.update(0, False)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"probe_share": -0.1}, "probe_share"),
        ({"half_life": 0.0}, "half_life"),
        ({"min_blocks": 0}, "min_blocks"),
        ({"min_steps": 0}, "min_steps"),
    ],
)
def test_arguments_are_checked(arguments, name):
    with pytest.raises(ValueError, match=f"DraftGate: {name}"):
        DraftGate(ROWS, draft_seconds, **arguments)


def test_a_table_without_drafting_is_refused():
    with pytest.raises(ValueError, match="draft_seconds"):
        DraftGate(ROWS)


@pytest.mark.parametrize("step", [(4, True, 1, 2), (4, True, 3, -1), (4, False, 1, 0)])
def test_contradictory_counts_are_refused(step):
    with pytest.raises(ValueError, match="update"):
        DraftGate(ROWS, draft_seconds).update(*step)


@pytest.mark.parametrize("drafting", [0.1, 9.0])
def test_the_example_of_the_page_runs(drafting):
    page = (pathlib.Path(__file__).parents[2] / "docs/draft-gate.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    table = CostTable([1, 9], [1.0, 2.0], request_rows=[1], request_seconds=[drafting])
    names = {
        "table": table,
        "num_requests": 3,
        "confidence": torch.full((3, 2), 0.5),
        "num_verified": 0,
        "num_accepted": 0,
    }
    exec(code, names)
    gate = DraftGate(table)
    for _ in range(30):
        gate.update(3, True, 6, 3)
    code = code.replace("gate = DraftGate(table)", "")
    names |= {"gate": gate, "schedule": schedule}
    exec(code, names)
    assert names["drafted"] == (drafting < 1.0)
    assert (names["plan"].num_rows > 3) == names["drafted"]
