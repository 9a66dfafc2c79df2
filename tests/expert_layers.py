"""Whole expert layers of which the output is known bit by bit, and checks of them.

A row of x is a power of two in one column. Its gates are at least 128, where silu(g) is g in
float32; its ups are digits; a row of w2 picks one of the hidden numbers. So everything that is
rounded on the way has few digits, and a gate, an up, a column or an expert in the wrong place is
another number.
"""

from __future__ import annotations

from typing import NamedTuple

import expert_checks as checks
import expert_oracles as oracles
import expert_sweep as sweep
import torch
from kit import bits_equal

from dspark_ext import moe
from dspark_ext.reference import moe_gemm as reference

# Rows of every format of which a device takes its matrix unit for products.
SIZE, INNER, EXPERTS = 96, 32, 5
# Relative L2: three roundings to bfloat16 and float32 sums.
LAYER_BOUND = 5e-3


class Layer(NamedTuple):
    weights: moe.ExpertWeights
    exact: tuple[torch.Tensor, torch.Tensor]  # w13, w2 as float32

    def one(self, expert: int) -> Layer:
        """An expert alone, as `shared` is given."""
        tensors = {k: v[expert] for k, v in self.weights._asdict().items() if torch.is_tensor(v)}
        return Layer(self.weights._replace(**tensors), tuple(w[expert] for w in self.exact))


def layer_of(w13: sweep.Weights, w2: sweep.Weights) -> Layer:
    fields = (w13.weight, w2.weight, w13.scales, w2.scales, w13.format, w13.block)
    return Layer(moe.ExpertWeights(*fields), (w13.exact, w2.exact))


def exact_layer(kind: str, seed: int = 0) -> Layer:
    shape = (EXPERTS, 2 * INNER, SIZE)
    per_row = kind == "mxfp4"  # a scale has one row: those of gates can be larger
    numbers = torch.full(shape, 4.0 if per_row else 16.0)
    digits = oracles.scrambled((EXPERTS, INNER, SIZE), 7, seed) + 1
    numbers[:, INNER:] = oracles.FP4[digits] if per_row else digits.float()
    grid = oracles.grid_of(kind, shape)
    if grid is None:
        numbers[:, :INNER] = 128.0
        exponents = None
    else:
        exponents = torch.full(grid, 3)
        if per_row:
            exponents[:, :INNER], exponents[:, INNER:] = 5, -1
    picks = torch.zeros(EXPERTS, SIZE, INNER)
    column = (torch.arange(SIZE) * 5 + torch.arange(EXPERTS)[:, None] * 3) % INNER
    picks.scatter_(2, column[..., None], 1.0)
    grid = oracles.grid_of(kind, picks.shape)
    w2 = oracles.from_numbers(kind, picks, None if grid is None else torch.full(grid, -2))
    return layer_of(oracles.from_numbers(kind, numbers, exponents).weights, w2.weights)


def normal_layer(kind: str) -> Layer:
    return layer_of(
        sweep.make_weights(kind, (EXPERTS, 2 * INNER, SIZE), 1),
        sweep.make_weights(kind, (EXPERTS, SIZE, INNER), 2),
    )


def in_turns(weights: moe.ExpertWeights) -> moe.ExpertWeights:
    """The same experts with gates and ups in turns, for formats that have a scale per row."""

    def reorder(tensor):
        if tensor is None:
            return None
        return tensor.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2).contiguous()

    return weights._replace(
        w13=reorder(weights.w13), w13_scales=reorder(weights.w13_scales), interleaved=True
    )


