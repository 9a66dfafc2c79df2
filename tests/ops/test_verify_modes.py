"""The modes of dspark_ext.verify.schedule by hand: budget, lagged, uniform; absent requests."""

from types import SimpleNamespace

import pytest
import torch

from dspark_ext import verify
from dspark_ext.reference import verify as reference


def lens(plan):
    return plan.verify_lens.tolist()


def int32(value):
    return torch.tensor(value, dtype=torch.int32)


def cost(*seconds):
    """Seconds for 1, 2, ... rows."""
    return torch.tensor([seconds[0], *seconds], dtype=torch.float64)


def total(budget, **arguments):
    generator = torch.Generator().manual_seed(3)
    confidence = 0.5 + 0.5 * torch.rand(4, 5, generator=generator)
    plan = verify.schedule(confidence, mode="budget", budget=int32(4 + budget), **arguments)
    assert int(plan.num_rows) == 4 + sum(lens(plan))
    return sum(lens(plan))


# ---- budget -------------------------------------------------------------------------------------


def test_br028_a_partial_budget_is_spent_exactly():
    assert [total(drafts) for drafts in (0, 1, 7, 19, 20, 21)] == [0, 1, 7, 19, 20, 20]
    assert [total(drafts, max_rows=9) for drafts in (3, 5, 7)] == [3, 5, 5]
    assert [total(drafts, num_drafts=2) for drafts in (3, 9)] == [3, 8]


def test_br029_the_split_follows_this_steps_confidences():
    fresh = torch.tensor([[0.9, 0.9, 0.9], [0.2, 0.2, 0.2]])
    assert lens(verify.schedule(fresh, mode="budget", budget=2 + 3)) == [3, 0]


def test_br031_certain_drafts_tie_by_position_then_request():
    for _ in range(100):
        plan = verify.schedule(torch.ones(3, 3), mode="budget", budget=int32(3 + 4))
        assert lens(plan) == [2, 1, 1]


@pytest.mark.parametrize("budget", [-(2**31), -1, 0, 2, 3], ids=str)
def test_a_budget_below_the_anchors_admits_nothing(budget):
    plan = verify.schedule(torch.ones(3, 3), mode="budget", budget=budget)
    assert lens(plan) == [0, 0, 0] and int(plan.num_rows) == 3


def test_min_drafts_come_out_of_the_budget():
    confidence = torch.tensor([[0.9, 0.9], [0.1, 0.1], [0.0, 0.0]])
    by_budget = {
        drafts: lens(verify.schedule(confidence, mode="budget", budget=3 + drafts, min_drafts=1))
        for drafts in range(6)
    }
    assert by_budget == {
        0: [0, 0, 0],
        1: [1, 0, 0],
        2: [1, 1, 0],
        3: [1, 1, 1],
        4: [2, 1, 1],
        5: [2, 2, 1],
    }


def test_the_budget_may_come_from_the_last_step():
    """num_rows of one schedule is the budget of the next, without leaving the device."""
    table = cost(1.0, 1.1, 1.2, 1.3, 9.0, 9.1)
    last = verify.schedule(torch.full((2, 3), 0.9), cost=table)
    plan = verify.schedule(
        torch.tensor([[0.1, 0.1, 0.1], [0.8, 0.8, 0.8]]), mode="budget", budget=last.num_rows
    )
    assert int(last.num_rows) == 4 and lens(plan) == [0, 2]


# ---- lagged -------------------------------------------------------------------------------------


def test_lagged_finds_the_best_total_and_hands_it_out_anew():
    """Survivals of the last step .9, .81: rates 1, 1.9/2, 2.71/2.1 (a dip that an early stop does
    not cross). Two drafts pay; this step they go where the current confidences are."""
    table = cost(0.5, 1.0, 2.0, 2.1, 2.9)
    past = torch.tensor([[0.9, 0.9], [0.0, 0.0]])
    now = torch.tensor([[0.0, 0.0], [0.5, 0.5]])
    assert lens(verify.schedule(past, cost=table)) == [0, 0]
    plan = verify.schedule(now, mode="lagged", lagged_confidence=past, cost=table)
    assert lens(plan) == [0, 0]  # 2 / 1 is best
    table = cost(0.5, 2.0, 4.0, 2.1, 2.9)
    plan = verify.schedule(now, mode="lagged", lagged_confidence=past, cost=table)
    assert lens(plan) == [0, 2]  # 2 / 2, 2.9 / 4, 3.71 / 2.1
    assert float(plan.expected_tokens) == 2.75


