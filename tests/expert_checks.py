"""What every way to compute `moe.grouped_gemm` must hold, as checks of a way.

A check takes a `Way` and the kind of the weights; it runs on whatever backend is active.
"""

from __future__ import annotations

from typing import NamedTuple

import expert_oracles as oracles
import expert_sweep as sweep
import torch
from kit import bits_equal

from dspark_ext import formats, moe
from dspark_ext.moe import pairs, panels

LAYOUTS = {"panels": panels, "pairs": pairs}
# Relative L2 against float64 up to K = 512, before the rounding to the dtype of the result.
SUM_BOUND = 1e-6
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.5e-3, torch.float16: 3e-4}
# And of an element, of the sum of the magnitudes of its terms.
ELEMENT_BOUND = 2.0**-20


class Way(NamedTuple):
    """One way to compute products."""

    exact: bool
    layout: str

    def __call__(self, x, weights: sweep.Weights, plan, **options) -> torch.Tensor:
        """`moe.grouped_gemm` of weights in rows, which are brought into the layout first."""
        weight, how = weights.weight, weights.options()
        if self.layout != "rows":
            takes_turns = bool(options.get("activation")) and not options.get("interleaved")
            weight, how["scales"], how["size"] = packed(weights, self.layout, takes_turns)
            how |= {"layout": self.layout}
        return moe.grouped_gemm(x, weight, plan, exact=self.exact, **how, **options)


WAYS = {
    "exact": Way(True, "rows"),
    "rows": Way(False, "rows"),
    "panels": Way(False, "panels"),
    "pairs": Way(False, "pairs"),
}


