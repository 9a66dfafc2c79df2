"""Fake kernels of the dispatch operators."""

import torch

from ._register import register_fake


def _most_units(num_slots, num_experts, unit):
    """Units of rows that any ids give; dspark_ext.moe.plan_capacity."""
    return (num_slots + torch.sym_min(num_experts, num_slots) * (unit - 1)) // unit


@register_fake("plan")
def _plan(ids, num_experts, alignment, expert_map, tile_rows):
    tokens, k = ids.shape
    rows = _most_units(tokens * k, num_experts, alignment) * alignment
    tiles = 0 if tile_rows == 0 else _most_units(tokens * k, num_experts, tile_rows)
    return (
        ids.new_empty((num_experts,), dtype=torch.int64),
        ids.new_empty((num_experts + 1,), dtype=torch.int64),
        ids.new_empty((rows,), dtype=torch.int64),
        ids.new_empty((tokens, k), dtype=torch.int64),
        ids.new_empty((), dtype=torch.int64),
        ids.new_empty((tiles,), dtype=torch.int32),
        ids.new_empty((tiles,), dtype=torch.int64),
        ids.new_empty((tiles,), dtype=torch.int32),
        ids.new_empty((), dtype=torch.int64),
    )


@register_fake("permute")
def _permute(x, sorted, inverse):
    return x.new_empty((sorted.shape[0], x.shape[1]))


@register_fake("combine")
def _combine(y, inverse, weights, shared, residual):
    return y.new_empty((inverse.shape[0], y.shape[1]))
