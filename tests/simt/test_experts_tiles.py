"""grouped_gemm by matrix units, from inside: which calls take them, that a row has the same bits
wherever it is computed, and how many bytes of weights are read."""

import emulated
import expert_sweep as sweep
import pytest
import torch
from kit import bits_equal

from dspark_ext import formats, moe
from dspark_ext.moe import panels
from dspark_ext.reference import moe_gemm as reference

WITH_UNIT = (32, 64)
HALVES = (torch.bfloat16, torch.float16)
# Codes in 32 x 32 and other blocks; plain weights have the dtype of x.
KINDS = ("plain", "fp8-128", "fp8-32", "fnuz-128", "mxfp4")
BOUND = 4e-7  # relative L2 of float32 results: float32 sums of up to some hundred products


def make_weights(kind: str, shape, dtype, seed=0) -> sweep.Weights:
    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    return sweep.make_weights(names[dtype] if kind == "plain" else kind, shape, seed)


def in_panels(weights: sweep.Weights, activation: str) -> tuple:
    """Weights and scales in the layout "panels"."""
    rows = torch.arange(weights.weight.shape[1])
    if activation == "swiglu":
        rows = rows.view(2, -1).T.flatten()

    def pack(tensor, one):
        experts = [one(expert[rows]) for expert in formats.as_bytes(tensor)]
        return torch.stack([expert.contiguous() for expert in experts])

    def pack_weight(expert):
        return panels.pack_weight(expert, panels.weight_shape(*expert.shape, size, per_element))

    size = weights.weight.element_size()
    per_element = 2 if weights.format == "mxfp4" else 1
    scales = weights.scales
    if weights.format == "mxfp4":
        scales = pack(scales, panels.pack_scales)
    return pack(weights.weight, pack_weight), scales


def arguments_of(x, weights, plan, *, is_packed=False, activation="", **options) -> tuple:
    size = []
    if is_packed:
        width = weights.weight.shape[2] * (2 if weights.format == "mxfp4" else 1)
        size = [weights.weight.shape[1], width]
        packed, scales = in_panels(weights, activation)
        weights = weights._replace(weight=packed, scales=scales)
    given = list(
        sweep.operator_arguments(x, weights, plan, exact=False, activation=activation, **options)
    )
    given[5:7] = ("panels" if is_packed else "rows"), size
    return tuple(given)


def run(arguments: tuple, **settings) -> torch.Tensor:
    with emulated.operators(**{"level": emulated.FULL, **settings}):
        return torch.ops.dspark_simt.grouped_gemm(*arguments)


def count(arguments: tuple, warp_size: int, **device) -> dict[str, int]:
    """The kernel's counters."""
    counted = emulated.counters(
        lambda: torch.ops.dspark_simt.grouped_gemm(*arguments), warp_size=warp_size, **device
    )
    return counted["kernels"]["grouped_gemm"]


def matrix_instructions(arguments: tuple, warp_size: int) -> int:
    return count(arguments, warp_size)["matrix_instructions"]


# ---- near float64 -------------------------------------------------------------------------------


