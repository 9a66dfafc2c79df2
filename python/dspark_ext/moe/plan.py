"""Which row of the order of experts each choice of each token takes."""

from typing import NamedTuple

import torch

from .. import _operators as _ops


class DispatchPlan(NamedTuple):
    """Result of `plan`. T tokens, k slots per token, E experts; slot t * k + j is choice j of t.

    A row is a place in the order of experts: expert e owns rows offsets[e] .. offsets[e + 1] - 1,
    the first counts[e] of them hold its slots in ascending order, the rest is padding. Every entry
    of every tensor is defined, whatever the ids were.

    counts: int64 [E], slots of each expert.
    offsets: int64 [E + 1], multiples of the alignment; the last is the number of rows.
    sorted: int64 [capacity], the slot of each row; T * k on padding rows and past the end.
    inverse: int64 [T, k], the row of each slot; -1 where the slot is not here.
    total: int64 [], rows in use, padding included; offsets[E].
    tile_expert: int32 [tile_capacity], expert of each tile, tiles in the order of rows; -1 past the
        end.
    tile_row: int64 [tile_capacity], first row of each tile; 0 past the end.
    tile_size: int32 [tile_capacity], rows of each tile that hold a slot, 1 .. tile_rows; 0 past the
        end.
    num_tiles: int64 [].
    """

    counts: torch.Tensor
    offsets: torch.Tensor
    sorted: torch.Tensor
    inverse: torch.Tensor
    total: torch.Tensor
    tile_expert: torch.Tensor
    tile_row: torch.Tensor
    tile_size: torch.Tensor
    num_tiles: torch.Tensor


class PlanCapacity(NamedTuple):
    """Result of `plan_capacity`: what a plan has room for, whatever the ids.

    rows: entries of `DispatchPlan.sorted`, and rows of what `permute` returns.
    tiles: entries of the tile table.
    """

    rows: int
    tiles: int


def plan(
    ids: torch.Tensor,
    num_experts: int,
    *,
    alignment: int = 1,
    expert_map: torch.Tensor | None = None,
    tile_rows: int | None = None,
) -> DispatchPlan:
    """Sorts the choices of all tokens by expert, stably.

    A slot is *not here*, and gets no row, if its id is -1 or otherwise outside [0, num_ids), or if
    `expert_map` sends it outside [0, E). Several slots of a token may have the same expert. The
    result is a function of the ids alone, the same on every backend (docs/moe.md).

    Args:
        ids: int32 or int64 [T, k], any strides; T and k may be 0.
        num_experts: E, 1 .. 4096: the experts of this plan, here on this rank.
        alignment: rows of every expert begin and end at multiples of it, 1 .. 2^20.
        expert_map: int32 [num_ids], expert of each id, for ids that count the experts of all ranks;
            default: ids are experts, num_ids = E.
        tile_rows: also cut the rows of every expert into tiles of at most so many, 1 .. 2^20, none
            of which holds rows of two experts. Default: no tiles, tile tensors of length 0.

    Allocates by `plan_capacity`, never by the ids, and reads nothing back: a graph can capture it.

    Raises RuntimeError for shapes, dtypes, devices and sizes out of range.
    """
    if tile_rows is not None and tile_rows < 1:
        raise RuntimeError(f"dspark_ext.plan: tile_rows: expected at least 1, got {tile_rows}")
    return DispatchPlan(*_ops.plan(ids, num_experts, alignment, expert_map, tile_rows or 0))


def plan_capacity(
    num_tokens: int, k: int, num_experts: int, alignment: int = 1, tile_rows: int | None = None
) -> PlanCapacity:
    """Rows and tiles of a plan: the least that suffice for every choice of ids.

    At most min(E, T * k) experts have slots, and each of them wastes at most alignment - 1 rows:
    rows = floor((T * k + min(E, T * k) * (alignment - 1)) / alignment) * alignment, which is T * k
    without alignment. Tiles are counted the same way, with tile_rows for the alignment. Some ids
    need exactly so many.

    Args:
        num_tokens, k: T and slots per token.
        num_experts, alignment, tile_rows: as given to `plan`.

    Raises RuntimeError for numbers that are negative or, of the last three, below 1.
    """
    sizes = {"num_tokens": num_tokens, "k": k}
    units = {"num_experts": num_experts, "alignment": alignment, "tile_rows": tile_rows}
    for least, numbers in ((0, sizes), (1, units)):
        for name, value in numbers.items():
            if value is not None and value < least:
                raise RuntimeError(
                    f"dspark_ext.plan_capacity: {name}: expected at least {least}, got {value}"
                )

    def most_units(unit: int) -> int:
        slots = num_tokens * k
        return (slots + min(num_experts, slots) * (unit - 1)) // unit

    return PlanCapacity(
        most_units(alignment) * alignment, 0 if tile_rows is None else most_units(tile_rows)
    )
