"""dspark_ext.verify.pack, unpack and commit: the ragged batch and what is kept of it."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from dspark_ext import verify
from dspark_ext.reference import verify as reference


def plan_of(lens):
    lens = torch.tensor(lens, dtype=torch.int32)
    starts = torch.zeros(len(lens) + 1, dtype=torch.int32)
    starts[1:] = (lens + 1).cumsum(0)
    return verify.Schedule(lens, starts, starts[-1].clone(), torch.tensor(0.0))


def random_round(batch, width, seed, spare=3):
    generator = torch.Generator().manual_seed(seed)
    plan = plan_of(torch.randint(0, width + 1, (batch,), generator=generator).tolist())
    return SimpleNamespace(
        plan=plan,
        anchor=torch.randint(0, 1000, (batch,), generator=generator),
        drafts=torch.randint(-1, 1000, (batch, width), generator=generator),
        seq_lens=torch.randint(0, 90, (batch,), generator=generator),
        table=torch.randperm(batch * 30, generator=generator).reshape(batch, 30).to(torch.int32),
        max_rows=int(plan.num_rows) + spare,
        width=width,
        generator=generator,
    )


def pack_round(it, **arguments):
    return verify.pack(
        it.anchor, it.drafts, it.seq_lens, it.plan, max_rows=it.max_rows, **arguments
    )


ROUNDS = [(0, 5), (1, 0), (1, 5), (4, 1), (7, 5), (33, 16)]


@pytest.mark.parametrize("block_size", [None, 1, 4, 16], ids=lambda size: f"block_size={size}")
@pytest.mark.parametrize(("batch", "width"), ROUNDS, ids=lambda n: str(n))
def test_pack_equals_the_reference(batch, width, block_size):
    it = random_round(batch, width, seed=batch)
    arguments = {}
    if block_size is not None:
        blocks = -(-(90 + width + 1) // block_size)
        table = torch.randperm(batch * blocks, generator=it.generator).reshape(batch, blocks)
        arguments = {"block_table": table.to(torch.int32), "block_size": block_size}
    given = [it.anchor.clone(), it.drafts.clone(), it.seq_lens.clone()]
    packed = pack_round(it, **arguments)
    expected = reference.pack(
        it.anchor, it.drafts, it.seq_lens, it.plan, max_rows=it.max_rows, **arguments
    )
    for name in expected._fields:
        mine, theirs = getattr(packed, name), getattr(expected, name)
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), name
    for before, after in zip(given, [it.anchor, it.drafts, it.seq_lens]):
        assert torch.equal(before, after)
    assert packed.num_drafts == width


@pytest.mark.parametrize("spare", [0, 1, 50], ids=lambda n: f"padding={n}")
def test_padding_rows_write_nothing(spare):
    it = random_round(5, 4, seed=2, spare=spare)
    packed = pack_round(it)
    live = int(it.plan.num_rows)
    assert packed.input_ids.numel() == live + spare
    assert (packed.slot_mapping[:live] >= 0).all() and (packed.request_ids[:live] >= 0).all()
    assert packed.slot_mapping[live:].tolist() == [-1] * spare
    assert packed.request_ids[live:].tolist() == [-1] * spare
    assert packed.input_ids[live:].tolist() == [0] * spare
    assert packed.positions[live:].tolist() == [0] * spare


def test_pack_by_hand():
    packed = verify.pack(
        torch.tensor([10, 20, 30]),
        torch.tensor([[11, 12], [21, 22], [-1, 32]]),
        torch.tensor([3, 8, 0]),
        plan_of([2, 0, 1]),
        max_rows=7,
        block_table=torch.tensor([[5, 9], [7, 1], [2, -1]], dtype=torch.int32),
        block_size=5,
    )
    assert packed.input_ids.tolist() == [10, 11, 12, 20, 30, 0, 0]
    assert packed.positions.tolist() == [3, 4, 5, 8, 0, 1, 0]
    assert packed.request_ids.tolist() == [0, 0, 0, 1, 2, 2, -1]
    assert packed.slot_mapping.tolist() == [28, 29, 45, 8, 10, 11, -1]


def test_pack_takes_int32_ids():
    it = random_round(4, 3, seed=3)
    narrow = verify.pack(
        it.anchor.int(), it.drafts.int(), it.seq_lens.int(), it.plan, max_rows=it.max_rows
    )
    for mine, theirs in zip(narrow[:4], pack_round(it)[:4]):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 2)], ids=lambda shape: f"row={list(shape)}")
def test_unpack_equals_the_reference(dtype, shape):
    it = random_round(6, 4, seed=4)
    rows = torch.randint(1, 100, (it.max_rows, *shape), generator=it.generator).to(dtype)
    packed = pack_round(it)
    for fill in (0, -7):
        mine = verify.unpack(rows, packed, fill)
        assert mine.dtype == dtype
        assert torch.equal(mine, reference.unpack(rows, it.plan, it.width, fill))


def test_unpack_does_not_spread_bad_rows():
    """Padding rows may hold anything; missing entries are the fill value, not 0 * NaN."""
    it = random_round(3, 4, seed=6)
    rows = torch.full((it.max_rows, 2), float("nan"))
    rows[: int(it.plan.num_rows)] = 1.0
    assert torch.isfinite(verify.unpack(rows, pack_round(it))).all()


@pytest.mark.parametrize(("batch", "width"), ROUNDS, ids=lambda n: str(n))
def test_pack_then_unpack_returns_the_block(batch, width):
    it = random_round(batch, width, seed=7)
    packed = pack_round(it)
    block = torch.cat([it.anchor[:, None], it.drafts.clamp(min=0)], 1)
    inside = torch.arange(width + 1) <= it.plan.verify_lens[:, None]
    assert torch.equal(verify.unpack(packed.input_ids, packed, -9), block.where(inside, -9))
    steps = it.seq_lens[:, None] + torch.arange(width + 1)
    assert torch.equal(verify.unpack(packed.positions, packed, -9), steps.where(inside, -9))


class Output(NamedTuple):
    """What `commit` reads of a RejectionOutput."""

    num_emitted: torch.Tensor
    last_token: torch.Tensor


def emitted(it):
    most = it.plan.verify_lens + 1
    share = torch.rand(most.shape, generator=it.generator)
    return Output(
        num_emitted=(1 + share * most).floor().clamp(max=most).to(torch.int32),
        last_token=torch.randint(0, 1000, most.shape, generator=it.generator),
    )


@pytest.mark.parametrize(("batch", "width"), ROUNDS, ids=lambda n: str(n))
def test_commit_equals_the_reference(batch, width):
    it = random_round(batch, width, seed=8)
    output, packed = emitted(it), pack_round(it)
    given = [output.num_emitted.clone(), output.last_token.clone(), it.seq_lens.clone()]
    after = verify.commit(output, packed, it.seq_lens)
    expected = reference.commit(
        output.num_emitted, output.last_token, it.seq_lens, it.plan, it.max_rows
    )
    for name in expected._fields:
        mine, theirs = getattr(after, name), getattr(expected, name)
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), name
    for before, now in zip(given, [output.num_emitted, output.last_token, it.seq_lens]):
        assert torch.equal(before, now)


def test_commit_keeps_exactly_the_accepted_rows():
    """accepted + 1 rows: the anchor and the accepted drafts, a prefix of the request's rows."""
    it = random_round(9, 6, seed=9)
    output, packed = emitted(it), pack_round(it)
    after = verify.commit(output, packed, it.seq_lens)
    for request in range(9):
        mine = packed.request_ids == request
        kept = after.row_kept[mine].tolist()
        accepted = int(output.num_emitted[request]) - 1
        rest = int(it.plan.verify_lens[request]) - accepted
        assert kept == [True] * (accepted + 1) + [False] * rest
        assert int(after.num_rejected[request]) == rest
        last = packed.positions[mine][kept.index(False) - 1 if rest else -1]
        assert int(after.seq_lens[request]) == int(last) + 1
    assert not after.row_kept[packed.request_ids < 0].any()


