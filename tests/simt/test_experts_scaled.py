"""grouped_gemm of mxfp4, and of fp8 with E8M0 scales, by scaled matrix instructions, on a device of
warps of 64 that has them: x in two parts of e4m3, codes and scales of the weights as they are
stored."""

import emulated
import expert_checks as checks
import expert_layers as layers
import expert_sweep as sweep
import pytest
import torch
from kit import bits_equal
from test_experts_tiles import arguments_of, check_near, count, make_weights

from dspark_ext import formats, moe

BLOCK = 32
# Scales of 32 columns, which belong to one row or to 32; and of 128.
KINDS = ("mxfp4", "mxfp8", "fp8-32", "fp8-128")
FORMATS = ("mxfp4", "fp8_e4m3")


def run(arguments: tuple, seed: int = 0, **settings) -> torch.Tensor:
    settings = {"level": emulated.FULL, "seed": seed, **settings}
    with emulated.scaled_matrix_units(**settings):
        return torch.ops.dspark_simt.grouped_gemm(*arguments)


def identity(format: str, columns: int = 128) -> sweep.Weights:
    """One expert, whose products are the rows of x."""
    codes = torch.eye(columns, dtype=torch.uint8) * (2 if format == "mxfp4" else 0x38)  # 1.0
    if format == "mxfp4":
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    scales = torch.full((1, columns, columns // BLOCK), 127, dtype=torch.uint8)
    return sweep.Weights(codes[None], scales, format, (1, BLOCK), torch.eye(columns)[None])


def one_expert(rows: int) -> moe.DispatchPlan:
    return moe.plan(torch.zeros(rows, 1, dtype=torch.int32), 1, tile_rows=64)


# ---- what becomes of a row of x -----------------------------------------------------------------


def wide_range_of_rows(seed: int) -> torch.Tensor:
    """bfloat16 of any exponent, zero and subnormal included; blocks in which they are alike, spread
    over a few orders, and over all of them."""
    generator = torch.Generator().manual_seed(seed)
    shape = (48, 4, BLOCK)
    spread = torch.tensor([0, 3, 9, 14, 25, 255])[torch.arange(48) % 6][:, None, None]
    top = torch.randint(0, 255, (48, 4, 1), generator=generator)
    below = (torch.rand(shape, generator=generator) * (spread + 1)).floor().long()
    exponent = (top - below).clamp(min=0)
    bits = exponent << 7 | torch.randint(0, 128, shape, generator=generator)
    sign = torch.randint(0, 2, shape, generator=generator) << 15
    return (bits | sign).to(torch.int32).to(torch.int16).view(torch.bfloat16).view(48, 128)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("format", FORMATS)
def test_a_row_is_the_sum_of_its_parts(format, seed):
    """Exactly, down to 2^-13 of the largest of 32 columns; below, to 2^-21 of it. Of what is so
    small that its scale would have no code, to 2^-136."""
    x = wide_range_of_rows(seed)
    given = arguments_of(x, identity(format), one_expert(len(x)), dtype=torch.float32)
    got = run(given, seed).double()
    exact = x.double()
    largest = exact.view(-1, BLOCK).abs().amax(1, keepdim=True).expand(-1, BLOCK).reshape_as(exact)
    error = (got - exact).abs()
    assert not error[(exact.abs() >= largest * 2.0**-13) & (largest >= 2.0**-115)].any()
    assert (error <= torch.maximum(largest * 2.0**-21, torch.tensor(2.0**-136))).all()
    assert error.any()  # both bounds are met by something


@pytest.mark.parametrize("format", FORMATS)
def test_every_bfloat16_alone(format):
    """A number of any bits comes out as it went in, if it is 2^-114 or more."""
    bits = torch.arange(0, 0x7F80, 5, dtype=torch.int32).to(torch.int16)
    numbers = bits.view(torch.bfloat16)[: 4 * (len(bits) // 4)].view(-1, 4)
    numbers = numbers[numbers[:, 0].abs() >= 2.0**-114][::8]
    x = torch.zeros(len(numbers), 128, dtype=torch.bfloat16)
    x[:, [5, 32 + 17, 64, 127]] = numbers
    given = arguments_of(-x, identity(format), one_expert(len(x)), dtype=torch.float32)
    assert torch.equal(run(given), -x.float())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_infinities_and_nan_stay_in_their_row(kind, bad):
    """They make all products of the row NaN, and none of others."""
    weights = make_weights(kind, (1, 70, 96), torch.bfloat16)
    x = sweep.make_rows(40, 96, torch.bfloat16)
    want = run(arguments_of(x, weights, one_expert(40), dtype=torch.float32))
    for row, column in ((0, 0), (17, 95), (39, 40)):
        x[row, column] = bad
        want[row] = torch.nan
    got = run(arguments_of(x, weights, one_expert(40), dtype=torch.float32))
    assert torch.equal(got.isnan(), want.isnan())
    assert bits_equal(got[~want.isnan()], want[~want.isnan()])


@pytest.mark.parametrize("format", FORMATS)
def test_the_largest_numbers(format):
    x = torch.zeros(3, 128, dtype=torch.bfloat16)
    x[0, :2] = torch.finfo(torch.bfloat16).max
    x[1, 40] = -torch.finfo(torch.bfloat16).max
    given = arguments_of(x, identity(format), one_expert(3), dtype=torch.float32)
    assert torch.equal(run(given), x.float())


# ---- products -----------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "panels"])
@pytest.mark.parametrize("kind", KINDS)
def test_near_float64(kind, packed):
    """Parts of a load, of a chunk and of a panel; one to four tiles of x; a tile cut in two."""
    for seed, (tokens, rows, width, tile_rows) in enumerate(
        [(3, 5, 32, 16), (37, 130, 352, 64), (75, 66, 160, 256), (20, 34, 96, 32)]
    ):
        weights = make_weights(kind, (2, rows, width), torch.bfloat16, seed)
        plan = sweep.make_plan(tokens, 2, 2, seed, tile_rows, 1 + seed)
        x = sweep.make_rows(tokens, width + seed, torch.bfloat16, seed)[:, :width]
        given = arguments_of(x, weights, plan, is_packed=packed, dtype=torch.float32)
        check_near(given, x, weights, plan, run=run, seed=seed)


@pytest.mark.parametrize("kind", ["mxfp4", "mxfp8"])
def test_a_row_has_the_same_bits_anywhere(kind):
    """Alone, in any order of tokens, in tiles of any size, gathered or permuted, in rows or in
    panels, on any number of multiprocessors, in any schedule."""
    weights = make_weights(kind, (2, 70, 192), torch.bfloat16)
    ids = torch.randint(0, 2, (75, 1), generator=torch.Generator().manual_seed(5))
    x = sweep.make_rows(75, 192, torch.bfloat16)

    def by_token(tokens, tile_rows=64, alignment=1, gather=True, packed=False, **settings):
        plan = moe.plan(ids[tokens], 2, alignment=alignment, tile_rows=tile_rows)
        rows = x[tokens] if gather else moe.permute(x[tokens], plan)
        given = arguments_of(rows, weights, plan, is_packed=packed, gather=gather)
        return run(given, **{"level": emulated.BOUNDS, **settings})[plan.inverse[:, 0]]

    every = torch.arange(75)
    whole = by_token(every)
    for change in (
        {"tile_rows": 1, "multiprocessors": 3},
        {"tile_rows": 7, "alignment": 4},
        {"tile_rows": 30, "gather": False, "multiprocessors": 1},
        {"tile_rows": 100, "seed": 3, "multiprocessors": 64},
        {"packed": True, "seed": 2, "level": emulated.FULL},
    ):
        assert bits_equal(by_token(every, **change), whole), change
    for tokens in (every.flip(0), every[7:8], every[3:40]):
        assert bits_equal(by_token(tokens, packed=True), whole[tokens])


@pytest.mark.parametrize("width", [1, 15, 17, 31, 33, 63, 65, 127, 130])
def test_panels_of_any_width(width):
    """Rows that end anywhere in the two blocks of a load; K of x is no multiple of 8."""
    for kind in ("mxfp8", "fp8-128"):
        weights = make_weights(kind, (2, 18, width), torch.bfloat16, width)
        plan = sweep.make_plan(40, 2, 2, width)
        x = sweep.make_rows(40, width, torch.bfloat16, width)
        given = arguments_of(x, weights, plan, is_packed=True, dtype=torch.float32)
        check_near(given, x, weights, plan, run=run)


def test_every_code_and_scale_of_fp8():
    """In every lane, with a scale of its own for every row and block of columns."""
    codes = torch.arange(256, dtype=torch.uint8).roll(3)[None]
    codes = codes[:, ~formats.decode(codes, "fp8_e4m3").isnan()[0]][:, :224]
    rows = torch.cat([codes, codes.flip(1)])
    exponent = torch.randint(100, 150, (1, 2, 7), generator=torch.Generator().manual_seed(0))
    weights = sweep.Weights(rows[None], exponent.to(torch.uint8), "fp8_e4m3", (1, BLOCK), None)
    scale = torch.ldexp(torch.ones(2, 7), exponent[0] - 127).repeat_interleave(BLOCK, 1)
    given = arguments_of(
        torch.eye(224, dtype=torch.bfloat16), weights, one_expert(224), dtype=torch.float32
    )
    assert torch.equal(run(given).T, formats.decode(rows, "fp8_e4m3") * scale)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_nan_codes_and_scales_are_nan(code):
    """Of one row of weights a code or the scale of a block; products with other rows are not."""
    for is_scale in (False, True):
        if is_scale and code != 0xFF:
            continue  # 0x7F is 1
        weights = make_weights("mxfp8", (1, 40, 128), torch.bfloat16)
        spoiled = formats.as_bytes(weights.scales if is_scale else weights.weight).clone()
        spoiled[0, 17, 2 if is_scale else 70] = code
        weights = weights._replace(**{"scales" if is_scale else "weight": spoiled})
        x = sweep.make_rows(5, 128, torch.bfloat16)
        got = run(arguments_of(x, weights, one_expert(5), dtype=torch.float32))
        assert got.isnan().any(0).nonzero().flatten().tolist() == [17] and got[:, 17].isnan().all()


@pytest.mark.parametrize(("check", "kind"), checks.cases(KINDS), ids=str)
@pytest.mark.parametrize("way", ("rows", "panels"))
def test_what_holds_of_every_way(way, check, kind):
    with emulated.scaled_matrix_units(level=emulated.FULL):
        checks.CHECKS[check](checks.WAYS[way], kind)


@pytest.mark.parametrize("kind", ["mxfp4", "mxfp8"])
@pytest.mark.parametrize("check", list(layers.CHECKS))
def test_layers(check, kind):
    with emulated.scaled_matrix_units(level=emulated.FULL):
        layers.CHECKS[check](layers.LAYER_WAYS["panels"], kind)


# ---- who takes them -----------------------------------------------------------------------------


def test_who_takes_them():
    """128 rows of weights with up to 32 of x: a warp multiplies 64 columns of 32 rows twice. A
    float16 has more digits than two parts hold, and a float32 scale does not fit."""
    for kind, dtype, is_scaled in (
        *((kind, torch.bfloat16, True) for kind in KINDS),
        *((kind, torch.float16, False) for kind in KINDS),
        ("fp8-512", torch.bfloat16, False),
        ("fnuz-128", torch.bfloat16, False),
    ):
        weights = make_weights(kind, (2, 128, 128), dtype)
        plan = sweep.make_plan(9, 1, 2)
        given = arguments_of(sweep.make_rows(9, 128, dtype), weights, plan)
        items = (plan.tile_expert >= 0).sum()
        instructions = count(given, 64, has_scaled_matrix_unit=True)["matrix_instructions"]
        assert instructions == items * 4 * (2 * 2 if is_scaled else 2 * 4), kind
        if not is_scaled:
            with emulated.operators(warp_size=64):
                assert bits_equal(torch.ops.dspark_simt.grouped_gemm(*given), run(given))


@pytest.mark.parametrize("tokens", [20, 60])
@pytest.mark.parametrize("kind", ["mxfp4", "mxfp8"])
def test_no_lanes_meet_in_a_bank(kind, tokens):
    weights = make_weights(kind, (2, 256, 512), torch.bfloat16)
    plan = sweep.make_plan(2 * tokens, 1, 2, tile_rows=64)
    given = arguments_of(sweep.make_rows(2 * tokens, 512, torch.bfloat16), weights, plan)
    kernel = count(given, 64, has_scaled_matrix_unit=True)
    assert kernel["worst_bank_ways"] == 1 and kernel["bank_conflicts"] == 0
