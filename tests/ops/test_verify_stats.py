"""dspark_ext.verify.AcceptanceStats: counters of verified and accepted drafts."""

import math

import pytest
import torch

from dspark_ext import verify
from dspark_ext.reference import verify as reference


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_stats_equal_the_reference_counts():
    generator = torch.Generator().manual_seed(12)
    stats = verify.AcceptanceStats(10, 5)
    totals = None
    for _ in range(20):
        chosen = torch.randint(0, 6, (10,), generator=generator)
        accepted = (torch.rand(10, generator=generator) * (chosen + 1)).floor().long()
        stats.update(chosen.int(), accepted.int())
        step = reference.count_acceptance(chosen, accepted, 5)
        totals = step if totals is None else {k: totals[k] + step[k] for k in step}
    assert torch.equal(stats.verified, totals["verified"])
    assert torch.equal(stats.reached, totals["reached"])
    assert torch.equal(stats.histogram, totals["histogram"])
    report = stats.read()
    assert report.steps == 200 == int(report.histogram.sum())
    assert report.drafted == int(totals["verified"].sum())
    weights = torch.arange(6)
    assert report.accepted == int((report.histogram * weights).sum())
    assert torch.equal(report.accepted_per_request, (totals["histogram"] * weights).sum(1))
    assert report.mean_length == pytest.approx(1 + report.accepted / 200)
    assert report.accepted == int(report.accepted_by_position.sum())
    assert (report.accepted_by_position <= report.verified_by_position).all()


def test_stats_slots():
    """Requests come and go: counters belong to slots, negative slots are not counted."""
    stats = verify.AcceptanceStats(4, 2)
    stats.update(int32(2, 1, 2), int32(1, 1, 2), request_ids=int32(3, -1, 0))
    assert stats.read().steps_per_request.tolist() == [1, 0, 0, 1]
    assert stats.read().accepted_per_request.tolist() == [2, 0, 0, 1]
    stats.reset(torch.tensor([3]))
    assert stats.read().steps_per_request.tolist() == [1, 0, 0, 0]
    stats.reset()
    report = stats.read()
    assert report.steps == 0 and math.isnan(report.acceptance_rate)


def test_stats_of_an_empty_step():
    stats = verify.AcceptanceStats(2, 3)
    stats.update(int32(), int32())
    assert stats.read().steps == 0


@pytest.mark.parametrize(
    ("verify_lens", "num_accepted", "request_ids", "word"),
    [
        (int32(4), int32(0), None, "verify_lens"),
        (int32(-1), int32(0), None, "verify_lens"),
        (int32(1), int32(2), None, "num_accepted"),
        (int32(1), int32(-1), None, "num_accepted"),
        (int32(1), int32(1, 1), None, "num_accepted"),
        (int32(1), int32(1), int32(2), "request_ids"),
        (int32(1), int32(1), int32(0, 1), "request_ids"),
        (int32(1, 1, 1), int32(1, 1, 1), None, ""),
    ],
)
def test_stats_errors_leave_the_counters_alone(verify_lens, num_accepted, request_ids, word):
    stats = verify.AcceptanceStats(2, 3)
    with pytest.raises((RuntimeError, ValueError)) as error:
        stats.update(verify_lens, num_accepted, request_ids)
    assert "dspark_ext." in str(error.value) and word in str(error.value)
    assert int(stats.verified.sum()) == int(stats.reached.sum()) == int(stats.histogram.sum()) == 0


def test_opcheck():
    stats = verify.AcceptanceStats(3, 4)
    counters = (stats.verified, stats.reached, stats.histogram)
    for request_ids in (None, int32(2, -1, 0)):
        torch.library.opcheck(
            torch.ops.dspark_ext.accumulate_stats.default,
            (int32(4, 2, 0), int32(1, 2, 0), request_ids, *counters),
        )


def test_counters_by_request_and_position():
    stats = verify.AcceptanceStats(2, 3)
    stats.update(int32(3, 1), int32(2, 0))
    stats.update(int32(2, 0), int32(0, 0))
    report = stats.read()
    assert report.verified_by_request_and_position.tolist() == [[2, 2, 1], [1, 0, 0]]
    assert report.accepted_by_request_and_position.tolist() == [[1, 1, 0], [0, 0, 0]]
    assert report.passes_with_drafts == 3 and report.steps == 4
    verified, reached, histogram = stats.totals()
    assert verified.tolist() == [3, 2, 1] and reached.tolist() == [3, 1, 1]
    assert histogram.tolist() == [3, 0, 1, 0]


def test_totals_outlive_the_slot():
    stats = verify.AcceptanceStats(3, 2)
    stats.update(int32(2, 2, 1), int32(2, 1, 0))
    before = stats.read()
    stats.reset(torch.tensor([0, 2, 7, -1]))
    after = stats.read()
    assert after.steps_per_request.tolist() == [0, 1, 0]
    for name in ("steps", "drafted", "accepted", "passes_with_drafts", "mean_length"):
        assert getattr(after, name) == getattr(before, name)
    for name in ("histogram", "verified_by_position", "accepted_by_position"):
        assert torch.equal(getattr(after, name), getattr(before, name))
    assert torch.equal(
        after.conditional_acceptance_by_position, before.conditional_acceptance_by_position
    )
    assert stats.generation.tolist() == [1, 0, 1] and stats.epoch.tolist() == [0]
    stats.reset()
    assert stats.read().steps == 0 and stats.generation.tolist() == [2, 1, 2]
    assert stats.epoch.tolist() == [1]


def test_read_is_one_copy(monkeypatch):
    """`read` is the only call that waits for the device, and it waits once."""
    copies = []
    real = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: copies.append(t) or real(t))
    stats = verify.AcceptanceStats(2, 3)
    stats.update(int32(3, 1), int32(2, 0))
    stats.reset(torch.tensor([1]))
    stats.totals()
    assert not copies
    stats.read()
    assert len(copies) == 1


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)], ids=str)
def test_stats_of_nothing(shape):
    stats = verify.AcceptanceStats(*shape)
    if shape[0]:
        stats.update(int32(0, 0), int32(0, 0))
    stats.reset(torch.tensor([0]))
    report = stats.read()
    assert report.steps == shape[0] and report.drafted == 0 and report.passes_with_drafts == 0
    assert report.verified_by_request_and_position.shape == shape
