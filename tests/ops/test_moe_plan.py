"""`moe.plan` against a stable argsort, over every size; nothing here is approximate."""

import itertools

import moe_sweep as sweep
import numpy as np
import pytest
import torch
from kit import bits_equal

from dspark_ext import moe

OPS = torch.ops.dspark_ext


def same_plans(a, b) -> bool:
    pairs = zip(a, b, strict=True)
    return all(x.dtype == y.dtype and bits_equal(x.reshape(-1), y.reshape(-1)) for x, y in pairs)


@pytest.mark.parametrize("experts", sweep.EXPERTS)
@pytest.mark.parametrize("tokens", [t for t in sweep.TOKENS if t <= 1025])
def test_plan(tokens, experts):
    for k in (1, 2, 3, 4, 5, 8, 10, 16):
        case = sweep.plan_case(7, tokens, k, experts)
        sweep.check_plan(OPS.plan(*case), case)


@pytest.mark.parametrize("kind", sweep.KINDS)
@pytest.mark.parametrize("k", sweep.SLOTS)
def test_kinds_of_ids(kind, k):
    for tokens, experts in ((33, 8), (257, 129), (17, 384)):
        for seed in range(3):
            case = sweep.plan_case(seed, tokens, k, experts, kind)
            sweep.check_plan(OPS.plan(*case), case)


@pytest.mark.parametrize("kind", sweep.KINDS)
def test_many_tokens(kind):
    for k, experts in ((8, 256), (3, 128), (6, 1025)):
        case = sweep.plan_case(1, 4097, k, experts, kind)
        sweep.check_plan(OPS.plan(*case), case)


@pytest.mark.slow
@pytest.mark.parametrize("experts", sweep.EXPERTS)
@pytest.mark.parametrize("tokens", [t for t in sweep.TOKENS if t > 1025])
def test_every_k_of_many_tokens(tokens, experts):
    for k in sweep.SLOTS:
        case = sweep.plan_case(3, tokens, k, experts, "holes" if k % 2 else "skewed")
        sweep.check_plan(OPS.plan(*case), case)


@pytest.mark.slow
def test_a_million_tokens():
    case = sweep.plan_case(3, 1_000_000, 8, 256, "holes")
    sweep.check_plan(OPS.plan(*case), case)


@pytest.mark.parametrize("alignment", [1, 2, 3, 7, 16, 64, 128, 1000, 2**20])
def test_alignment(alignment):
    for tokens, k, experts in ((0, 3, 5), (1, 1, 3), (40, 3, 7), (300, 2, 1)):
        ids, *_ = sweep.plan_case(2, tokens, k, experts, "uniform")
        case = (ids, experts, alignment, None, alignment)
        got = moe.DispatchPlan(*OPS.plan(*case))
        sweep.check_plan(got, case)
        assert not (got.offsets % alignment).any()


# ---- capacity -----------------------------------------------------------------------------------


def test_capacity_is_what_is_allocated_and_enough():
    for tokens, k, experts, unit in itertools.product((0, 1, 5, 33), (1, 3), (1, 4, 64), (1, 4, 7)):
        room = moe.plan_capacity(tokens, k, experts, unit, unit)
        for seed in range(4):
            ids, *_ = sweep.plan_case(seed, tokens, k, experts)
            plan = moe.plan(ids, experts, alignment=unit, tile_rows=unit)
            assert len(plan.sorted) == room.rows and len(plan.tile_expert) == room.tiles
            assert plan.total <= room.rows and plan.num_tiles <= room.tiles


