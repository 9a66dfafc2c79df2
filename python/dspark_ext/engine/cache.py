"""Key/value caches, dense and paged, and the slots that requests hold in them."""

import dataclasses
from collections.abc import Sequence

import torch

from .paging import BlockPool


@dataclasses.dataclass
class CacheRows:
    """Where the rows of a pass lie in a cache.

    slots, positions  int32, int64 [N], cells of the stores to write
    cos, sin          [T, D], RoPE by `positions`
    read_slots        int32 [N], which of the stores that `read` returns a row reads
    blocks            int64 [R, n], blocks of the requests of the pass; None where stores are read
                      as they are
    """

    slots: torch.Tensor
    positions: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    read_slots: torch.Tensor
    blocks: torch.Tensor | None = None


class KVCache:
    """Keys and values of `num_layers` layers: fp32 [slots, length, kv_heads, head_dim] each.

    A row is addressed by (slot, position). What a request wrote stays until it is overwritten, so a
    reader must bound the positions it looks at.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        length: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (num_slots, length, num_kv_heads, head_dim)
        floats = {"dtype": torch.float32, "device": device}
        self.keys = [torch.zeros(shape, **floats) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, **floats) for _ in range(num_layers)]
        self.num_slots = num_slots
        self.length = length

    def write(
        self,
        layer: int,
        slots: torch.Tensor,
        positions: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Store rows: slots, positions int64 [N]; key, value [N, kv_heads, head_dim]."""
        self.keys[layer][slots, positions] = key
        self.values[layer][slots, positions] = value

    def begin(self, slots, positions, cos, sin) -> CacheRows:
        """Where rows at these slots and positions lie; cos, sin [length, D] by position."""
        slots = slots.int()
        return CacheRows(slots, positions, cos, sin, slots)

    def stores(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [S, L, kv_heads, head_dim] to write."""
        return self.keys[layer], self.values[layer]

    def read(self, layer: int, rows: CacheRows) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values to attend to, by `rows.read_slots` and position."""
        return self.keys[layer], self.values[layer]

    def cells(self, slot: int, first: int, stop: int) -> torch.Tensor:
        """Positions first .. stop-1 of a slot as rows of the stores, slots and positions in one."""
        return slot * self.length + torch.arange(first, stop, device="cpu")


class PagedKVCache:
    """As `KVCache`, in blocks that `pool` hands out: fp32 [blocks, block_size, kv_heads, head_dim].

    A row is written where its block lies; to be read, the blocks of a pass's requests are copied
    side by side, layer by layer.
    """

    def __init__(self, num_layers: int, pool: BlockPool, num_kv_heads: int, head_dim: int) -> None:
        self.pool = pool
        shape = (pool.num_blocks, pool.block_size, num_kv_heads, head_dim)
        floats = {"dtype": torch.float32, "device": "cpu"}
        self.keys = [torch.zeros(shape, **floats) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, **floats) for _ in range(num_layers)]
        cells = pool.num_blocks * pool.block_size
        self._cos, self._sin = (torch.zeros(cells, head_dim, **floats) for _ in range(2))

    def begin(self, slots, positions, cos, sin) -> CacheRows:
        """See `KVCache.begin`. Blocks are taken for rows that have none."""
        self.pool.grow(slots, positions)
        cells = self.pool.rows(slots, positions)
        self._cos[cells], self._sin[cells] = cos[positions], sin[positions]
        requests, request_of = torch.unique(slots, return_inverse=True)
        length = int(positions.max()) + 1 if len(positions) else 0
        blocks = self.pool.table[requests, : -(-length // self.pool.block_size)].clamp(min=0)
        one_store = torch.zeros(len(slots), dtype=torch.int32, device="cpu")
        return CacheRows(one_store, cells, self._cos, self._sin, request_of.int(), blocks)

    def stores(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `KVCache.stores`: all cells as one slot."""
        return self.keys[layer].flatten(0, 1)[None], self.values[layer].flatten(0, 1)[None]

    def read(self, layer: int, rows: CacheRows) -> tuple[torch.Tensor, torch.Tensor]:
        """See `KVCache.read`."""
        return tuple(
            store[rows.blocks].flatten(1, 2) for store in (self.keys[layer], self.values[layer])
        )

    def cells(self, slot: int, first: int, stop: int) -> torch.Tensor:
        """See `KVCache.cells`. The slot has blocks for them."""
        positions = torch.arange(first, stop, device="cpu")
        return self.pool.rows(torch.full_like(positions, slot), positions)


class SlotAllocator:
    """Hands out cache slots; the lowest free one first, so that runs repeat.

    owners  what keeps something per slot: the target, the drafter. Those that have
            `reserve(slot, length) -> bool` are asked before a slot is taken, those that have
            `release(slot)` are told when it is given back.
    """

    def __init__(self, num_slots: int, owners: Sequence[object] = ()) -> None:
        self._free = list(range(num_slots))[::-1]
        self._reserve = [owner.reserve for owner in owners if hasattr(owner, "reserve")]
        self._release = [owner.release for owner in owners if hasattr(owner, "release")]

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self, length: int = 0) -> int | None:
        """A slot with room for `length` positions, or None while there is no such room."""
        slot = self._free[-1]
        if not all(reserve(slot, length) for reserve in self._reserve):
            self._tell(slot)
            return None
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        self._free.append(slot)
        self._free.sort(reverse=True)
        self._tell(slot)

    def _tell(self, slot: int) -> None:
        for release in self._release:
            release(slot)