def test_lagged_takes_the_smallest_of_equal_totals():
    past = torch.tensor([[0.5, 1.0, 1.0]])
    table = cost(1.0, 1.5, 2.0, 2.5, 3.0)
    plan = verify.schedule(torch.ones(1, 3), mode="lagged", lagged_confidence=past, cost=table)
    assert lens(plan) == [0]


def test_lagged_stays_within_rows_and_starts_from_min_drafts():
    free = cost(*[1.0] * 9)
    past = now = torch.full((2, 3), 0.9)
    arguments = {"mode": "lagged", "lagged_confidence": past.clone(), "cost": free}
    assert lens(verify.schedule(now, **arguments)) == [3, 3]
    assert lens(verify.schedule(now, max_rows=5, **arguments)) == [2, 1]
    assert lens(verify.schedule(now, capacity=[1, 9], **arguments)) == [1, 3]
    steep = {**arguments, "cost": cost(*(10.0**k for k in range(9)))}
    assert lens(verify.schedule(now, **steep)) == [0, 0]
    assert lens(verify.schedule(now, min_drafts=2, **steep)) == [2, 2]


def test_a_cost_that_is_no_time_never_wins():
    past = torch.full((1, 3), 0.9)
    for bad in (float("nan"), 0.0, -1.0, float("inf")):
        table = cost(1.0, bad, 1.1, bad)
        plan = verify.schedule(torch.ones(1, 3), mode="lagged", lagged_confidence=past, cost=table)
        assert lens(plan) == [2]
        expected = reference.schedule(
            torch.ones(1, 3), mode="lagged", lagged_confidence=past, cost=table
        )
        assert lens(expected) == [2]


# ---- uniform ------------------------------------------------------------------------------------


def test_uniform_stops_at_the_first_position_that_does_not_pay():
    """Two requests. Rates 2/1, (2 + 1.7)/1.5, (2 + 1.7 + .89)/2: the second position does not pay,
    although .81 of the first request alone would."""
    confidence = torch.tensor([[0.9, 0.9, 1.0], [0.8, 0.1, 1.0]])
    table = cost(1.0, 1.0, 1.2, 1.5, 1.9, 2.0)
    plan = verify.schedule(confidence, mode="uniform", cost=table)
    assert lens(plan) == [1, 1] and float(plan.expected_tokens) == pytest.approx(3.7)


def test_uniform_pays_for_padded_rows():
    """A request without room costs its padding: 1.9/2 with two requests, 1.9/1.5 if it did not."""
    confidence = torch.tensor([[0.9], [0.9]])
    table = cost(1.0, 1.0, 1.4, 1.5)
    assert lens(verify.schedule(confidence, mode="uniform", cost=table)) == [1, 1]
    plan = verify.schedule(confidence, mode="uniform", cost=table, capacity=[1, 0])
    assert lens(plan) == [0, 0]
    plan = verify.schedule(confidence, mode="uniform", cost=cost(*[1.0] * 5), capacity=[1, 0])
    assert lens(plan) == [1, 0]


def test_uniform_from_lagged_confidences_crosses_a_dip():
    past = torch.tensor([[1.0, 1.0, 0.0]])
    table = cost(1.0, 2.1, 2.2, 2.3)
    now = torch.zeros(1, 3)
    assert lens(verify.schedule(past, mode="uniform", cost=table)) == [0]
    plan = verify.schedule(now, mode="uniform", cost=table, lagged_confidence=past)
    assert lens(plan) == [2] and float(plan.expected_tokens) == 1.0


def test_uniform_keeps_every_limit():
    ones, free = torch.ones(3, 4), cost(*[1.0] * 20)
    uniform = {"mode": "uniform", "cost": free}
    assert lens(verify.schedule(ones, **uniform)) == [4, 4, 4]
    assert lens(verify.schedule(ones, num_drafts=3, **uniform)) == [3, 3, 3]
    assert lens(verify.schedule(ones, max_rows=11, **uniform)) == [2, 2, 2]
    assert lens(verify.schedule(ones, capacity=[-1, 1, 9], **uniform)) == [0, 1, 4]
    zeros = torch.zeros(3, 4)
    assert lens(verify.schedule(zeros, **uniform)) == [0, 0, 0]
    assert lens(verify.schedule(zeros, min_drafts=2, **uniform)) == [2, 2, 2]
    assert lens(verify.schedule(zeros, min_drafts=3, max_rows=8, **uniform)) == [1, 1, 1]


