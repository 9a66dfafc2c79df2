"""Numbers and lists given to the functions of `verify`: what is refused, what is clamped."""

import math

import numpy as np
import pytest
import torch

from dspark_ext import verify
from dspark_ext.sampling import RejectionOutput

CONFIDENCE = torch.tensor([[0.9, 0.8], [0.5, 0.4]])
ANCHOR, IDS, LENS = torch.tensor([1, 2]), torch.tensor([[3, 4], [5, 6]]), torch.tensor([5, 7])
TABLE = verify.CostTable([1, 4, 8], [1.0, 1.1, 2.0])
FIXED = verify.schedule(CONFIDENCE, mode="fixed")
NO_INTEGERS = (1.5, 2.0, True, math.inf, "1", None)


def lens(**arguments):
    return verify.schedule(CONFIDENCE, **{"mode": "fixed", **arguments}).verify_lens.tolist()


# ---- schedule -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", NO_INTEGERS, ids=str)
def test_a_capacity_that_is_no_integer_is_refused(value):
    with pytest.raises(RuntimeError, match="dspark_ext.schedule: capacity: expected an integer"):
        lens(capacity=[value, 1])


def test_fractions_of_an_array_are_refused():
    assert lens(capacity=np.array([1, 0])) == [1, 0]
    with pytest.raises(RuntimeError, match="dspark_ext.schedule: capacity: expected an integer"):
        lens(capacity=np.array([1.5, 0.0]))


@pytest.mark.parametrize("name", ["budget", "num_requests"])
@pytest.mark.parametrize("value", NO_INTEGERS[:-1], ids=str)
def test_a_count_that_is_no_integer_is_refused(name, value):
    mode = "budget" if name == "budget" else "fixed"
    with pytest.raises(RuntimeError, match=f"dspark_ext.schedule: {name}: expected an integer"):
        lens(mode=mode, **{name: value})


def test_counts_beyond_int32_are_no_limit():
    assert lens(capacity=[2**40, -(2**40)]) == [2, 0]
    assert lens(mode="budget", budget=2**40) == [2, 2]
    assert lens(mode="budget", budget=-(2**40)) == [0, 0]
    assert lens(num_requests=2**40) == [2, 2]
    assert lens(num_requests=-(2**40)) == [0, 0]


def test_other_rows_that_no_pass_has_are_refused():
    """Beyond 2^63 the look-up would wrap around, to before the table."""
    most = verify.schedule(CONFIDENCE, cost=TABLE, num_other_rows=2**31 - 1)
    assert most.num_rows == 6  # four rows more than 2^31 cost next to nothing
    for count in (2**31, 2**63 - 1):
        with pytest.raises(RuntimeError, match="schedule: num_other_rows: expected at most 2.31"):
            verify.schedule(CONFIDENCE, cost=TABLE, num_other_rows=count)


@pytest.mark.parametrize("num_drafts", [2**22, 2**40, 2**62 + 5, 2**63 - 1], ids=str)
def test_drafts_without_a_limit_are_refused(num_drafts):
    """B (K + 1) of the third is 24 modulo 2^64."""
    with pytest.raises(RuntimeError, match="schedule: num_drafts: expected B . .K . 1. of at most"):
        verify.schedule(None, mode="fixed", capacity=[1, 2, 3, 4], num_drafts=num_drafts)


# ---- draft_capacity -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", NO_INTEGERS[:-1], ids=str)
def test_room_that_is_no_integer_is_refused(value):
    with pytest.raises(ValueError, match="dspark_ext.draft_capacity: output_left: expected an int"):
        verify.draft_capacity([3, 3], [value, 2], 5)
    for wrong in (torch.tensor([True]), torch.tensor([1j]), torch.tensor([2.0])):
        with pytest.raises(ValueError, match="dspark_ext.draft_capacity: context_left: expected"):
            verify.draft_capacity(wrong, None, 5)


def test_room_at_the_ends_of_int64():
    ends = torch.tensor([-(2**63), 2**63 - 1])
    assert verify.draft_capacity(ends, None, 5).tolist() == [0, 5]
    assert verify.draft_capacity([-(2**70), 2**70], [None, None], 5).tolist() == [0, 5]
    most = 2**31 - 1
    assert verify.draft_capacity([None, 2**31], None, most).tolist() == [most, most]


# ---- pack, unpack, commit -----------------------------------------------------------------------


def pack(**arguments):
    given = {"anchor": ANCHOR, "draft_token_ids": IDS, "seq_lens": LENS, "schedule": FIXED}
    return verify.pack(**{**given, "max_rows": 8, **arguments})


def test_a_block_table_of_another_width():
    table = torch.tensor([[2, 3], [4, 5]])
    want = pack(block_table=table, block_size=8).slot_mapping
    assert torch.equal(want, pack(block_table=table.to(torch.int16), block_size=8).slot_mapping)
    with pytest.raises(RuntimeError, match="dspark_ext.pack: block_table: expected integers"):
        pack(block_table=table + 0.5, block_size=8)
    with pytest.raises(RuntimeError, match="dspark_ext.pack: block_table: expected a block for"):
        pack(block_table=table - 2**33, block_size=8)  # 2 .. 5 modulo 2^32


