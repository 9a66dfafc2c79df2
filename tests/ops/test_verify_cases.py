"""Cases reported by users of other implementations; each with the right answer."""

import subprocess
import sys
import warnings

import pytest
import torch

from dspark_ext import sampling, verify


def lens(plan):
    return plan.verify_lens.tolist()


def table(*seconds):
    """Seconds for 1, 2, ... rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return verify.CostTable(range(1, len(seconds) + 1), seconds)


def starts(lengths):
    return torch.tensor([0, *lengths]).add(1).cumsum(0).sub(1).to(torch.int32)


def one_hot_rows(ids, vocab):
    rows = torch.zeros(len(ids), vocab)
    rows[torch.arange(len(ids)), torch.tensor(ids)] = 30.0
    return rows


def test_br022_zero_drafts_is_a_routine_choice():
    plan = verify.schedule(torch.full((5, 7), 1e-4), cost=table(*(10.0**k for k in range(40))))
    assert lens(plan) == [0] * 5
    assert plan.query_start_loc.tolist() == [0, 1, 2, 3, 4, 5] and int(plan.num_rows) == 5
    for temperature in (0.0, 1.0):
        output = sampling.rejection_sample(
            one_hot_rows([3, 1, 4, 1, 5], 9),
            torch.zeros(5, 7, dtype=torch.int64),
            query_start_loc=plan.query_start_loc,
            temperature=temperature,
            seeds=torch.arange(5),
            positions=torch.zeros(5, dtype=torch.int64),
        )
        assert output.num_emitted.tolist() == [1] * 5
        assert output.token_ids[:, 0].tolist() == [3, 1, 4, 1, 5]
        assert output.token_ids[:, 1:].eq(-1).all()


def test_br023_lengths_respect_context_and_output_room():
    room = verify.draft_capacity([1, 3, 100], [100, 3, None], 5)
    assert room.dtype == torch.int32 and room.tolist() == [0, 2, 5]
    confidence = torch.full((3, 5), 0.99)
    free = table(*[1.0] * 20)
    assert lens(verify.schedule(confidence, cost=free, capacity=room)) == [0, 2, 5]
    assert lens(verify.schedule(confidence, mode="fixed", capacity=room)) == [0, 2, 5]
    assert lens(verify.schedule(confidence, mode="fixed", capacity=room, max_rows=9)) == [0, 2, 4]
    spare = verify.schedule(confidence, mode="threshold", threshold=0.0, capacity=room, max_rows=99)
    assert lens(spare) == [0, 2, 5]


def test_br023_no_room_at_all():
    assert verify.draft_capacity([0, -3, 1], None, 5).tolist() == [0, 0, 0]
    assert verify.draft_capacity(None, torch.tensor([2, 7]), 5).tolist() == [1, 5]
    with pytest.raises(ValueError, match="draft_capacity"):
        verify.draft_capacity(None, None, 5)
    with pytest.raises(ValueError, match="draft_capacity"):
        verify.draft_capacity([1, 2], [1], 5)


def test_br024_one_compiled_step_serves_every_split():
    """The same 192 rows as 32 x 6, 16 x 12, 192 x 1 and mixed; equal to eager each time."""

    def step(anchor, drafts, seq_lens, confidence):
        plan = verify.schedule(confidence, mode="threshold", threshold=0.5, max_rows=192)
        return verify.pack(anchor, drafts, seq_lens, plan, max_rows=192)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch, width, likely in [(32, 5, 1.0), (16, 11, 1.0), (192, 3, 0.0), (40, 7, None)]:
        generator = torch.Generator().manual_seed(batch)
        confidence = torch.rand(batch, width, generator=generator)
        if likely is not None:
            confidence[:] = likely
        arguments = (
            torch.randint(0, 99, (batch,), generator=generator),
            torch.randint(0, 99, (batch, width), generator=generator),
            torch.randint(0, 99, (batch,), generator=generator),
            confidence,
        )
        eager, replay = step(*arguments), compiled(*arguments)
        live = int(eager.query_start_loc[-1])
        assert live == 192 if likely is not None else live < 192
        for a, b in zip(eager[:6], replay[:6]):
            assert torch.equal(a, b)
        assert eager.slot_mapping[live:].eq(-1).all()


def test_br027_cost_table_decides_and_a_missing_one_is_reported():
    confidence = torch.tensor([[0.5, 0.5]])
    plan = verify.schedule(confidence, cost=table(1, 1.4, 1.9))
    assert lens(plan) == [1] and float(plan.expected_tokens) == 1.5
    with pytest.warns(UserWarning, match="flat"):
        flat = verify.CostTable([1, 2, 3], [1.0, 1.0, 1.0])
    assert flat.is_flat and lens(verify.schedule(confidence, cost=flat)) == [2]
    with pytest.raises((RuntimeError, ValueError), match="dspark_ext.schedule: cost"):
        verify.schedule(confidence)


@pytest.mark.parametrize(
    ("room", "total"), [(0, 0), (1, 1), (7, 7), (19, 19), (20, 20), (21, 20)], ids=str
)
def test_br028_partial_budgets_are_kept(room, total):
    generator = torch.Generator().manual_seed(3)
    confidence = 0.5 + 0.5 * torch.rand(4, 5, generator=generator)
    for arguments in (
        {"mode": "threshold", "threshold": 0.0},
        {"mode": "fixed"},
        {"cost": table(*[1.0] * 30)},
    ):
        plan = verify.schedule(confidence, max_rows=4 + room, **arguments)
        assert sum(lens(plan)) == total


def test_br029_the_split_follows_this_steps_confidences():
    fresh = torch.tensor([[0.9, 0.9, 0.9], [0.2, 0.2, 0.2]])
    plan = verify.schedule(fresh, mode="threshold", threshold=0.0, max_rows=2 + 3)
    assert lens(plan) == [3, 0]


NO_CONFIDENCE = """
import torch
from dspark_ext import verify
table = verify.CostTable([1, 2], [1.0, 2.0])
for arguments in ({"cost": table}, {"mode": "threshold", "threshold": 0.5}):
    try:
        verify.schedule(None, capacity=[3, 2], num_drafts=3, **arguments)
    except (RuntimeError, ValueError) as error:
        assert_text = str(error)
        if "dspark_ext.schedule: confidence" not in assert_text:
            raise SystemExit(assert_text)
    else:
        raise SystemExit("no error")