def check_near(arguments: tuple, x, weights, plan, run=run, **settings) -> None:
    """Each product within K 2^-22 of the sum of magnitudes; all together within BOUND."""
    got = run(arguments, **settings).double()
    want = reference.grouped_gemm(x, weights.exact, plan)
    magnitude = reference.grouped_gemm(x.abs(), weights.exact.abs(), plan)
    assert ((got - want).abs() <= magnitude * x.shape[1] * 2.0**-22).all()
    assert sweep.relative_error(got, want) < BOUND


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "panels"])
@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", [*KINDS, "fp8-96"])
def test_near_float64(kind, dtype, warp_size, packed):
    """Parts of a load, of a chunk and of a panel; one to four tiles of x; a tile cut in two."""
    for seed, (tokens, rows, width, tile_rows) in enumerate(
        [(3, 5, 32, 16), (37, 130, 352, 64), (75, 66, 160, 256)]
    ):
        weights = make_weights(kind, (2, rows, width), dtype, seed)
        plan = sweep.make_plan(tokens, 2, 2, seed, tile_rows, 1 + seed)
        x = sweep.make_rows(tokens, width + seed, dtype, seed)[:, :width]
        given = arguments_of(x, weights, plan, is_packed=packed, dtype=torch.float32)
        check_near(given, x, weights, plan, warp_size=warp_size, seed=seed)


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("kind", ["plain", "fp8-32"])
@pytest.mark.parametrize("width", [1, 15, 17, 31, 33, 63, 65, 127, 130])
def test_panels_of_any_width(width, kind, warp_size):
    """Rows that end anywhere; K of x is no multiple of 8."""
    weights = make_weights(kind, (2, 18, width), torch.bfloat16, width)
    plan = sweep.make_plan(5, 2, 2, width)
    x = sweep.make_rows(5, width, torch.bfloat16, width)
    given = arguments_of(x, weights, plan, is_packed=True, dtype=torch.float32)
    assert matrix_instructions(given, warp_size) > 0
    check_near(given, x, weights, plan, warp_size=warp_size)


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e4m3fnuz", "mxfp4"])
def test_every_code(format, dtype, warp_size):
    """In every lane and step: the codes meet rows of the identity. NaN codes stay NaN."""
    columns = 256
    codes = torch.arange(256, dtype=torch.uint8).roll(3)[None]
    if format == "mxfp4":
        codes = torch.cat([codes[:, :128], codes[:, 128:]])
    block = (1, 32) if format == "mxfp4" else (128, 128)
    scales = torch.full((1, len(codes), 8) if format == "mxfp4" else (1, 1, 2), 128)
    weights = sweep.Weights(codes[None], scales.to(torch.uint8), format, block, None)
    exact = formats.decode(codes, "fp4_e2m1" if format == "mxfp4" else format) * 2
    is_nan = exact.isnan().any(0)
    x = torch.eye(columns, dtype=dtype)[~is_nan]
    plan = moe.plan(torch.zeros(len(x), 1, dtype=torch.int32), 1, tile_rows=64)
    finite = weights
    if is_nan.any():
        got = run(arguments_of(x, weights, plan, dtype=torch.float32), warp_size=warp_size)
        assert got.isnan().all()
        finite = weights._replace(weight=torch.where(is_nan, 0, codes)[None])
    got = run(arguments_of(x, finite, plan, dtype=torch.float32), warp_size=warp_size)
    assert torch.equal(got, exact[:, ~is_nan].T)


# ---- the same bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_anywhere(kind, warp_size):
    """Alone, in any order of tokens, in tiles of any size, gathered or permuted, in rows or in
    panels, on any number of multiprocessors."""
    weights = make_weights(kind, (2, 70, 192), torch.bfloat16)
    ids = torch.randint(0, 2, (75, 1), generator=torch.Generator().manual_seed(5))
    x = sweep.make_rows(75, 192, torch.bfloat16)

    def by_token(tokens, tile_rows=64, alignment=1, gather=True, packed=False, **settings):
        plan = moe.plan(ids[tokens], 2, alignment=alignment, tile_rows=tile_rows)
        rows = x[tokens] if gather else moe.permute(x[tokens], plan)
        given = arguments_of(rows, weights, plan, is_packed=packed, gather=gather)
        settings = {"level": emulated.BOUNDS, "warp_size": warp_size, **settings}
        return run(given, **settings)[plan.inverse[:, 0]]

    every = torch.arange(75)
    whole = by_token(every)
    for change in (
        {"tile_rows": 1, "multiprocessors": 3},
        {"tile_rows": 7, "alignment": 4},
        {"tile_rows": 30, "gather": False, "multiprocessors": 1},
        {"tile_rows": 100, "seed": 3, "multiprocessors": 64},
        {"packed": True, "seed": 2},
    ):
        assert bits_equal(by_token(every, **change), whole), change
    for tokens in (every.flip(0), every[7:8], every[3:40]):
        assert bits_equal(by_token(tokens, packed=True), whole[tokens])


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "panels"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_activation_is_swiglu_of_the_sums(kind, interleaved, packed, warp_size):
    """Gates and ups apart or in turns, with scales that are neither's alone."""
    activation = "swiglu_interleaved" if interleaved else "swiglu"
    for seed, rows in enumerate((2, 70, 134)):
        weights = make_weights(kind, (2, rows, 64), torch.bfloat16, seed)
        plan = sweep.make_plan(20, 1, 2, seed, 64)
        x = sweep.make_rows(20, 64, torch.bfloat16, seed)
        sums = run(arguments_of(x, weights, plan, dtype=torch.float32), warp_size=warp_size)
        limit = (None, 0.5)[seed % 2]
        given = arguments_of(x, weights, plan, is_packed=packed, activation=activation, limit=limit)
        want = moe.swiglu(sums, limit, interleaved=interleaved).bfloat16()
        assert bits_equal(run(given, warp_size=warp_size, seed=seed), want)


