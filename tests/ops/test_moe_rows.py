"""`moe.permute` and `moe.combine`: copies are exact, sums are one stated chain."""

import moe_sweep as sweep
import pytest
import torch
from kit import FLOATS, bits_equal, name

from dspark_ext import moe
from dspark_ext.reference import moe as reference

OPS = torch.ops.dspark_ext
SIZES = [(0, 2, 4), (1, 1, 1), (5, 3, 8), (33, 4, 7), (64, 8, 33), (17, 40, 5)]
WIDTHS = (1, 7, 8, 16, 129, 515, 1024)
EPSILON = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def cases():
    for seed, (tokens, k, experts) in enumerate(SIZES):
        for kind in ("uniform", "holes", "none"):
            yield seed, sweep.plan_case(seed, tokens, k, experts, kind)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.float64, torch.bool], ids=str)
def test_permute(dtype):
    for seed, case in cases():
        for width in WIDTHS:
            given = sweep.rows_case(seed, case, width, torch.float32)
            x = (given["x"] * 50).to(dtype)
            plan = given["plan"]
            got = moe.permute(x, plan)
            assert got.dtype == dtype
            assert bits_equal(got, reference.permute(x, plan.sorted, plan.inverse.shape[1]))


@pytest.mark.parametrize("columns", [slice(0, 24), slice(1, 25), slice(0, 48, 2)])
def test_permute_takes_any_strides(columns):
    ids, experts, *_ = sweep.plan_case(1, 20, 3, 6, "holes")
    plan = moe.plan(ids, experts, alignment=4)
    wide = torch.randn(20, 50)
    got = moe.permute(wide[:, columns], plan)
    assert torch.equal(got, moe.permute(wide[:, columns].contiguous(), plan))


def combine(given: dict) -> torch.Tensor:
    return moe.combine(
        given["y"], given["plan"], given["weights"],
        shared=given["shared"], residual=given["residual"],
    )  # fmt: skip