def test_commit_by_hand():
    plan = plan_of([2, 0, 3])
    drafts = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    packed = verify.pack(
        torch.tensor([50, 51, 52]), drafts, torch.tensor([4, 9, 0]), plan, max_rows=10
    )
    output = Output(
        num_emitted=torch.tensor([2, 1, 4], dtype=torch.int32),
        last_token=torch.tensor([77, 78, 79]),
    )
    after = verify.commit(output, packed, torch.tensor([4, 9, 0]))
    assert after.seq_lens.tolist() == [6, 10, 4]
    assert after.anchor.tolist() == [77, 78, 79]
    assert after.row_kept.int().tolist() == [1, 1, 0, 1, 1, 1, 1, 1, 0, 0]
    assert after.num_rejected.tolist() == [1, 0, 0]


def test_a_request_that_emitted_nothing_keeps_nothing():
    plan = plan_of([1, 1])
    packed = verify.pack(
        torch.tensor([1, 2]), torch.tensor([[3], [4]]), torch.tensor([0, 5]), plan, max_rows=4
    )
    output = Output(
        num_emitted=torch.tensor([0, 2], dtype=torch.int32), last_token=torch.tensor([-1, 8])
    )
    after = verify.commit(output, packed, torch.tensor([0, 5]))
    assert after.row_kept.tolist() == [False, False, True, True]
    assert after.seq_lens.tolist() == [0, 7]