print(verify.schedule(None, mode="fixed", capacity=[3, 0, 1], num_drafts=3).verify_lens.tolist())
"""


def test_br030_missing_confidences_are_an_error_also_without_asserts():
    run = subprocess.run(
        [sys.executable, "-O", "-c", NO_CONFIDENCE], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[3, 0, 1]"


def test_br030_fixed_needs_no_confidences():
    plan = verify.schedule(None, mode="fixed", capacity=[3, 0, 1], num_drafts=3)
    assert lens(plan) == [3, 0, 1] and plan.query_start_loc.tolist() == [0, 4, 5, 7]
    assert plan.expected_tokens.item() == 7.0
    with pytest.raises((RuntimeError, ValueError), match="dspark_ext.schedule: num_drafts"):
        verify.schedule(None, mode="fixed", capacity=[3, 0, 1])
    with pytest.raises((RuntimeError, ValueError), match="dspark_ext.schedule: c"):
        verify.schedule(None, mode="fixed", num_drafts=3)


def test_br031_certain_drafts_tie_by_position_then_request():
    for _ in range(100):
        plan = verify.schedule(torch.ones(3, 3), cost=table(*[1.0] * 12), max_rows=3 + 4)
        assert lens(plan) == [2, 1, 1]
    assert lens(verify.schedule(torch.ones(3, 3), mode="fixed", max_rows=7)) == [2, 1, 1]


def test_br062_counts_per_request():
    stats = verify.AcceptanceStats(1, 3)
    accepted = [torch.tensor([n], dtype=torch.int32) for n in (0, 1, 0, 3)]
    for n in accepted:
        stats.update(torch.tensor([3], dtype=torch.int32), n)
    report = stats.read()
    assert report.histogram.tolist() == [2, 1, 0, 1]
    assert report.histogram_per_request.tolist() == [[2, 1, 0, 1]]
    assert (report.steps, report.drafted, report.accepted) == (4, 12, 4)
    assert report.mean_length == 2.0 and report.acceptance_rate == pytest.approx(1 / 3)
    assert int(report.histogram.sum()) == report.steps
    assert report.accepted_by_position.tolist() == [2, 1, 1]
    assert report.verified_by_position.tolist() == [4, 4, 4]
    assert report.acceptance_by_position.tolist() == [0.5, 0.25, 0.25]
    assert report.conditional_acceptance_by_position.tolist() == [0.5, 0.5, 1.0]


def test_br063_the_anchor_is_not_a_draft():
    stats = verify.AcceptanceStats(2, 3)
    stats.update(torch.tensor([3, 0], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32))
    report = stats.read()
    assert report.drafted == 3 and report.accepted == 2
    assert report.acceptance_rate == pytest.approx(2 / 3)
    assert report.drafted_per_request.tolist() == [3, 0]
    assert report.acceptance_rate_per_request[1].isnan()
    assert report.mean_length == 2.0


def test_br065_acceptance_falls_with_temperature():
    """A point-mass draft of id 0 under logits (2, 1, 0): 1 at T=0, .665 at T=1."""
    for temperature, chance in [(0.0, 1.0), (0.5, 0.8668), (1.0, 0.6652), (2.0, 0.5065)]:
        found = sampling.block_acceptance(
            torch.tensor([[2.0, 1.0, 0.0]]).repeat(2, 1),
            torch.tensor([[0]]),
            query_start_loc=starts([1]),
            temperature=temperature,
        )
        assert float(found.accept_prob[0, 0]) == pytest.approx(chance, abs=1e-4)


def test_br066_filtering_the_draft_raises_acceptance_only():
    """p filtered by top_k=1 = (1, 0): a draft (.5, .5) passes half of the time, a filtered one
    always; what is emitted is the same."""
    batch = 2000
    target = torch.tensor([[1.0, 0.0]]).repeat(2 * batch, 1)
    generator = torch.Generator().manual_seed(9)
    accepted = {}
    for name, q in {"full": (0.5, 0.5), "filtered": (1.0, 0.0)}.items():
        law = torch.tensor([q])
        ids = torch.multinomial(law, batch, replacement=True, generator=generator).reshape(-1, 1)
        output = sampling.rejection_sample(
            target,
            ids,
            draft_probs=law.expand(batch, 1, 2).contiguous(),
            query_start_loc=starts([1] * batch),
            temperature=1.0,
            top_k=1,
            seeds=torch.arange(batch),
            positions=torch.zeros(batch, dtype=torch.int64),
        )
        assert output.token_ids[:, 0].eq(0).all()
        accepted[name] = float(output.num_accepted.double().mean())
    assert accepted["filtered"] == 1.0
    assert abs(accepted["full"] - 0.5) < 0.06  # 5 standard deviations of 2000 coins


@pytest.mark.parametrize("row", range(4), ids=lambda r: f"row={r}")
def test_br067_every_row_is_filtered_alike(row):
    """softmax (.6, .3, .1), min_p .4: id 2 is rejected at every row, the rest is (2/3, 1/3, 0)."""
    logits = torch.tensor([0.6, 0.3, 0.1]).log().repeat(4, 1)
    ids = torch.zeros(1, 3, dtype=torch.int64)
    if row < 3:
        ids[0, row] = 2
    found = sampling.block_acceptance(
        logits, ids, query_start_loc=starts([3]), temperature=1.0, min_p=0.4
    )
    probs = sampling.target_probs(logits, temperature=1.0, min_p=0.4)
    assert torch.allclose(probs, torch.tensor([2 / 3, 1 / 3, 0.0]), atol=1e-6)
    alive = [2 / 3 * (k + 1 <= row) for k in range(3)] if row < 3 else [2 / 3] * 3
    running, expected = 1.0, []
    for share in alive:
        running *= share
        expected.append(running)
    assert found.prefix_prob[0].tolist() == pytest.approx(expected, abs=1e-6)
    biased = sampling.rejection_sample(
        logits + torch.tensor([0.0, 100.0, 0.0]),
        ids,
        query_start_loc=starts([3]),
        temperature=1.0,
        min_p=0.4,
        seeds=torch.tensor([row]),
        positions=torch.tensor([0]),
    )
    assert int(biased.last_token[0]) == 1


def test_br070_a_confidence_is_conditional():
    """(.9, .9, .9) with threshold .8: read as conditionals all three pass; the survivals (.9, .81,
    .729), which early_stop and the order use, are their products."""
    confidence = torch.tensor([[0.9, 0.9, 0.9]])
    plan = verify.schedule(confidence, mode="threshold", threshold=0.8)
    assert lens(plan) == [3]
    assert float(plan.expected_tokens) == pytest.approx(1 + 0.9 + 0.81 + 0.729, abs=1e-6)
    falling = torch.tensor([[0.9, 0.79, 0.9]])
    assert lens(verify.schedule(falling, mode="threshold", threshold=0.8)) == [1]
    assert lens(verify.schedule(falling, mode="threshold", threshold=0.79)) == [3]
