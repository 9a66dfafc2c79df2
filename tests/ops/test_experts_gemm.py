"""Exact `moe.grouped_gemm`, and `moe.swiglu`: against float64, as the stated sum, and what must
not matter."""

import expert_sweep as sweep
import pytest
import torch
from kit import FLOATS, bits_equal, name

from dspark_ext import formats, moe
from dspark_ext.reference import moe_gemm as reference

# Relative L2: rounding to the dtype, and float32 sums in 16 lanes.
BOUND = {torch.float32: 5e-7, torch.bfloat16: 2.5e-3, torch.float16: 3e-4}


def multiply(x, weights, plan, **options):
    return moe.grouped_gemm(
        x, weights.weight, plan, **weights.options(), **{"exact": True, **options}
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("kind", sweep.KINDS)
def test_against_float64(kind, dtype):
    for seed, (tokens, k, experts, width) in enumerate([(1, 1, 1, 64), (33, 3, 8, 200)]):
        weights = sweep.make_weights(kind, (experts, 70, width), seed)
        plan = sweep.make_plan(tokens, k, experts, seed, alignment=1 + 3 * seed)
        x = sweep.make_rows(tokens, width, dtype, seed)
        want = reference.grouped_gemm(x, weights.exact, plan)
        got = multiply(x, weights, plan)
        assert got.dtype == dtype and got.shape == want.shape
        assert sweep.relative_error(got, want) < BOUND[dtype]
        in_float = multiply(x, weights, plan, dtype=torch.float32)
        assert sweep.relative_error(in_float, want) < BOUND[torch.float32]
        assert bits_equal(got, in_float.to(dtype))


def stated_sum(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[N] float32 from x [K] and weight [N, K]; exact where float64 holds product and sum."""
    columns = -(-len(x) // 16) * 16
    pad = (0, columns - len(x))
    rows = torch.nn.functional.pad(weight.float(), pad).double()
    vector = torch.nn.functional.pad(x.float(), pad).double()
    lanes = torch.zeros(len(rows), 16)
    for k in range(0, columns, 16):
        lanes = (rows[:, k : k + 16] * vector[k : k + 16] + lanes.double()).float()
    for half in (8, 4, 2, 1):
        lanes = lanes[:, :half] + lanes[:, half : 2 * half]
    return lanes[:, 0]


@pytest.mark.parametrize("kind", ["bf16", "fp8-128", "fp8-32", "fnuz-128", "mxfp4"])
def test_is_the_stated_sum(kind):
    """Bit by bit, with 16-bit rows and weights of at most 8 significant bits."""
    for width in (1, 15, 16, 17, 40, 352):
        width += width % 2 if kind == "mxfp4" else 0
        weights = sweep.make_weights(kind, (3, 21, width))
        if weights.scales is not None:  # powers of two, so that a product has few digits
            weights = weights._replace(scales=torch.exp2(weights.scales.float().log2().round()))
            exact = formats.dequantize(
                weights.weight, weights.scales, weights.format, block=weights.block
            )
            weights = weights._replace(exact=exact)
        plan = sweep.make_plan(9, 2, 3)
        x = sweep.make_rows(9, width, torch.bfloat16)
        got = multiply(x, weights, plan, dtype=torch.float32)
        for row, expert in enumerate(reference.expert_of_rows(plan).tolist()):
            if expert >= 0:
                token = int(plan.sorted[row]) // 2
                assert bits_equal(got[row], stated_sum(x[token], weights.exact[expert]))


# ---- codes --------------------------------------------------------------------------------------


def decode_through(codes, scales, format, block, rows: int = 1):
    """float32 [rows, N]: one-hot rows of x against one expert's codes."""
    plan = moe.plan(torch.zeros(rows, 1, dtype=torch.int32), 1, tile_rows=4)
    return moe.grouped_gemm(
        torch.eye(rows), codes[None], plan, scales=scales[None], format=format, block=block,
        exact=True,
    )  # fmt: skip


def same_numbers(got, want) -> bool:
    return torch.equal(got.nan_to_num(12345.0), want.nan_to_num(12345.0))


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e4m3fnuz"])
def test_every_fp8_code(format):
    codes = torch.arange(256, dtype=torch.uint8)
    for scale in (1.0, 0.375, 2.0**-20):
        scales = torch.full((1, 1), scale)
        got = decode_through(codes[:, None], scales, format, (256, 1))
        assert same_numbers(got[0], formats.decode(codes, format) * scale)
    finite = codes[formats.decode(codes, format).isfinite()]
    square = finite[:240].view(15, 16)  # none but the own code of a row counts
    got = decode_through(square, torch.ones(1, 1), format, (15, 16), 16)
    assert torch.equal(got.T, formats.decode(square, format))


def test_every_pair_of_fp4_codes():
    codes = torch.arange(256, dtype=torch.uint8)[:, None]
    got = decode_through(codes, torch.full((256, 1), 127, dtype=torch.uint8), "mxfp4", (1, 32), 2)
    assert torch.equal(got.T, formats.decode(codes, "fp4_e2m1"))


def test_every_e8m0_scale():
    scales = torch.arange(256, dtype=torch.uint8)[:, None]
    one = torch.full((256, 1), 0x38, dtype=torch.uint8)
    got = decode_through(one, scales, "fp8_e4m3", (1, 1))
    assert same_numbers(got[0], formats.decode(scales[:, 0], "e8m0"))
    pair = torch.full((256, 1), 0x22, dtype=torch.uint8)  # 1, 1
    got = decode_through(pair, scales, "mxfp4", (1, 2), 2)
    assert same_numbers(got[0], formats.decode(scales[:, 0], "e8m0"))


@pytest.mark.parametrize("kind", ["fp8-128", "fnuz-128", "mxfp4"])
def test_dtypes_of_codes(kind):
    """Codes come as bytes or in the dtype of their format, which then need not be named."""
    weights = sweep.make_weights(kind, (3, 40, 64))
    plan = sweep.make_plan(7, 2, 3)
    x = sweep.make_rows(7, 64, torch.bfloat16)
    want = multiply(x, weights, plan)
    as_bytes = weights._replace(
        weight=formats.as_bytes(weights.weight),
        scales=weights.scales
        if weights.scales.dtype == torch.float32
        else formats.as_bytes(weights.scales),
    )
    assert bits_equal(multiply(x, as_bytes, plan), want)
    if kind == "mxfp4":
        named = weights.weight.view(torch.float4_e2m1fn_x2)
        signed = weights._replace(weight=weights.weight.view(torch.int8))
        assert bits_equal(multiply(x, signed, plan), want)
    else:
        named = weights.weight
    got = moe.grouped_gemm(x, named, plan, scales=weights.scales, exact=True)
    assert bits_equal(got, want)


# ---- what must not matter -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bf16", "fp8-32", "mxfp4"])
def test_a_row_does_not_depend_on_the_others(kind):
    weights = sweep.make_weights(kind, (5, 100, 96))
    ids = torch.randint(0, 5, (70, 2), generator=torch.Generator().manual_seed(3))
    x = sweep.make_rows(70, 96, torch.bfloat16)
    plan = moe.plan(ids, 5, tile_rows=16)
    whole = multiply(x, weights, plan)[plan.inverse]
    for tile_rows, alignment in ((1, 1), (7, 4), (100, 16)):
        other = moe.plan(ids, 5, tile_rows=tile_rows, alignment=alignment)
        assert bits_equal(multiply(x, weights, other)[other.inverse], whole)
    for begin, end in ((0, 1), (69, 70), (13, 30)):
        part = moe.plan(ids[begin:end], 5, tile_rows=16)
        got = multiply(x[begin:end], weights, part)[part.inverse]
        assert bits_equal(got, whole[begin:end])


@pytest.mark.parametrize("kind", ["fp32", "fp8-128"])
def test_threads_and_repeats_do_not_matter(kind):
    weights = sweep.make_weights(kind, (9, 130, 72))
    plan = sweep.make_plan(50, 3, 9)
    x = sweep.make_rows(50, 72, torch.bfloat16)
    before = torch.get_num_threads()
    want = multiply(x, weights, plan)
    try:
        for repeat in range(100):
            torch.set_num_threads(1 + repeat % 5)
            assert bits_equal(multiply(x, weights, plan), want)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_gathered_and_permuted_rows(dtype):
    weights = sweep.make_weights("bf16", (6, 33, 50))
    plan = sweep.make_plan(20, 3, 6, alignment=4)
    wide = sweep.make_rows(20, 110, dtype)
    want = multiply(wide[:, 3:53].contiguous(), weights, plan)
    assert bits_equal(multiply(wide[:, 3:53], weights, plan), want)
    apart = wide[:, 3:103:2]
    assert bits_equal(multiply(apart, weights, plan), multiply(apart.contiguous(), weights, plan))
    permuted = moe.permute(wide[:, 3:53], plan)
    assert bits_equal(multiply(permuted, weights, plan, gather=False), want)


def test_rows_without_a_slot_are_zero():
    """NaN everywhere that is not to be read: in padding rows of x, and in other experts."""
    weights = sweep.make_weights("fp32", (4, 20, 30))
    weights.weight[3] = torch.nan
    plan = moe.plan(torch.tensor([[0, -1], [2, 9], [0, 1]]), 4, alignment=4, tile_rows=8)
    x = moe.permute(sweep.make_rows(3, 30, torch.float32), plan)
    unused = plan.sorted == plan.inverse.numel()
    assert unused.any()
    x[unused] = torch.nan
    got = multiply(x, weights, plan, gather=False)
    assert not got[unused].any() and got[~unused].isfinite().all()


@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("shape", [(2, 0, 16), (2, 16, 0), (1, 1, 1)], ids=str)
def test_empty_sizes(tokens, shape):
    plan = moe.plan(torch.zeros(tokens, 2, dtype=torch.int64), shape[0], tile_rows=8)
    got = moe.grouped_gemm(torch.ones(tokens, shape[2]), torch.ones(shape), plan)
    assert torch.equal(got, torch.full((2 * tokens, shape[1]), float(shape[2])))


def test_nan_and_infinity_stay_in_their_rows():
    weights = sweep.make_weights("bf16", (1, 8, 40))
    plan = moe.plan(torch.zeros(5, 1, dtype=torch.int64), 1, tile_rows=8)
    x = sweep.make_rows(5, 40, torch.float32)
    want = multiply(x, weights, plan)
    x[1, 7], x[3, 39] = torch.nan, torch.inf
    got = multiply(x, weights, plan)
    assert got[1].isnan().all() and not got[3].isfinite().any()
    assert bits_equal(got[[0, 2, 4]], want[[0, 2, 4]])


# ---- the activation of the products -------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("kind", sweep.KINDS)
def test_activation_is_swiglu_of_the_sums(kind, dtype):
    """In float32, rounded once; with gates and ups apart and in turns."""
    for seed, width in enumerate((2, 18, 34, 128, 130)):
        weights = sweep.make_weights(kind, (3, width, 40), seed)
        plan = sweep.make_plan(9 + 70 * (seed == 3), 2, 3, seed, alignment=1 + seed)
        x = sweep.make_rows(len(plan.inverse), 40, dtype, seed)
        limit = (None, 0.5)[seed % 2]
        sums = multiply(x, weights, plan, dtype=torch.float32)
        for interleaved in (False, True):
            want = moe.swiglu(sums, limit, interleaved=interleaved)
            how = {"activation": "swiglu", "interleaved": interleaved, "limit": limit}
            got = multiply(x, weights, plan, **how)
            assert got.dtype == dtype and got.shape == (len(sums), width // 2)
            assert bits_equal(got, want.to(dtype))
            assert not got[plan.sorted == plan.inverse.numel()].any()


# ---- swiglu -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 10.0, 0.5])
@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_swiglu(dtype, limit):
    for width in (0, 1, 16, 37, 300):
        halves = sweep.make_rows(9, 2 * width, dtype) * 6
        want = reference.swiglu(halves, limit)
        got = moe.swiglu(halves, limit)
        assert got.dtype == dtype and got.shape == (9, width)
        epsilon = {torch.float32: 4e-7, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
        assert ((got.double() - want).abs() <= epsilon * 1.01 * want.abs() + 2**-24).all()
        turns = halves.view(9, 2, width).transpose(1, 2).reshape(9, 2 * width)
        assert bits_equal(moe.swiglu(turns, limit, interleaved=True), got)


def test_swiglu_at_the_ends():
    inf, nan = torch.inf, torch.nan
    gate = torch.tensor([0.0, 100.0, -100.0, 1e30, -1e30, inf, nan, 1.0, -80.0])
    up = torch.tensor([5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, nan, 1.0])
    both = torch.cat([gate, up])[None]
    plain, clamped = moe.swiglu(both)[0], moe.swiglu(both, 10.0)[0]
    assert plain[:2].tolist() == [0.0, 100.0] and plain[5] == inf and plain[3] == 1e30
    assert plain[4] == 0.0 and abs(plain[2]) <= 1e-36
    assert plain[6:8].isnan().all() and clamped[6:8].isnan().all()
    ten = reference.swiglu(torch.tensor([[10.0, 1.0]]))[0, 0]
    assert clamped[1] == clamped[3] == clamped[5] == ten.float()
    assert plain[8].double() == pytest.approx(-80 * 1.8048513878454153e-35, rel=1e-6)
    assert moe.swiglu(torch.tensor([[1.0, 99.0], [1.0, -99.0]]), 2.0).tolist() == [
        [pytest.approx(2 * 0.7310585786)],
        [pytest.approx(-2 * 0.7310585786)],
    ]


# ---- refusals -----------------------------------------------------------------------------------

X, PLAN = torch.zeros(3, 8), moe.plan(torch.arange(6).reshape(3, 2), 6, tile_rows=4)
CODES = torch.zeros(6, 4, 8, dtype=torch.uint8)
SCALES = torch.ones(6, 1, 1)
FP8 = {"weight": CODES, "scales": SCALES, "format": "fp8_e4m3"}
GATED = {"activation": "swiglu"}
PAIRS = {"weight": torch.zeros(6, 1, 16, 16, 2).half(), "layout": "pairs", "size": (4, 8)}
PANELS = {"weight": torch.zeros(6, 1, 1, 8, 8, 8, 8).half(), "layout": "panels", "size": (4, 8)}
MX_PANELS = {
    **{"weight": torch.zeros(6, 1, 1, 8, 8, 8, 16).byte(), "layout": "panels", "size": (4, 8)},
    **{"format": "mxfp4", "scales": torch.zeros(6, 1, 1, 64, 8).byte()},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[:, :7]}, r"x: expected shape \[T=3, K=8\], got \[3, 7\]"),
        ({"x": torch.zeros(4, 8), "gather": False}, r"x: expected shape \[capacity=6, K=8\]"),
        ({"x": X.double(), "dtype": torch.float32}, "x: expected dtype float32 or bfloat16"),
        ({"x": X.double()}, "x: expected dtype float32 or bfloat16 or float16, got float64"),
        ({"dtype": torch.int32}, "dtype: expected float32 or bfloat16 or float16, got int32"),
        ({"weight": CODES}, "format: expected the format of the codes.* dtype uint8"),
        ({"weight": torch.zeros(6, 4, 8).double()}, "format: expected .* dtype float64"),
        ({"weight": torch.zeros(4, 8)}, r"weight: expected shape \[E, N, bytes or K\]"),
        ({"weight": torch.zeros(6, 8, 4).mT}, "weight: expected a contiguous tensor"),
        ({"weight": torch.zeros(0, 4, 8)}, "plan: expected tiles of experts below 0"),
        ({"scales": SCALES}, "scales: expected none for weights of dtype float32"),
        ({**FP8, "format": "fp8_e5m2"}, "format: expected fp8_e4m3, .*, got fp8_e5m2"),
        ({**FP8, "weight": torch.zeros(6, 4, 8)}, "weight: expected dtype uint8 or .* got float32"),
        ({**FP8, "weight": CODES.view(torch.float8_e4m3fnuz)}, "weight: .* got float8_e4m3fnuz"),
        ({**FP8, "scales": SCALES.to(torch.float8_e5m2)}, "scales: .* got float8_e5m2"),
        ({**FP8, "scales": None}, "scales: expected the scales of the blocks, got none"),
        ({**FP8, "block": (4, 4)}, r"scales: expected shape .*columns=2\], got \[6, 1, 1\]"),
        ({**FP8, "block": (0, 4)}, "block: expected 1 to 1073741824, got 0"),
        ({**FP8, "block": (4,)}, "block: expected two numbers"),
        ({**FP8, "scales": SCALES.half()}, "scales: expected dtype uint8 or .*, got float16"),
        ({**FP8, "format": "mxfp4", "block": (1, 3)}, "block: expected an even number of columns"),
        ({"plan": moe.plan(torch.zeros(3, 2).int(), 6)}, "plan: expected a plan with tiles"),
        ({"plan": PLAN._replace(tile_row=PLAN.tile_row.int())}, "tile_row: expected dtype int64"),
        ({"plan": PLAN._replace(tile_size=PLAN.tile_size[:1])}, "tile_size: expected shape"),
        ({"weight": torch.zeros(5, 4, 8)}, "plan: expected tiles of experts below 5 .* expert 5"),
        ({"plan": PLAN._replace(tile_row=PLAN.tile_row + 4)}, "plan: .*rows below 6, got expert 2"),
        ({"limit": 1.0}, "limit: expected none without an activation"),
        ({**GATED, "limit": 0.0}, "limit: expected a number above 0"),
        ({**GATED, "weight": torch.zeros(6, 5, 8)}, "activation: .* even number of rows.* N=5"),
        ({"layout": "columns"}, "layout: expected rows, panels or pairs, got columns"),
        ({"size": (4, 8)}, "size: expected none for weights in rows"),
        ({"layout": "pairs"}, r"size: expected \[N, K\] for weights in pairs"),
        ({**PAIRS, "size": (4,)}, "size: expected"),
        ({**PAIRS, "size": (-1, 8)}, "size: expected 0 to 1073741824, got -1"),
        ({**PAIRS, "size": (17, 8)}, r"weight: expected shape \[E, panels=2, words=16, .*\], got"),
        ({**PAIRS, "size": (4, 33)}, r"weight: expected shape \[E, panels=1, words=32, .*\], got"),
        ({**PAIRS, "weight": torch.zeros(6, 4, 8)}, "layout: expected rows for .*float32"),
        ({**PAIRS, "exact": True}, "layout: expected rows"),
        ({**PANELS, "size": (4, 65)}, r"weight: expected shape \[E, panels=1, steps=2, .*\], got"),
        (PANELS, "layout: expected rows or pairs on a CPU; panels are for GPUs"),
        ({**MX_PANELS, "scales": SCALES.byte()}, r"scales: .* shape \[E=6, panels=1, steps=1"),
        ({**MX_PANELS, "block": (2, 32)}, r"block: expected \(1, 32\) for mxfp4 in panels"),
        ({**MX_PANELS, "size": (4, 7)}, "size: expected an even K"),
    ],
)  # fmt: skip
def test_grouped_gemm_refuses(change, message):
    given = {"x": X, "weight": torch.zeros(6, 4, 8), "plan": PLAN} | change
    with pytest.raises(RuntimeError, match=r"dspark_ext\.grouped_gemm: " + message):
        moe.grouped_gemm(**given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "gelu"}, "activation: expected 'swiglu' or None, got 'gelu'"),
        ({"interleaved": True}, "interleaved: expected an activation with it"),
    ],
)
def test_grouped_gemm_refuses_by_value(change, message):
    with pytest.raises(ValueError, match=r"dspark_ext\.grouped_gemm: " + message):
        moe.grouped_gemm(X, torch.zeros(6, 4, 8), PLAN, **change)