def packed(weights: sweep.Weights, name: str, takes_turns: bool) -> tuple:
    """(weights, scales, size) in a layout."""
    layout, codes = LAYOUTS[name], weights.weight
    _, rows, width = codes.shape
    per_element = 2 if weights.format == "mxfp4" else 1
    order = torch.arange(rows)
    if takes_turns:
        order = order.view(2, rows // 2).T.flatten()
    shape = layout.weight_shape(rows, width, codes.element_size(), per_element)
    bits = codes.view(torch.uint8 if codes.element_size() == 1 else torch.int16)
    stacked = torch.stack([layout.pack_weight(expert[order], shape) for expert in bits])
    scales = weights.scales
    if scales is not None and layout.has_scales_by_row(weights.format):
        bits = formats.as_bytes(scales)
        bits = torch.stack([layout.pack_scales(expert[order]) for expert in bits])
        scales = bits.view(scales.dtype)
    return stacked.view(codes.dtype), scales, (rows, width * per_element)


def rows_of(plan, got: torch.Tensor) -> torch.Tensor:
    """[T, k, N] of the rows of a result; zeros for slots that are not here. Rows without a slot
    must be 0."""
    assert not got[plan.sorted == plan.inverse.numel()].any(), "a row without a slot"
    at = plan.inverse
    return torch.where(at[..., None] < 0, 0, got[at.clamp(min=0)]) if len(got) else got.new_zeros(
        *at.shape, got.shape[1]
    )  # fmt: skip


def expect_exact(got: torch.Tensor, want: torch.Tensor, what) -> None:
    """Bits of float64 numbers that float32 holds, rounded once to the dtype of `got`."""
    right = want.float().to(got.dtype)
    if bits_equal(got + 0.0, right + 0.0):  # +0 for -0
        return
    wrong = (got != right).nonzero()
    first = tuple(wrong[0].tolist())
    raise AssertionError(
        f"{what}: {len(wrong)} of {got.numel()} wrong, the first at {first}: {got[first]} instead "
        f"of {right[first]}"
    )


# ---- exact --------------------------------------------------------------------------------------


def check_powers(way: Way, kind: str) -> None:
    """W_e = 2^e I: every row comes back, times a power that tells its expert."""
    for group, rows in oracles.GROUPS.items():
        size = oracles.aligned(kind, 40)
        oracle = oracles.power_oracle(kind, rows.experts, size)
        x = oracles.small_rows(len(rows.ids), size, torch.bfloat16)
        plan = rows.plan()
        got = rows_of(plan, way(x, oracle.weights, plan))
        here = (rows.ids >= 0) & (rows.ids < rows.experts)
        factor = torch.where(here, 2.0 ** rows.ids.clamp(0, rows.experts), 0.0)
        expect_exact(got, (x[:, None].double() * factor[..., None]), (kind, group))


def check_digits(way: Way, kind: str) -> None:
    """One-hot rows against weights that spell their expert, row and column."""
    shape = (3, 70, 96)
    ids = torch.stack([torch.arange(96) % 3, (torch.arange(96) + 1) % 3], 1)
    plan = moe.plan(ids, 3, tile_rows=16)
    places = {
        "expert": ids[..., None].expand(96, 2, 70),
        "row": torch.arange(70).expand(96, 2, 70),
        "column": torch.arange(96)[:, None, None].expand(96, 2, 70),
    }
    one_hot = torch.eye(96).bfloat16()
    for of, want in places.items():
        found = torch.zeros_like(want)
        for digit in range(1 if of == "expert" else 3):
            weights = oracles.digit_oracle(kind, shape, of, digit).weights
            products = rows_of(plan, way(one_hot, weights, plan))
            digits = oracles.read_digits(kind, products)
            assert (digits >= 0).all(), (kind, of, "no digit")
            found += digits * 8**digit
        wrong = (found != want).nonzero()
        at = tuple(wrong[0].tolist()) if len(wrong) else None
        assert at is None, f"{kind}: token, slot, row {at} read {of} {found[at]}, not {want[at]}"


def check_scales(way: Way, kind: str) -> None:
    """One-hot rows, about the borders of blocks, against ones: what comes back is the scale."""
    shape = (2, 150, 320)
    grid = oracles.grid_of(kind, shape)
    exponents = oracles.scrambled(grid, 9, 5) - 4
    oracle = oracles.from_numbers(kind, torch.ones(shape), exponents)
    columns = torch.tensor(
        [0, 1, 30, 31, 32, 33, 63, 64, 95, 96, 127, 128, 255, 256, 257, 288, 319]
    )
    x = torch.eye(320)[columns].bfloat16()
    plan = moe.plan(torch.arange(2).expand(len(columns), 2), 2, tile_rows=16)
    got = rows_of(plan, way(x, oracle.weights, plan))
    expect_exact(got, oracle.weights.exact[:, :, columns].permute(2, 0, 1).double(), kind)


def check_edges(way: Way, kind: str, shapes=oracles.SHAPES) -> None:
    """N and K that are no multiple of a tile."""
    rows = oracles.Rows(oracles.counted(1, 9, 20), 3)
    plan = rows.plan()
    every = [
        (n, round_up(kind, k)) for n, k in shapes for round_up in (oracles.even, oracles.aligned)
    ]
    for n, k in sorted(set(every)):
        oracle = oracles.small_oracle(kind, (3, n, k), n)
        for dtype, out in ((torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)):
            x = oracles.small_rows(len(rows.ids), k, halves(kind, dtype), k)
            want = oracle.reference(x, plan)
            got = way(x, oracle.weights, plan, dtype=out)
            expect_exact(got, want, (kind, n, k, out))


def check_long_sums(way: Way, kind: str) -> None:
    """More steps of columns than are under way at a time; more rows of weights than a block has."""
    check_edges(way, kind, ((18, 1090), (300, 40), (66, 576)))


def halves(kind: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of x that matrix units take with these weights."""
    return torch.float16 if kind == "fp16" else dtype


def check_groups(way: Way, kind: str) -> None:
    """Borders, hot and empty experts, slots that are not here, the same expert twice."""
    oracle = oracles.small_oracle(kind, (6, 35, 96))
    for group, rows in oracles.GROUPS.items():
        x = oracles.small_rows(len(rows.ids), 96, halves(kind, torch.bfloat16))
        plan = rows.plan()
        some = oracle._replace(
            weights=oracle.weights.of(slice(rows.experts)),
            numbers=oracle.numbers[: rows.experts],
            scales=None if oracle.scales is None else oracle.scales[: rows.experts],
        )
        want = some.reference(x, plan)
        got = way(x, some.weights, plan, dtype=torch.float32)
        expect_exact(got, want, (kind, group))
        ordered = moe.permute(x, plan)
        got = way(ordered, some.weights, plan, gather=False, dtype=torch.float32)
        expect_exact(got, want, (kind, group, "in the order of the plan"))


def check_activation(way: Way, kind: str) -> None:
    """Sums are exact, so that their activation has the bits of `moe.swiglu`; near float64, too."""
    rows = oracles.Rows(oracles.counted(3, 0, 18), 3, tile_rows=8, alignment=4)
    plan = rows.plan()
    for inner, k in ((1, 34), (5, 66), (33, 40), (64, 128), (70, 96)):
        oracle = oracles.small_oracle(kind, (3, 2 * inner, k), inner)
        x = oracles.small_rows(len(rows.ids), k, halves(kind, torch.bfloat16))
        sums = oracle.reference(x, plan).float()
        for interleaved in (False, True):
            for limit in (None, 20.0):
                how = {"activation": "swiglu", "interleaved": interleaved, "limit": limit}
                want = moe.swiglu(sums, limit, interleaved=interleaved)
                got = way(x, oracle.weights, plan, dtype=torch.float32, **how)
                assert bits_equal(got, want), (kind, inner, how)
                rounded = way(x, oracle.weights, plan, **how)
                assert bits_equal(rounded, want.to(x.dtype)), (kind, inner, how)
                near = oracle.reference(x, plan, **how)
                assert sweep.relative_error(got, near) < 1e-6, (kind, inner, how)


# ---- what is not to be read ---------------------------------------------------------------------


def make_nan(weights: sweep.Weights, where) -> None:
    """NaN in some weights, in place; `where` selects rows: [experts] or [experts, rows]."""
    if weights.format is None:
        weights.weight[where] = torch.nan
    elif weights.format == "mxfp4":
        formats.as_bytes(weights.scales)[where] = 0xFF
    else:
        nan = 0x80 if weights.format == "fp8_e4m3fnuz" else 0x7F
        formats.as_bytes(weights.weight)[where] = nan


def check_unread(way: Way, kind: str) -> None:
    """NaN around the rows of x, in rows of x without a slot, and in experts without a row."""
    ids = torch.tensor([1, 3, -1, 3, 1, 3, 3, -1, 1])[:, None]
    plan = moe.plan(ids, 5, tile_rows=4, alignment=2)
    for n, k in ((33, 34), (17, 96), (64, 160), (5, 130)):
        oracle = oracles.small_oracle(kind, (5, n, k), n)
        clean = oracles.small_rows(9, k, halves(kind, torch.bfloat16))
        want = oracle.reference(clean, plan)
        make_nan(oracle.weights, torch.tensor([0, 2, 4]))
        wide = clean.new_full((9, k + 48), torch.nan)
        for first in (8, 5):  # on and off a multiple of 16 bytes
            wide[:] = torch.nan
            x = wide[:, first : first + k]
            x[ids[:, 0] >= 0] = clean[ids[:, 0] >= 0]
            got = way(x, oracle.weights, plan, dtype=torch.float32)
            expect_exact(got, want, (kind, n, k, first))


def check_nan_stays(way: Way, kind: str) -> None:
    """A NaN or an infinity in a row of x or of the weights is in its own products only."""
    ids = oracles.counted(5, 13, 9)
    plan = moe.plan(ids, 3, tile_rows=4)
    for n, k in ((40, 96), (21, 34)):
        oracle = oracles.small_oracle(kind, (3, n, k), n)
        x = oracles.small_rows(len(ids), k, halves(kind, torch.bfloat16))
        want = rows_of(plan, way(x, oracle.weights, plan, dtype=torch.float32))[:, 0]
        x[2], x[11, k - 1], x[20, 0] = torch.nan, torch.nan, torch.inf
        make_nan(oracle.weights, (torch.tensor([1, 2]), torch.tensor([7, n - 1])))
        got = rows_of(plan, way(x, oracle.weights, plan, dtype=torch.float32))[:, 0]
        spoilt = torch.zeros_like(got, dtype=torch.bool)
        spoilt[[2, 11]] = True
        spoilt[(ids[:, 0] == 1).nonzero()[:, 0], 7] = True
        spoilt[(ids[:, 0] == 2).nonzero()[:, 0], n - 1] = True
        assert got[spoilt].isnan().all(), (kind, n, k)
        spoilt[20] = True
        assert bits_equal(got[~spoilt], want[~spoilt]), (kind, n, k)


# ---- rounding -----------------------------------------------------------------------------------


def check_float64(way: Way, kind: str, width: int = 320) -> None:
    """Normal numbers: relative L2, and every element against the magnitude of its terms."""
    weights = sweep.make_weights(kind, (4, 70, width), width)
    oracle = oracles.from_weights(weights)
    plan = sweep.make_plan(21, 2, 4)
    for dtype in (torch.bfloat16, torch.float16):
        x = sweep.make_rows(21, width, dtype)
        want, magnitude = oracle.reference(x, plan), oracle.magnitude(x, plan)
        for out in (torch.float32, dtype):
            got = way(x, weights, plan, dtype=out)
            error = sweep.relative_error(got, want)
            assert error < SUM_BOUND + ROUNDING[out], (kind, dtype, out, error)
        got = way(x, weights, plan, dtype=torch.float32)
        assert ((got.double() - want).abs() <= ELEMENT_BOUND * magnitude).all(), (kind, dtype)
        for interleaved in (False, True):
            how = {"activation": "swiglu", "interleaved": interleaved, "limit": 1.0}
            near = oracle.reference(x, plan, **how)
            error = sweep.relative_error(way(x, weights, plan, **how), near)
            assert error < SUM_BOUND + ROUNDING[dtype], (kind, dtype, how, error)


def check_dequantized(way: Way, kind: str) -> None:
    """Codes give what plain weights in bfloat16 of the same value give, within float32 rounding."""
    weights = sweep.make_weights(kind, (3, 50, 288), 4)
    if weights.scales.dtype == torch.float32:  # a power of two, so that bfloat16 holds the weights
        scales = torch.exp2(weights.scales.log2().round())
        exact = formats.dequantize(weights.weight, scales, weights.format, block=weights.block)
        weights = weights._replace(scales=scales, exact=exact)
    plain = sweep.Weights(weights.exact.bfloat16(), None, None, None, weights.exact)
    assert torch.equal(plain.weight.float(), plain.exact)
    plan = sweep.make_plan(17, 2, 3)
    x = sweep.make_rows(17, 288, torch.bfloat16)
    magnitude = oracles.from_weights(plain).magnitude(x, plan)
    got = way(x, weights, plan, dtype=torch.float32)
    want = way(x, plain, plan, dtype=torch.float32)
    assert ((got.double() - want.double()).abs() <= 2 * ELEMENT_BOUND * magnitude).all(), kind
    assert sweep.relative_error(got, want) < SUM_BOUND, kind


# ---- what must not matter -----------------------------------------------------------------------


def check_invariance(way: Way, kind: str, width: int = 160) -> None:
    """A row has the same bits in any batch, order, tile and alignment, gathered or not."""
    weights = sweep.make_weights(kind, (4, 66, width), 9)
    generator = torch.Generator().manual_seed(8)
    ids = torch.randint(0, 4, (75, 2), generator=generator)
    ids[:40, 0] = 1  # a hot expert
    x = sweep.make_rows(75, width, halves(kind, torch.bfloat16))
    for how in ({}, {"activation": "swiglu", "limit": 2.0}):

        def run(rows, own, tile_rows=64, alignment=1, gather=True, how=how):
            plan = moe.plan(own, 4, tile_rows=tile_rows, alignment=alignment)
            given = rows if gather else moe.permute(rows, plan)
            got = way(given, weights, plan, gather=gather, dtype=torch.float32, **how)
            return rows_of(plan, got)

        whole = run(x, ids)
        for tile_rows, alignment in ((1, 1), (7, 4), (16, 1), (48, 8)):
            assert bits_equal(run(x, ids, tile_rows, alignment), whole), (kind, tile_rows)
        assert bits_equal(run(x, ids, gather=False), whole), kind
        order = torch.randperm(75, generator=generator)
        assert bits_equal(run(x[order], ids[order]), whole[order]), (kind, "order")
        for begin, end in ((0, 1), (74, 75), (13, 30), (0, 40)):
            part = run(x[begin:end], ids[begin:end])
            assert bits_equal(part, whole[begin:end]), (kind, begin, end)


def check_layout(way: Way, kind: str) -> None:
    """The bits of weights in rows; where prepared weights take the same unit."""
    assert way.layout != "rows"
    rows = Way(way.exact, "rows")
    for n, k in ((66, 130), (33, 64), (130, 270)):
        k = oracles.aligned(kind, k)
        weights = sweep.make_weights(kind, (3, n, k), n)
        plan = sweep.make_plan(9, 2, 3, n)
        x = sweep.make_rows(9, k, halves(kind, torch.bfloat16), k)
        want = rows(x, weights, plan, dtype=torch.float32)
        assert bits_equal(way(x, weights, plan, dtype=torch.float32), want), (kind, n, k)
        if n % 2 == 0:
            how = {"activation": "swiglu", "limit": 1.0}
            assert bits_equal(way(x, weights, plan, **how), rows(x, weights, plan, **how)), kind


CHECKS = {
    function.__name__.removeprefix("check_"): function
    for function in (
        check_powers,
        check_digits,
        check_scales,
        check_edges,
        check_long_sums,
        check_groups,
        check_activation,
        check_unread,
        check_nan_stays,
        check_float64,
        check_dequantized,
        check_invariance,
    )
}
FOR_CODES = ("scales", "dequantized")


def cases(kinds=oracles.MATRIX_KINDS) -> list[tuple[str, str]]:
    """(check, kind), what there is to check of each kind."""
    return [
        (check, kind)
        for check in CHECKS
        for kind in kinds
        if kind in oracles.CODED or check not in FOR_CODES
    ]
