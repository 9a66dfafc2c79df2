"""The expert layer in one call."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..ranges import ranged
from .dispatch import combine
from .gemm import grouped_gemm
from .plan import DispatchPlan, plan

# Rows of a tile, for which the weights of an expert are read once.
TILE_ROWS_CPU = 64
TILE_ROWS_GPU = 64


class ExpertWeights(NamedTuple):
    """The weights of gated experts.

    w13: [E, 2N, d] or its codes: the rows of the gates (w1), then those of the ups (w3); or in
        turns, see `interleaved`.
    w2: [E, d, N] or its codes.
    w13_scales, w2_scales, format, block: of codes, as for `grouped_gemm`.
    interleaved: row 2i of w13 is gate i, row 2i + 1 up i; of prepared weights: before they were.
    layout: "rows", or that of `prepare_weights`, with the shapes that it gives.
    sizes: (2N, d) and (d, N) of prepared weights.
    """

    w13: Tensor
    w2: Tensor
    w13_scales: Tensor | None = None
    w2_scales: Tensor | None = None
    format: str | None = None
    block: tuple[int, int] | None = None
    interleaved: bool = False
    layout: str = "rows"
    sizes: tuple[tuple[int, int], tuple[int, int]] | None = None


@ranged("dspark.apply_experts")
def apply_experts(
    x: Tensor,
    weights: ExpertWeights,
    plan: DispatchPlan,
    *,
    swiglu_limit: float | None = None,
    gather: bool = True,
    exact: bool = False,
) -> Tensor:
    """y[r] = w2 swiglu(w13 x[row of r]) with the weights of row r's expert.

    What `ExpertParallel` takes as `experts`, and `combine` as y. The activation takes the float32
    sums of the first product; it and the second product are rounded to the dtype of x.

    Args:
        x: [T, d], or without `gather` [capacity, d], as for `grouped_gemm`.
        weights: of the experts of the plan.
        plan: of `moe.plan(..., tile_rows=n)`.
        swiglu_limit: as for `swiglu`.
        exact: sums in the stated order, as for `grouped_gemm`.

    Returns:
        [capacity, d], dtype of x. A row does not depend on the others.

    Raises RuntimeError for shapes, dtypes, devices and formats.
    """
    first, second = (None, None) if weights.sizes is None else weights.sizes
    how = {
        "format": weights.format,
        "block": weights.block,
        "layout": weights.layout,
        "exact": exact,
    }
    hidden = grouped_gemm(
        x, weights.w13, plan, scales=weights.w13_scales, size=first, gather=gather,
        activation="swiglu", interleaved=weights.interleaved, limit=swiglu_limit, **how,
    )  # fmt: skip
    return grouped_gemm(
        hidden, weights.w2, plan, scales=weights.w2_scales, size=second, gather=False, **how
    )


@ranged("dspark.fused_moe")
def fused_moe(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    ids: Tensor,
    weights: Tensor,
    *,
    w13_scales: Tensor | None = None,
    w2_scales: Tensor | None = None,
    format: str | None = None,
    block: tuple[int, int] | None = None,
    interleaved: bool = False,
    layout: str = "rows",
    sizes: tuple[tuple[int, int], tuple[int, int]] | None = None,
    num_experts: int | None = None,
    expert_map: Tensor | None = None,
    swiglu_limit: float | None = None,
    shared: ExpertWeights | tuple | None = None,
    residual: Tensor | None = None,
    exact: bool = False,
) -> Tensor:
    """out[t] = sum over j of weights[t, j] * f[ids[t, j]](x[t]), + shared expert, + residual.

    f_e(x) = w2[e] swiglu(w13[e] x). The choices are taken in slot order in float32 and with the
    weights exactly as given: nothing is renormalised, scaled or chosen again. A choice whose expert
    is not here (id -1, or out of range) adds nothing; a token without any gives exactly 0, plus
    `shared` and `residual`. Weights of experts that no token chose are not read.

    The steps are `plan`, `grouped_gemm` with the activation, `grouped_gemm`, `combine`; what passes
    from one to the next is in the dtype of x. Their sizes follow from the shapes alone and nothing
    is read back, so that a graph can capture the call. The row of a token has the same bits run to
    run and whatever the other tokens are, with `exact` on every backend.

    Args:
        x: float32, bfloat16 or float16 [T, d]; T may be 0.
        w13, w2: [E, 2N, d] and [E, d, N], see `ExpertWeights`, with w13_scales, w2_scales, format,
            block, interleaved, layout and sizes. E may be 0: no choice is here.
        ids: int32 or int64 [T, k], any strides.
        weights: float32, bfloat16 or float16 [T, k], any strides.
        num_experts: E, if it is to be checked.
        expert_map: int32 [num_ids], the expert here of each id, as for `plan`.
        swiglu_limit: as for `swiglu`; of the shared expert, too.
        shared: an expert that every token goes to with weight 1: an `ExpertWeights` (or its fields
            as a tuple) with w13 [2N', d] and w2 [d, N'] and scales without the dimension E.
        residual: [T, d], dtype of x.
        exact: sums in the stated order, as for `grouped_gemm`.

    Returns:
        [T, d], dtype of x.

    Raises:
        RuntimeError: a shape, dtype, device or format does not fit; the message names the operator
            and the argument.
        ValueError: num_experts is not that of the weights.
    """
    experts = ExpertWeights(
        w13, w2, w13_scales, w2_scales, format, block, interleaved, layout, sizes
    )
    _check_weights(x, experts)
    if num_experts is not None and num_experts != w13.shape[0]:
        raise ValueError(
            f"dspark_ext.fused_moe: num_experts: expected E={w13.shape[0]} of w13, got "
            f"{num_experts}"
        )
    if shared is not None:
        shared = _with_one_expert(ExpertWeights(*shared))
        _check_weights(x, shared, "shared")
    rows = TILE_ROWS_CPU if x.device.type == "cpu" else TILE_ROWS_GPU
    if w13.shape[0] == 0:  # a plan has an expert: one that no id leads to
        expert_map = torch.empty(0, dtype=torch.int32, device=x.device)
    dispatch = plan(ids, max(w13.shape[0], 1), expert_map=expert_map, tile_rows=rows)
    how = {"swiglu_limit": swiglu_limit, "exact": exact}
    y = apply_experts(x, experts, dispatch, **how)
    every = None
    if shared is not None:
        every = _apply_shared(x, shared, rows, **how)
    return combine(y, dispatch, weights, shared=every, residual=residual)


def _check_weights(x: Tensor, experts: ExpertWeights, name: str = "w2") -> None:
    """That there is a w2 for each w13, and that a row comes back as wide as it was."""
    w13, w2 = experts.w13, experts.w2
    if experts.sizes is not None and [len(size) for size in experts.sizes] != [2, 2]:
        name = "sizes" if name == "w2" else name
        raise RuntimeError(
            f"dspark_ext.fused_moe: {name}: expected (N, K) of w13 and of w2, got {experts.sizes}"
        )
    if experts.layout == "rows":
        fits = w13.dim() == w2.dim() == 3 and w2.shape[1:2] == x.shape[-1:]
    else:
        fits = experts.sizes is not None and tuple(experts.sizes[1][:1]) == tuple(x.shape[-1:])
    if fits and w2.shape[:1] == w13.shape[:1]:
        return
    expected, lead = "w13 [E, 2N, d] and w2 [E, d, N]", 0
    if name != "w2":
        expected, lead = "w13 [2N, d] and w2 [d, N]", 1
    raise RuntimeError(
        f"dspark_ext.fused_moe: {name}: expected {expected} with the d of x {list(x.shape)}, got "
        f"{list(w13.shape[lead:])} and {list(w2.shape[lead:])}"
    )


def _with_one_expert(weights: ExpertWeights) -> ExpertWeights:
    """Weights without the dimension of experts, with one of size 1."""
    tensors = {
        name: value[None]
        for name, value in weights._asdict().items()
        if isinstance(value, torch.Tensor)
    }
    return weights._replace(**tensors)


def _apply_shared(x: Tensor, one: ExpertWeights, tile_rows: int, **how) -> Tensor:
    """[T, d]: the expert that every token goes to."""
    everyone = torch.zeros((x.shape[0], 1), dtype=torch.int32, device=x.device)
    dispatch = plan(everyone, 1, tile_rows=tile_rows)
    return apply_experts(x, one, dispatch, **how)