def test_a_block_size_without_a_table_is_refused():
    """The slots would silently be the positions."""
    with pytest.raises(ValueError, match="dspark_ext.pack: block_table: expected block_table and"):
        pack(block_size=8)
    with pytest.raises(ValueError, match="dspark_ext.pack: block_size: expected block_table and"):
        pack(block_table=torch.zeros(2, 2, dtype=torch.int32))


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        (torch.int64, 0.5), (torch.int64, math.nan), (torch.int64, math.inf), (torch.uint8, -1),
        (torch.int8, 128), (torch.bool, 2), (torch.float32, 1e39), (torch.float16, -65536),
    ],
    ids=str,
)  # fmt: skip
def test_a_fill_that_the_rows_cannot_hold_is_refused(dtype, fill):
    rows = torch.zeros(8, dtype=dtype)
    with pytest.raises(ValueError, match="dspark_ext.unpack: fill: expected a number that"):
        verify.unpack(rows, pack(), fill)
    assert verify.unpack(rows, pack(), 1.0).dtype == dtype


def test_what_is_missing_is_named():
    with pytest.raises(
        RuntimeError, match="dspark_ext.pack: anchor: expected a tensor of integers"
    ):
        pack(anchor=None)
    output = RejectionOutput(*[None] * 3, last_token=ANCHOR, status=None, logprobs=None)
    with pytest.raises(
        RuntimeError, match="dspark_ext.commit: num_emitted: expected a tensor, got"
    ):
        verify.commit(output, pack(), LENS)


def test_a_request_that_emitted_nothing_gives_back_its_anchor_too():
    count = torch.tensor([2, 0], dtype=torch.int32)
    output = RejectionOutput(None, None, count, ANCHOR, None, None)
    assert verify.commit(output, pack(), LENS).num_rejected.tolist() == [1, 3]


# ---- counters and tables ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids", [torch.tensor([False, True]), torch.tensor([1.0]), [0], 0], ids=lambda ids: str(ids)
)
def test_slots_are_integers(ids):
    """A mask, whose entries would be taken for the slots 0 and 1, is not a list of slots."""
    stats = verify.AcceptanceStats(3, 2)
    estimator = verify.AcceptanceEstimator(stats)
    with pytest.raises(
        RuntimeError, match="AcceptanceStats.reset: request_ids: expected .*integer"
    ):
        stats.reset(ids)
    with pytest.raises(RuntimeError, match="Estimator.confidence: request_ids: expected .*integer"):
        estimator.confidence(ids)
    assert not stats.generation.any()


def test_slots_beyond_the_last_get_the_average():
    stats = verify.AcceptanceStats(2, 1)
    estimator = verify.AcceptanceEstimator(stats)
    stats.update(torch.tensor([1, 1], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32))
    estimator.update()
    first, second, *others = estimator.confidence(torch.tensor([0, 1, -1, 2, 3, 2**62])).tolist()
    assert second < others[0] < first and others == [others[0]] * 4


@pytest.mark.parametrize("limit", [math.nan, math.inf, 2.5, True, -1, "4"], ids=str)
def test_a_limit_of_graphs_that_is_no_number_of_rows_is_refused(limit):
    with pytest.raises(ValueError, match="dspark_ext.CostTable: linear_above: expected a "):
        verify.CostTable([1, 4], [1.0, 2.0], "step", linear_above=limit)


def test_a_table_of_arrays_is_stored(tmp_path):
    arguments = {"request_rows": np.array([1]), "request_seconds": np.array([0.5])}
    table = verify.CostTable(
        np.array([2, 4, 8]),
        np.array([1.0, 2.0, 4.0]),
        "step",
        linear_above=np.int64(4),
        **arguments,
    )
    table.save(tmp_path / "cost.json")
    again = verify.CostTable.load(tmp_path / "cost.json")
    assert [table.cost(n, 1) for n in range(9)] == [again.cost(n, 1) for n in range(9)]


def test_a_table_has_no_time_for_fewer_than_no_rows():
    table = verify.CostTable([1, 4], [1.0, 2.0], request_rows=[1, 4], request_seconds=[0.1, 0.4])
    for call in (lambda: table.cost(-1), lambda: table.cost(1, -1), lambda: table.for_batch(-1)):
        with pytest.raises(
            ValueError, match="dspark_ext.CostTable: .*: expected at least 0, got -1"
        ):
            call()
    with pytest.raises(ValueError, match="dspark_ext.DraftGate: pays: num_other_rows"):
        verify.DraftGate(table).pays(1, -1)


@pytest.mark.parametrize("seconds", [math.nan, -0.5])
def test_seconds_of_drafting_that_are_none_are_refused(seconds):
    """A NaN would close the gate for good, without a word."""
    gate = verify.DraftGate(TABLE, lambda requests: seconds, min_blocks=1, min_steps=1)
    with pytest.raises(ValueError, match="DraftGate: update: catch_up_seconds: expected >= 0 sec"):
        gate.update(2, True, 2, 1, catch_up_seconds=seconds)
    with pytest.raises(ValueError, match="DraftGate: should_draft: catch_up_seconds: expected"):
        gate.should_draft(2, catch_up_seconds=seconds)
    assert gate.should_draft(2)
    gate.update(2, True, 2, 1)
    with pytest.raises(ValueError, match="DraftGate: draft_seconds: expected >= 0 seconds, got"):
        gate.should_draft(2)


@pytest.mark.parametrize("counts", [[1.5, 8], [True, 2.0], [4, 2**20 + 1], ["4"]], ids=str)
def test_nothing_is_measured_for_a_table_that_cannot_be(counts):
    calls = []
    with pytest.raises(ValueError, match="profile_cost_table: expected integers row_counts >= 1"):
        verify.profile_cost_table(calls.append, counts)
    assert not calls


@pytest.mark.filterwarnings("ignore:.*flat")
def test_counts_of_a_tensor_are_measured():
    calls = []
    table = verify.profile_cost_table(calls.append, torch.tensor([2, 1, 2]), warmup=0, repeats=1)
    assert calls == table.rows == [1, 2] and all(type(count) is int for count in calls)