def test_br027_the_cost_decides_in_every_mode_that_reads_it():
    confidence = torch.tensor([[0.5, 0.5]])
    table = cost(1.0, 1.4, 1.9)
    past = {"lagged_confidence": confidence.clone()}
    for arguments in (
        {},
        {"mode": "uniform"},
        {"mode": "uniform", **past},
        {"mode": "lagged", **past},
    ):
        plan = verify.schedule(confidence, cost=table, **arguments)
        assert lens(plan) == [1] and float(plan.expected_tokens) == 1.5


# ---- requests that do not exist -----------------------------------------------------------------

EARLIER = torch.full((5, 3), 0.7)


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "fixed"},
        {"mode": "threshold", "threshold": 0.5},
        {"mode": "early_stop"},
        {"mode": "budget", "budget": 7},
        {"mode": "lagged", "lagged_confidence": EARLIER},
        {"mode": "uniform"},
        {"mode": "uniform", "lagged_confidence": EARLIER},
    ],
    ids=str,
)
@pytest.mark.parametrize("live", [-3, 0, 1, 3, 5, 9], ids=lambda n: f"live={n}")
def test_the_first_requests_are_scheduled_as_if_alone(arguments, live):
    confidence = 0.5 + torch.rand(5, 3, generator=torch.Generator().manual_seed(2)) / 2
    arguments = {**arguments, "max_rows": 12}
    if arguments["mode"] in ("early_stop", "lagged", "uniform"):
        arguments["cost"] = 1 + torch.arange(30, dtype=torch.float64) / 20
    plan = verify.schedule(confidence, num_requests=live, **arguments)
    count = max(0, min(5, live))
    if "lagged_confidence" in arguments:
        arguments["lagged_confidence"] = EARLIER[:count]
    alone = verify.schedule(confidence[:count], **arguments)
    assert lens(plan) == lens(alone) + [0] * (5 - count)
    rows = int(alone.num_rows)
    assert plan.query_start_loc.tolist() == alone.query_start_loc.tolist() + [rows] * (5 - count)
    assert int(plan.num_rows) == rows and torch.equal(plan.expected_tokens, alone.expected_tokens)


def test_br024_slots_past_the_live_requests_write_nothing():
    """One shape, 192 rows: 32 x 6, 16 x 12, 192 x 1."""
    for live, drafts in [(32, 5), (16, 11), (192, 0)]:
        plan = verify.schedule(
            torch.ones(192, 11),
            mode="fixed",
            num_drafts=drafts,
            max_rows=192,
            num_requests=int32(live),
        )
        assert int(plan.num_rows) == live * (drafts + 1) == 192
        batch = verify.pack(
            torch.arange(192),
            torch.ones(192, 11, dtype=torch.int64),
            torch.arange(192),
            plan,
            max_rows=200,
        )
        assert batch.request_ids.unique().tolist() == [-1, *range(live)]
        assert batch.slot_mapping[192:].eq(-1).all() and batch.slot_mapping[:192].ge(0).all()
        output = SimpleNamespace(
            num_emitted=torch.ones(192, dtype=torch.int32), last_token=torch.arange(192)
        )
        after = verify.commit(output, batch, torch.arange(192))
        assert (after.seq_lens - torch.arange(192)).tolist() == [1] * live + [0] * (192 - live)
        assert int(after.row_kept.sum()) == live


# ---- many requests ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["early_stop", "budget", "lagged", "uniform"])
def test_four_thousand_requests_equal_the_reference(mode):
    generator = torch.Generator().manual_seed(6)
    confidence = (torch.rand(4096, 16, generator=generator) * 64).round() / 64
    arguments = {"mode": mode}
    if mode == "budget":
        arguments["budget"] = 4096 + 20000
    else:
        arguments["cost"] = 1 + torch.arange(4096 * 17, dtype=torch.float64) / 9000
    if mode == "lagged":
        arguments["lagged_confidence"] = torch.rand(4096, 16, generator=generator)
    plan = verify.schedule(confidence, **arguments)
    for mine, theirs in zip(plan, reference.schedule(confidence, **arguments)):
        assert torch.equal(mine, theirs)
    assert 0 < int(plan.num_rows) - 4096 < 4096 * 16