def chain(given: dict) -> torch.Tensor:
    """The sum step by step: an fma is one rounding of what float64 holds exactly, or nearly so."""
    y, inverse = given["y"], given["plan"].inverse
    total = torch.zeros(inverse.shape[0], y.shape[1])
    for j in range(inverse.shape[1]):
        here = inverse[:, j] >= 0
        product = given["weights"][here, j].double()[:, None] * y[inverse[here, j]].double()
        total[here] = (product + total[here].double()).float()
    for addend in (given["shared"], given["residual"]):
        if addend is not None:
            total = total + addend.float()
    return total.to(y.dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_combine(dtype):
    for seed, case in cases():
        for width in WIDTHS:
            given = sweep.rows_case(seed, case, width, dtype)
            got = combine(given)
            assert got.dtype == dtype and got.shape == (len(case[0]), width)
            exact = reference.combine(
                given["y"], given["plan"].inverse, given["weights"], given["shared"],
                given["residual"],
            )  # fmt: skip
            magnitude = reference.combine(
                given["y"].abs(), given["plan"].inverse, given["weights"],
                *(x if x is None else x.abs() for x in (given["shared"], given["residual"])),
            )  # fmt: skip
            slots = given["plan"].inverse.shape[1] + 2
            bound = EPSILON[dtype] * exact.abs() + slots * 2**-24 * magnitude + 2**-24
            assert ((got.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_combine_is_the_stated_chain(dtype):
    """Bit by bit, where float64 holds product and sum exactly: 16-bit rows and weights."""
    for seed, case in cases():
        given = sweep.rows_case(seed, case, 70, dtype)
        given["weights"] = given["weights"].to(torch.bfloat16)
        if dtype == torch.float32:
            given["y"] = given["y"].to(torch.bfloat16).float()
        assert bits_equal(combine(given), chain(given))


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_a_token_does_not_depend_on_the_others(dtype):
    case = sweep.plan_case(3, 50, 4, 9, "holes")
    given = sweep.rows_case(3, case, 133, dtype)
    together = combine(given)
    for t in (0, 7, 49):
        alone = {
            key: given[key] if given[key] is None else given[key][t : t + 1]
            for key in ("weights", "shared", "residual")
        }
        plan = moe.plan(case[0][t : t + 1], 9)
        alone["y"] = given["y"].new_zeros(len(plan.sorted), 133)
        here = plan.inverse[0] >= 0
        alone["y"][plan.inverse[0, here]] = given["y"][given["plan"].inverse[t, here]]
        assert bits_equal(combine({**alone, "plan": plan})[0], together[t])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_matter(threads):
    case = sweep.plan_case(5, 600, 6, 33, "holes")
    given = sweep.rows_case(5, case, 700, torch.bfloat16)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        want = combine(given), moe.permute(given["x"], given["plan"])
        torch.set_num_threads(threads)
        got = combine(given), moe.permute(given["x"], given["plan"])
    finally:
        torch.set_num_threads(before)
    assert bits_equal(want[0], got[0]) and bits_equal(want[1], got[1])


def test_weights_of_any_stride_and_dtype():
    ids = torch.arange(12).reshape(4, 3) % 5
    plan = moe.plan(ids, 5)
    y = torch.randn(12, 40)
    weights = torch.rand(4, 3).bfloat16()
    want = moe.combine(y, plan, weights)
    assert torch.equal(moe.combine(y, plan, weights.float()), want)
    assert torch.equal(moe.combine(y, plan, weights.T.contiguous().T), want)
    assert torch.equal(moe.combine(y, plan, weights.repeat(1, 2)[:, 3:]), want)
    ones = torch.ones(1, 1).expand(4, 3)
    assert torch.equal(moe.combine(y, plan, ones), moe.combine(y, plan, torch.ones(4, 3)))


def test_shared_then_residual():
    """Values of very different size: the order of the additions shows."""
    plan = moe.plan(torch.zeros(1, 1, dtype=torch.int64), 1)
    y, big = torch.ones(1, 1), torch.full((1, 1), 2.0**25)
    weights = torch.ones(1, 1)
    assert moe.combine(y, plan, weights, shared=big, residual=-big).item() == 0.0
    assert moe.combine(y * 4, plan, weights, shared=big, residual=-big).item() == 4.0
    assert moe.combine(big, plan, weights, shared=-big, residual=y).item() == 1.0


def test_a_zero_sum_is_positive():
    plan = moe.plan(torch.tensor([[0, 1], [-1, -1]]), 2)
    out = moe.combine(torch.full((4, 3), -0.0), plan, torch.ones(2, 2))
    assert not out.signbit().any()


def test_the_round_trip_of_one_slot_is_the_identity():
    for dtype in FLOATS:
        ids, *_ = sweep.plan_case(0, 77, 1, 9, "uniform")
        plan = moe.plan(ids, 9, alignment=8)
        x = torch.randn(77, 33).to(dtype)
        back = moe.combine(moe.permute(x, plan), plan, torch.ones(77, 1))
        assert torch.equal(back, x)


def test_gathered_rows_are_those_of_permute():
    """How a GEMM addresses x through the plan (docs/moe.md)."""
    ids, *_ = sweep.plan_case(2, 31, 5, 12, "holes")
    plan = moe.plan(ids, 12, alignment=4, tile_rows=8)
    x = torch.randn(31, 6)
    permuted = moe.permute(x, plan)
    for t in range(int(plan.num_tiles)):
        first, size = int(plan.tile_row[t]), int(plan.tile_size[t])
        slots = plan.sorted[first : first + size]
        assert torch.equal(x[slots // 5], permuted[first : first + size])
        assert torch.equal(ids.flatten()[slots].long(), plan.tile_expert[t].expand(size).long())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.zeros(6, 4, dtype=torch.int32)}, r"y: .*got int32"),
        ({"y": torch.zeros(6)}, r"y: expected shape \[rows, d\], got \[6\]"),
        ({"weights": torch.zeros(3, 3)}, r"weights: expected shape \[T=3, k=2\], got \[3, 3\]"),
        ({"weights": torch.zeros(3, 2, dtype=torch.float64)}, "weights: .*got float64"),
        ({"shared": torch.zeros(3, 5)}, r"shared: expected shape \[T=3, d=4\], got \[3, 5\]"),
        ({"residual": torch.zeros(3, 4).half()}, "residual: expected dtype float32, got float16"),
        ({"y": torch.zeros(5, 4)}, "inverse: expected rows below 5, got 5 for slot 5"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_combine_refuses(change, message):
    plan = moe.plan(torch.arange(6).reshape(3, 2), 6)
    given = {"y": torch.zeros(6, 4), "weights": torch.zeros(3, 2)} | change
    with pytest.raises(RuntimeError, match=r"dspark_ext\.combine: " + message):
        moe.combine(given.pop("y"), plan, given.pop("weights"), **given)


def test_permute_refuses():
    plan = moe.plan(torch.arange(6).reshape(3, 2), 6)
    for x, message in [
        (torch.zeros(4, 2), r"x: expected shape \[T=3, d\], got \[4, 2\]"),
        (torch.zeros(3), r"x: expected shape"),
    ]:
        with pytest.raises(RuntimeError, match=r"dspark_ext\.permute: " + message):
            moe.permute(x, plan)
    with pytest.raises(RuntimeError, match="inverse: expected rows below 6, got 6 for slot 2"):
        bad = plan.inverse.clone()
        bad[1, 0] = 6
        moe.permute(torch.zeros(3, 2), plan._replace(inverse=bad))
    with pytest.raises(RuntimeError, match=r"sorted: expected dtype int64, got int32"):
        moe.permute(torch.zeros(3, 2), plan._replace(sorted=plan.sorted.int()))


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_opcheck(dtype):
    given = sweep.rows_case(3, sweep.plan_case(1, 9, 3, 5, "holes"), 6, dtype)
    plan = given["plan"]
    torch.library.opcheck(OPS.permute.default, (given["x"], plan.sorted, plan.inverse))
    torch.library.opcheck(
        OPS.combine.default,
        (given["y"], plan.inverse, given["weights"], given["shared"], given["residual"]),
    )