@pytest.mark.parametrize(
    ("gate_up", "limit", "message"),
    [
        (torch.zeros(2, 3), None, "gate_up: expected an even number of columns"),
        (torch.zeros(2), None, r"gate_up: expected shape \[rows, 2 \* width\], got \[2\]"),
        (torch.zeros(2, 4).double(), None, "gate_up: expected dtype .*got float64"),
        (torch.zeros(2, 4), 0.0, "limit: expected a number above 0, got 0"),
        (torch.zeros(2, 4), float("nan"), "limit: expected a number above 0"),
    ],
)
def test_swiglu_refuses(gate_up, limit, message):
    with pytest.raises(RuntimeError, match=r"dspark_ext\.swiglu: " + message):
        moe.swiglu(gate_up, limit)


@pytest.mark.parametrize("kind", ["bf16", "fp8-32", "mxfp4"])
def test_opcheck(kind):
    operators = torch.ops.dspark_ext
    weights, plan = sweep.make_weights(kind, (4, 6, 32)), sweep.make_plan(5, 2, 4)
    x = sweep.make_rows(5, 32, torch.bfloat16)
    given = sweep.operator_arguments(x, weights, plan, dtype=torch.float32)
    torch.library.opcheck(operators.grouped_gemm.default, given)
    gated = sweep.operator_arguments(x, weights, plan, exact=False, activation="swiglu", limit=2.0)
    torch.library.opcheck(operators.grouped_gemm.default, gated)
    torch.library.opcheck(operators.swiglu.default, (x, 2.0, False))
