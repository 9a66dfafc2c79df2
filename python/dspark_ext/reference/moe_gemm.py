"""The expert layer in float64, from numbers that are already decoded."""

from __future__ import annotations

import torch
from torch import Tensor


def expert_of_rows(plan) -> Tensor:
    """int64 [capacity]: the expert of each row of a `DispatchPlan`, -1 where it holds no slot."""
    rows = torch.arange(len(plan.sorted), device=plan.sorted.device)
    expert = torch.searchsorted(plan.offsets[1:].contiguous(), rows, right=True)
    return torch.where(plan.sorted < plan.inverse.numel(), expert, -1)


def grouped_gemm(x: Tensor, weight: Tensor, plan, gather: bool = True) -> Tensor:
    """float64 [capacity, N] from x [T, K] (or [capacity, K]) and weight [E, N, K]."""
    expert = expert_of_rows(plan)
    out = x.new_zeros((len(expert), weight.shape[1]), dtype=torch.float64)
    for e in expert.unique().tolist():
        if e < 0:
            continue
        rows = (expert == e).nonzero()[:, 0]
        source = plan.sorted[rows] // plan.inverse.shape[1] if gather else rows
        out[rows] = x[source].double() @ weight[e].double().T
    return out


def swiglu(gate_up: Tensor, limit: float | None = None, interleaved: bool = False) -> Tensor:
    """float64 [rows, N] from [rows, 2N]."""
    values = gate_up.double()
    if interleaved:
        gate, up = values[:, 0::2], values[:, 1::2]
    else:
        gate, up = values.chunk(2, 1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up


def fused_moe(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    ids: Tensor,
    weights: Tensor,
    *,
    limit: float | None = None,
    shared: tuple[Tensor, Tensor] | None = None,
    residual: Tensor | None = None,
    rounded: torch.dtype = torch.float64,
) -> Tensor:
    """float64 [T, d]; ids outside [0, E) are not here. The activation and the second product are
    rounded to `rounded`."""

    def expert(row: Tensor, first: Tensor, second: Tensor) -> Tensor:
        gate_up = first.double() @ row.double()
        hidden = swiglu(gate_up[None], limit)[0].to(rounded)
        return (second.double() @ hidden.double()).to(rounded).double()

    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, slots in enumerate(ids.tolist()):
        for j, e in enumerate(slots):
            if 0 <= e < len(w13):
                out[t] += weights[t, j].double() * expert(x[t], w13[e], w2[e])
        if shared is not None:
            out[t] += expert(x[t], *shared)
        if residual is not None:
            out[t] += residual[t].double()
    return out