def test_capacity_is_reached():
    """The bound is the least: as many rows do occur."""
    for slots, experts, alignment in itertools.product(range(9), range(1, 6), range(1, 6)):
        most = max(
            sum(-(-count // alignment) * alignment for count in counts)
            for counts in itertools.product(range(slots + 1), repeat=experts)
            if sum(counts) <= slots
        )
        assert moe.plan_capacity(slots, 1, experts, alignment).rows == most


def test_capacity_of_large_sizes():
    assert moe.plan_capacity(640, 3, 128, 64).rows == (1920 + 128 * 63) // 64 * 64
    assert moe.plan_capacity(2**31, 8, 4096, 128, 256) == (
        (2**34 + 4096 * 127) // 128 * 128,
        (2**34 + 4096 * 255) // 256,
    )
    assert moe.plan_capacity(10, 2, 4, 16) == (80, 0)


# ---- what a plan does not depend on -------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_do_not_matter(threads):
    case = sweep.plan_case(11, 20_000, 8, 257, "holes")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        sweep.check_plan(OPS.plan(*case), case)
    finally:
        torch.set_num_threads(before)


def test_strides_do_not_matter():
    ids, *rest = sweep.plan_case(5, 100, 4, 31, "holes")
    want = OPS.plan(ids, *rest)
    wide = torch.full((100, 9), 3, dtype=ids.dtype)
    wide[:, 2:6] = ids
    assert same_plans(want, OPS.plan(wide[:, 2:6], *rest))
    assert same_plans(want, OPS.plan(ids.T.contiguous().T, *rest))
    double = ids.repeat_interleave(2, 0)
    assert same_plans(want, OPS.plan(double[::2], *rest))
    one = torch.full((1, 1), 4, dtype=torch.int64).expand(50, 3)
    assert same_plans(OPS.plan(one, *rest), OPS.plan(one.contiguous(), *rest))
    a_map = torch.arange(62, dtype=torch.int32)[::2]
    assert same_plans(OPS.plan(ids, 31, 1, a_map, 0), OPS.plan(ids, 31, 1, a_map.contiguous(), 0))


def test_an_expert_map_is_applied_once():
    """Four ranks of two experts, each with a map: together they place every slot once."""
    ids = torch.from_numpy(np.random.default_rng(1).integers(-1, 8, (50, 3)))
    placed = torch.zeros(50, 3, dtype=torch.int64)
    for rank in range(4):
        expert_map = torch.full((8,), -1, dtype=torch.int32)
        expert_map[2 * rank : 2 * rank + 2] = torch.tensor([1, 0], dtype=torch.int32)
        plan = moe.plan(ids, 2, expert_map=expert_map)
        placed += plan.inverse >= 0
        assert plan.counts.tolist() == [(ids == 2 * rank + 1).sum(), (ids == 2 * rank).sum()]
    assert torch.equal(placed, (ids >= 0).long())


# ---- refusals, meta, compile --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": torch.zeros(3, 2)}, "ids: expected dtype int32 or int64, got float32"),
        ({"ids": torch.zeros(3, 2, dtype=torch.int16)}, "ids: .*got int16"),
        ({"ids": torch.zeros(3, dtype=torch.int64)}, r"ids: expected shape \[T, k\], got \[3\]"),
        ({"num_experts": 0}, "num_experts: expected 1 to 4096, got 0"),
        ({"num_experts": 4097}, "num_experts: expected 1 to 4096, got 4097"),
        ({"alignment": 0}, "alignment: expected 1 to 1048576, got 0"),
        ({"tile_rows": 2**20 + 1}, "tile_rows: expected 0 to 1048576, got 1048577"),
        ({"expert_map": torch.zeros(4)}, "expert_map: expected dtype int32, got float32"),
        ({"expert_map": torch.zeros(4, dtype=torch.int64)}, "expert_map: .*got int64"),
        ({"expert_map": torch.zeros(2, 2, dtype=torch.int32)}, r"expert_map: .*\[num_ids\]"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_refusals(change, message):
    given = {"ids": torch.zeros(3, 2, dtype=torch.int64), "num_experts": 4} | change
    with pytest.raises(RuntimeError, match=r"dspark_ext\.plan: " + message):
        moe.plan(**given)


def test_tiles_of_no_rows_are_refused():
    with pytest.raises(RuntimeError, match=r"dspark_ext\.plan: tile_rows: expected at least 1"):
        moe.plan(torch.zeros(1, 1, dtype=torch.int64), 1, tile_rows=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_tokens": -1}, "num_tokens: expected at least 0, got -1"),
        ({"k": -1}, "k: expected at least 0, got -1"),
        ({"num_experts": 0}, "num_experts: expected at least 1, got 0"),
        ({"alignment": 0}, "alignment: expected at least 1, got 0"),
        ({"tile_rows": 0}, "tile_rows: expected at least 1, got 0"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_capacity_refusals(change, message):
    with pytest.raises(RuntimeError, match=r"dspark_ext\.plan_capacity: " + message):
        moe.plan_capacity(**{"num_tokens": 3, "k": 2, "num_experts": 4} | change)


@pytest.mark.parametrize("kind", ["holes", "map"])
def test_opcheck(kind):
    case = sweep.plan_case(1, 9, 3, 5, kind)
    torch.library.opcheck(OPS.plan.default, case)
    torch.library.opcheck(OPS.plan.default, sweep.plan_case(1, 0, 3, 5, kind))


def test_meta_has_the_shapes():
    for tokens, k, experts in ((0, 2, 3), (7, 3, 5), (40, 8, 256)):
        ids, *rest = sweep.plan_case(4, tokens, k, experts, "holes")
        for real, fake in zip(OPS.plan(ids, *rest), OPS.plan(ids.to("meta"), *rest), strict=True):
            assert real.shape == fake.shape and real.dtype == fake.dtype


def test_one_compilation_for_every_number_of_tokens():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    def step(ids, x, weights):
        plan = moe.plan(ids, 16, alignment=4)
        return moe.combine(moe.permute(x, plan), plan, weights)

    run = torch.compile(step, dynamic=True, backend=backend, fullgraph=True)
    for tokens in (5, 9, 33):
        ids, *_ = sweep.plan_case(0, tokens, 4, 16, "uniform")
        ids, x, weights = ids.long(), torch.randn(tokens, 8), torch.rand(tokens, 4)
        assert torch.equal(run(ids, x, weights), step(ids, x, weights))
    assert len(compiled) == 1