def pack_arguments(**changes):
    arguments = {
        "anchor": torch.tensor([1, 2]),
        "draft_token_ids": torch.tensor([[3, 4], [5, 6]]),
        "seq_lens": torch.tensor([4, 5]),
        "schedule": plan_of([2, 1]),
        "max_rows": 6,
    }
    return {**arguments, **changes}


TABLE = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"anchor": torch.tensor([1])}, "anchor"),
        ({"anchor": torch.tensor([1, -1])}, "anchor"),
        ({"draft_token_ids": torch.tensor([3, 4])}, "draft_token_ids"),
        ({"draft_token_ids": torch.zeros(3, 2, dtype=torch.int64)}, "got [2]"),
        ({"draft_token_ids": torch.zeros(2, 1, dtype=torch.int64)}, "verify_lens"),
        ({"seq_lens": torch.tensor([4, 5, 6])}, "seq_lens"),
        ({"seq_lens": torch.tensor([-1, 5])}, "seq_lens"),
        ({"max_rows": 4}, "max_rows"),
        ({"block_table": TABLE}, "block_size"),
        ({"block_table": TABLE, "block_size": 0}, "block_size"),
        ({"block_table": TABLE[0], "block_size": 4}, "block_table"),
        ({"block_table": TABLE[:1], "block_size": 4}, "block_table"),
        ({"block_table": TABLE, "block_size": 3}, "block_table"),
        ({"block_table": TABLE - 2, "block_size": 4}, "block_table"),
        ({"schedule": plan_of([2, 1, 0])}, "verify_lens"),
        (
            {"schedule": plan_of([2, 1])._replace(query_start_loc=torch.tensor([0, 3]))},
            "query_start_loc",
        ),
        (
            {
                "schedule": plan_of([2, 1])._replace(
                    query_start_loc=torch.tensor([0, 100, 5], dtype=torch.int32)
                )
            },
            "query_start_loc",
        ),
    ],
)
def test_pack_errors_name_operator_and_argument(changes, word):
    arguments = pack_arguments(**changes)
    positional = [arguments.pop(n) for n in ("anchor", "draft_token_ids", "seq_lens", "schedule")]
    with pytest.raises((RuntimeError, ValueError)) as error:
        verify.pack(*positional, **arguments)
    assert "dspark_ext.pack" in str(error.value) and word in str(error.value)