@pytest.mark.parametrize("seed", range(1, 5))
def test_schedules_do_not_matter(seed):
    weights = make_weights("fp8-32", (3, 150, 160), torch.bfloat16)
    plan = sweep.make_plan(40, 2, 3, tile_rows=64)
    given = arguments_of(sweep.make_rows(40, 160, torch.bfloat16), weights, plan)
    for warp_size in WITH_UNIT:
        assert bits_equal(run(given, warp_size=warp_size, seed=seed),
                          run(given, warp_size=warp_size))  # fmt: skip


# ---- who takes which path -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "width", "dtype", "has_path"),
    [
        ("bf16", 64, torch.bfloat16, True),
        ("bf16", 60, torch.bfloat16, False),  # rows of no multiple of 16 bytes
        ("bf16", 64, torch.float16, False),
        ("fp32", 64, torch.float32, False),
        ("fp8-32", 64, torch.float32, False),
        ("fp8-odd", 64, torch.bfloat16, False),  # blocks of 7 columns
        ("fp8-32", 48, torch.float16, True),
        ("fp8-32", 40, torch.float16, False),
        ("mxfp4", 32, torch.float16, True),
        ("mxfp4", 48, torch.bfloat16, False),
    ],
)
def test_what_takes_matrix_units(kind, width, dtype, has_path):
    """What does not, and all of `exact`, has the bits of the CPU; with any number of tokens."""
    weights = sweep.make_weights(kind, (2, 20, width))
    for tokens in (1, 40):
        plan = sweep.make_plan(tokens, 2, 2, tile_rows=64)
        x = sweep.make_rows(tokens, width, dtype)
        given = arguments_of(x, weights, plan)
        exact = sweep.operator_arguments(x, weights, plan, exact=True)
        want = torch.ops.dspark_ext.grouped_gemm(*exact)
        for warp_size in WITH_UNIT:
            assert (matrix_instructions(given, warp_size) > 0) == has_path
            assert matrix_instructions(exact, warp_size) == 0
            if not has_path:
                assert bits_equal(run(given, warp_size=warp_size), want)


@pytest.mark.parametrize("tokens", [1, 32])
def test_codes_take_wide_instructions(tokens):
    """128 columns of 128 rows of weights, of which four warps have 32 each. For 32 columns of its
    rows a warp takes 2 x 2 instructions with 16 rows of x; wide, 2 with 32 rows of x."""
    narrow, wide = 4 * 4 * 4 * -(-tokens // 16), 4 * 4 * 2
    for kind, wanted in (("bf16", narrow), ("fp16", narrow), ("fp8-128", wide), ("mxfp4", wide)):
        weights = sweep.make_weights(kind, (2, 128, 128))
        plan = moe.plan(torch.zeros(tokens, 1, dtype=torch.int32), 2, tile_rows=64)
        x = sweep.make_rows(tokens, 128, torch.float16 if kind == "fp16" else torch.bfloat16)
        assert matrix_instructions(arguments_of(x, weights, plan), 64) == wanted, kind


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("blocks", [1, 3, 4, 5, 7, 8, 11, 12])
def test_scales_of_mxfp4_by_words_and_by_bytes(blocks, warp_size):
    """Rows of scales that are and are not whole words; the last word of a row is partial. The bits
    are those of panels, whose scales always are."""
    weights = make_weights("mxfp4", (2, 34, 32 * blocks), torch.bfloat16, blocks)
    plan = sweep.make_plan(9, 2, 2, blocks)
    x = sweep.make_rows(9, 32 * blocks, torch.bfloat16, blocks)
    given = arguments_of(x, weights, plan, dtype=torch.float32)
    check_near(given, x, weights, plan, warp_size=warp_size)
    packed = arguments_of(x, weights, plan, is_packed=True, dtype=torch.float32)
    assert bits_equal(run(given, warp_size=warp_size), run(packed, warp_size=warp_size))
    by_words, loads = (count(of, warp_size)["loads"] for of in (packed, given))
    assert by_words == loads if blocks in (1, 4, 8, 12) else by_words < loads


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "panels"])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_where_the_chip_has_no_unit(kind, packed):
    """The same launch, and the bits of the CPU; panels are read by lanes, too."""
    for activation in ("", "swiglu", "swiglu_interleaved"):
        weights = make_weights(kind, (3, 70, 96), torch.bfloat16)
        plan = sweep.make_plan(30, 2, 3, tile_rows=64)
        x = sweep.make_rows(30, 96, torch.bfloat16)
        given = arguments_of(x, weights, plan, is_packed=packed, activation=activation)
        exact = sweep.operator_arguments(x, weights, plan, exact=True, activation=activation)
        want = torch.ops.dspark_ext.grouped_gemm(*exact)
        assert bits_equal(run(given, warp_size=4, seed=1), want)


