"""Dispatch to experts and back, as docs/moe.md defines it, in readable numpy and float64 torch."""

from __future__ import annotations

import numpy as np
import torch


def plan(
    ids: np.ndarray,
    num_experts: int,
    alignment: int = 1,
    expert_map: np.ndarray | None = None,
    tile_rows: int = 0,
) -> dict[str, np.ndarray]:
    """The tensors of `moe.DispatchPlan` by name, from ids [T, k]. Exact."""
    slots = ids.astype(np.int64).ravel()
    known = np.arange(num_experts) if expert_map is None else expert_map.astype(np.int64)
    here = (slots >= 0) & (slots < len(known))
    experts = np.full(slots.shape, -1)
    experts[here] = known[slots[here]]
    experts[(experts < 0) | (experts >= num_experts)] = num_experts  # not here: behind all others
    order = np.argsort(experts, kind="stable")

    counts = np.bincount(experts, minlength=num_experts + 1)[:num_experts]
    offsets = np.concatenate([[0], np.cumsum(-(-counts // alignment) * alignment)])
    most = min(num_experts, len(slots))
    capacity = (len(slots) + most * (alignment - 1)) // alignment * alignment
    rows = np.concatenate(
        [offsets[e] + np.arange(count) for e, count in enumerate(counts) if count]
        or [np.zeros(0, dtype=np.int64)]
    )
    placed = order[: len(rows)]
    in_rows = np.full(capacity, len(slots))
    in_rows[rows] = placed
    inverse = np.full(len(slots), -1)
    inverse[placed] = rows

    tiles = [
        (e, offsets[e] + begin, min(tile_rows, count - begin))
        for e, count in enumerate(counts)
        for begin in (range(0, count, tile_rows) if tile_rows else ())
    ]
    tile_capacity = (len(slots) + most * (tile_rows - 1)) // tile_rows if tile_rows else 0
    table = np.array([*tiles, *[(-1, 0, 0)] * (tile_capacity - len(tiles))]).reshape(-1, 3)
    return {
        "counts": counts,
        "offsets": offsets,
        "sorted": in_rows,
        "inverse": inverse.reshape(ids.shape),
        "total": offsets[-1],
        "tile_expert": table[:, 0].astype(np.int32),
        "tile_row": table[:, 1].astype(np.int64),
        "tile_size": table[:, 2].astype(np.int32),
        "num_tiles": np.int64(len(tiles)),
    }


def permute(x: torch.Tensor, in_rows: torch.Tensor, k: int) -> torch.Tensor:
    """Rows of x [T, d] in the order of `in_rows` [capacity], the `sorted` of a plan."""
    out = x.new_zeros((len(in_rows), x.shape[1]))
    is_slot = in_rows < len(x) * k
    out[is_slot] = x[in_rows[is_slot] // k]
    return out


def combine(
    y: torch.Tensor,
    inverse: torch.Tensor,
    weights: torch.Tensor,
    shared: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """float64 [T, d]: the sum, not rounded to float32 on the way."""
    out = torch.zeros(inverse.shape[0], y.shape[1], dtype=torch.float64)
    for j in range(inverse.shape[1]):
        here = inverse[:, j] >= 0
        rows = y[inverse[here, j]].double()
        out[here] += weights[here, j].double()[:, None] * rows
    for addend in (shared, residual):
        if addend is not None:
            out += addend.double()
    return out