@pytest.mark.parametrize(
    ("num_emitted", "last_token", "seq_lens", "word"),
    [
        ([1, 1, 1], [1, 1], [0, 0], "got [2]"),
        ([4, 1], [1, 1], [0, 0], "num_emitted"),
        ([-1, 1], [1, 1], [0, 0], "num_emitted"),
        ([1, 1], [1], [0, 0], "last_token"),
        ([1, 1], [1, 1], [0, 0, 0], "seq_lens"),
    ],
)
def test_commit_errors_name_operator_and_argument(num_emitted, last_token, seq_lens, word):
    arguments = pack_arguments()
    packed = verify.pack(
        arguments["anchor"],
        arguments["draft_token_ids"],
        arguments["seq_lens"],
        arguments["schedule"],
        max_rows=6,
    )
    output = Output(
        num_emitted=torch.tensor(num_emitted, dtype=torch.int32),
        last_token=torch.tensor(last_token),
    )
    with pytest.raises((RuntimeError, ValueError)) as error:
        verify.commit(output, packed, torch.tensor(seq_lens))
    assert "dspark_ext.commit" in str(error.value) and word in str(error.value)


def test_unpack_error_names_operator_and_argument():
    packed = pack_round(random_round(3, 2, seed=1))
    with pytest.raises(ValueError, match="dspark_ext.unpack: rows"):
        verify.unpack(torch.zeros(1, 4), packed)


# --- registration --------------------------------------------------------------------------------


def test_opcheck():
    it = random_round(3, 4, seed=11)
    plan = it.plan
    torch.library.opcheck(
        torch.ops.dspark_ext.pack.default,
        (
            it.anchor,
            it.drafts,
            it.seq_lens,
            plan.verify_lens,
            plan.query_start_loc,
            it.max_rows,
            None,
            0,
        ),
    )
    torch.library.opcheck(
        torch.ops.dspark_ext.pack.default,
        (it.anchor, it.drafts, it.seq_lens, plan.verify_lens, plan.query_start_loc)
        + (it.max_rows, it.table, 5),
    )
    output = emitted(it)
    torch.library.opcheck(
        torch.ops.dspark_ext.commit.default,
        (output.num_emitted, output.last_token, it.seq_lens, plan.query_start_loc, it.max_rows),
    )


def test_one_round_compiles_in_one_graph():
    def one_round(anchor, drafts, seq_lens, confidence, emitted_fraction, stats):
        plan = verify.schedule(confidence, mode="threshold", threshold=0.5)
        packed = verify.pack(anchor, drafts, seq_lens, plan, max_rows=24)
        count = 1 + (emitted_fraction * (plan.verify_lens + 1)).floor().to(torch.int32)
        output = Output(num_emitted=count, last_token=anchor)
        stats.update(plan.verify_lens, count - 1)
        return (
            packed,
            verify.unpack(packed.positions, packed),
            verify.commit(output, packed, seq_lens),
        )

    compiled = torch.compile(one_round, fullgraph=True, backend="aot_eager")
    it = random_round(4, 5, seed=13)
    inputs = (it.anchor, it.drafts, it.seq_lens, torch.rand(4, 5, generator=it.generator))
    fraction = torch.rand(4, generator=it.generator) * 0.99
    results, counters = [], []
    for function in (one_round, compiled):
        stats = verify.AcceptanceStats(4, 5)
        results.append(torch.utils._pytree.tree_leaves(function(*inputs, fraction, stats)))
        counters.append(torch.cat([stats.verified, stats.reached, stats.histogram], 1))
    assert int(counters[0].sum()) > 0 and torch.equal(*counters)
    for eager, graph in zip(*results):
        assert eager == graph if isinstance(eager, int) else torch.equal(eager, graph)