@pytest.mark.parametrize("warp_size", WITH_UNIT)
def test_tiles_that_a_plan_cannot_have_are_left_out(warp_size):
    plan = moe.plan(torch.tensor([[0], [1], [2], [1]]), 3, tile_rows=4)
    weights = sweep.make_weights("bf16", (3, 24, 32))
    x = sweep.make_rows(4, 32, torch.bfloat16)
    want = run(arguments_of(x, weights, plan), warp_size=warp_size)
    for change in ({"tile_expert": [7, 1, 2]}, {"tile_row": [9, 1, 3]}, {"tile_row": [-1, 1, 3]}):
        bad = {key: torch.tensor(v).to(getattr(plan, key).dtype) for key, v in change.items()}
        tiles = plan.tile_expert.shape[0]
        for key, values in bad.items():
            old = getattr(plan, key).clone()
            old[:3] = values
            bad[key] = old
        got = run(arguments_of(x, weights, plan._replace(**bad)), warp_size=warp_size)
        assert tiles >= 3 and bits_equal(got[1:], want[1:])


# ---- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [5, 40, 160, 640])
@pytest.mark.parametrize("kind", ["bf16", "fp8-128", "mxfp4"])
def test_weights_of_the_touched_experts_are_read_once(kind, tokens):
    """E = 128, k = 3. N and K are 32nds of 4608 and 5120: in both directions what is read follows
    from the rows of weights of an item and the columns of a load, which divide them."""
    weights = sweep.make_weights(kind, (128, 144, 160))
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.rand(tokens, 128, generator=generator).argsort(1)[:, :3]
    plan = moe.plan(ids, 128, tile_rows=moe.fused.TILE_ROWS_GPU)
    x = sweep.make_rows(tokens, 160, torch.bfloat16)
    given = arguments_of(x, weights, plan, activation="swiglu")
    counted = emulated.counters(lambda: torch.ops.dspark_simt.grouped_gemm(*given))
    touched = len(ids.unique()) / 128 * given[1].nbytes
    loaded = counted["buffers"]["weight"]["bytes_loaded"]
    assert touched <= loaded <= 1.05 * touched
    kernel = counted["kernels"]["grouped_gemm"]
    assert kernel["launches"] == 1 and 16 * kernel["accesses_16"] >= loaded


# ---- shared memory ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_meet_in_a_bank_only_where_warps_of_32_write_x(kind):
    """Twice the passes for what is written once and read by eight warps: a tenth of all at most."""
    weights = make_weights(kind, (2, 256, 512), torch.bfloat16)
    plan = sweep.make_plan(40, 1, 2, tile_rows=64)
    given = arguments_of(sweep.make_rows(40, 512, torch.bfloat16), weights, plan)
    for warp_size, ways in ((32, 2), (64, 1)):
        kernel = count(given, warp_size)
        assert kernel["worst_bank_ways"] == ways
        assert kernel["bank_conflicts"] <= 0.1 * (ways - 1) * kernel["shared_passes"]