def tokens(count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, ids with slots that are not here and duplicates, weights that tell the slots apart."""
    x = torch.zeros(count, SIZE)
    column = torch.arange(count) * 7 % SIZE
    x[torch.arange(count), column] = 2.0 ** (torch.arange(count) % 3)
    ids = oracles.scrambled((count, 3), EXPERTS + 2, 3) - 1  # -1 .. EXPERTS
    ids[:1], ids[1:2] = 2, -1
    weights = torch.tensor([1.0, 0.25, 2.0]).expand(count, 3).contiguous()
    return x.to(dtype), ids, weights


class LayerWay(NamedTuple):
    exact: bool
    prepared_for: str | None

    def __call__(self, x, ids, weights, layer: Layer, shared: Layer | None = None, **options):
        own, common = layer.weights, None if shared is None else shared.weights
        if self.prepared_for is not None:
            own = moe.prepare_weights(own, self.prepared_for)
            common = common and moe.prepare_weights(common, self.prepared_for)
            assert own.layout != "rows"
        fields = own._asdict()
        w13, w2 = fields.pop("w13"), fields.pop("w2")
        return moe.fused_moe(
            x, w13, w2, ids, weights, exact=self.exact, shared=common, **fields, **options
        )  # fmt: skip


LAYER_WAYS = {
    "exact": LayerWay(True, None),
    "rows": LayerWay(False, None),
    "panels": LayerWay(False, "cuda"),
    "pairs": LayerWay(False, "cpu"),
}


def check_exact_layer(way: LayerWay, kind: str) -> None:
    layer = exact_layer(kind)
    shared = exact_layer(kind, 9).one(3)
    dtype = checks.halves(kind, torch.bfloat16)
    if dtype == torch.float16:  # its range is small
        layer, shared = (_scaled_down(some) for some in (layer, shared))
    for count in (1, 23, 70):
        x, ids, weights = tokens(count, dtype)
        residual = oracles.small_rows(count, SIZE, dtype)
        for more in ({}, {"shared": shared, "residual": residual}):
            want = reference.fused_moe(
                x, *layer.exact, ids, weights, rounded=dtype,
                shared=shared.exact if more else None, residual=more.get("residual"),
            )  # fmt: skip
            got = way(x, ids, weights, layer, **more)
            checks.expect_exact(got, want, (kind, count, list(more)))


def _scaled_down(layer: Layer) -> Layer:
    w13, w2 = layer.weights.w13, layer.weights.w2 / 64
    return Layer(layer.weights._replace(w2=w2), (w13.float(), w2.float()))


def check_interleaved(way: LayerWay, kind: str) -> None:
    """Gates and ups in turns are the same experts."""
    if kind in ("fp8-128", "fp8-32", "fnuz-128"):  # blocks of rows do not follow
        return
    layer = normal_layer(kind)
    x, ids, weights = tokens(17, checks.halves(kind, torch.bfloat16))
    turned = layer._replace(weights=in_turns(layer.weights))
    for limit in (None, 0.5):
        want = way(x, ids, weights, layer, swiglu_limit=limit)
        assert bits_equal(way(x, ids, weights, turned, swiglu_limit=limit), want), kind


def check_normal_layer(way: LayerWay, kind: str) -> None:
    """Against float64, with everything at once."""
    layer = normal_layer(kind)
    dtype = checks.halves(kind, torch.bfloat16)
    _, ids, weights = tokens(40, dtype)
    x, residual = sweep.make_rows(40, SIZE, dtype), sweep.make_rows(40, SIZE, dtype, 3)
    expert_map = torch.tensor([3, 0, -1, 4, 1], dtype=torch.int32)
    shared = layer.one(2)
    here = torch.where((ids >= 0) & (ids < 5), expert_map[ids.clamp(0, 4)].long(), -1)
    want = reference.fused_moe(
        x, *layer.exact, here, weights, limit=1.0, rounded=dtype, shared=shared.exact,
        residual=residual,
    )  # fmt: skip
    got = way(
        x, ids, weights, layer, shared, swiglu_limit=1.0, residual=residual, expert_map=expert_map
    )
    assert sweep.relative_error(got, want) < LAYER_BOUND, kind
    for t in (0, 1, 39):  # and a token by itself
        one = slice(t, t + 1)
        alone = way(
            x[one], ids[one], weights[one], layer, shared, swiglu_limit=1.0,
            residual=residual[one], expert_map=expert_map,
        )  # fmt: skip
        assert bits_equal(alone, got[one]), (kind, t)


CHECKS = {
    function.__name__.removeprefix("check_"): function
    for function in (check_exact_layer, check_interleaved, check_normal_layer)
}
