"""One pass of a model over rows of several requests: where the rows lie and which keys they see."""

import torch

from .paging import BlockPool
from .target import Bounds


class ComputedKeysError(Exception):
    """An attention module reads keys that it computed from what its cache gave back."""


class LayerStore:
    """Keys and values of the layers of a model: [blocks + 1, block_size, heads, dim], made when a
    layer first writes, in its dtype and on its device. The last block takes padding rows.

    gathers  whether a layer that writes gets back what its requests hold, as models need that
             compute keys from what they cached (latent attention); else attention reads the store
    table    int64 [num_slots + 1, blocks per slot] on the device of passes in fixed shapes: the
             pool's, the last block where there is none. Filled in place by `refill`
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.gathers = False
        self.table: torch.Tensor | None = None
        self._version = -1
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    def write(self, layer: int, rows: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store key, value [N, heads, dim] in `rows` int64 [N] of the store."""
        for store, states in ((self.keys, key), (self.values, value)):
            if layer not in store:
                shape = (self.pool.num_blocks + 1, self.pool.block_size, *states.shape[1:])
                store[layer] = torch.zeros(shape, dtype=states.dtype, device=states.device)
            store[layer].flatten(0, 1)[rows] = states

    def refill(self, device: torch.device) -> None:
        """Bring `table` up to date with the pool."""
        if self._version == self.pool.version:
            return
        table = torch.nn.functional.pad(self.pool.table, (0, 0, 0, 1), value=-1)
        table = torch.where(table < 0, self.pool.num_blocks, table)
        if self.table is None:
            self.table = torch.empty_like(table, device=device)
        self.table.copy_(table)
        self._version = self.pool.version


class Pass:
    """Rows of one forward pass.

    slots, positions  int64 [N]; a negative slot is padding
    requests          int64 [R], the slots that occur, ascending, padding among them
    request_of        int64 [N], index into `requests`
    columns, width    a row's place among the rows of its request, and the most rows of a request
    length            keys that are looked at per request: one more than the highest position
    """

    fixed_shapes = False

    def __init__(self, store: LayerStore, slots, positions, device: torch.device) -> None:
        slots, positions = slots.cpu(), positions.cpu()
        pool = store.pool
        pool.grow(slots, positions)
        self.store, self.device = store, device
        self.requests, request_of = torch.unique(slots, return_inverse=True)
        self.length = int(positions.max()) + 1
        blocks = pool.table[self.requests.clamp(min=0), : -(-self.length // pool.block_size)]
        blocks = torch.where(self.requests[:, None] < 0, pool.num_blocks, blocks.clamp(min=0))
        order = torch.argsort(request_of, stable=True)
        first = torch.searchsorted(request_of[order], request_of[order])
        columns = torch.empty_like(order)
        columns[order] = torch.arange(len(order), device="cpu") - first
        self.width = int(columns.max()) + 1
        self.positions, self.request_of = positions.to(device), request_of.to(device)
        self.columns, self.blocks = columns.to(device), blocks.to(device)
        self.rows = pool.rows(slots, positions).to(device)
        # Where a request is one block, the store itself can be read by block.
        self.row_blocks = self.blocks[self.request_of, 0].int() if blocks.shape[1] == 1 else None
        self._written: dict[int, tuple[torch.Tensor, int]] = {}
        self._ranges: dict[int, tuple] = {}

    def write(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [1, heads, N, dim] of a layer, as its model computed them. Returns what
        the model goes on with: the same, or all requests' [1, heads, R * length, dim]."""
        self.store.write(layer, self.rows, key[0].transpose(0, 1), value[0].transpose(0, 1))
        if not self.store.gathers:
            self._written[id(key)] = key, layer
            return key, value
        return tuple(
            self.gathered(store[layer]).flatten(0, 1).transpose(0, 1)[None]
            for store in (self.store.keys, self.store.values)
        )

    def stores_of(self, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The stores of the layer that wrote `key` in this pass: the attention that reads it need
        not be that layer's own (shared keys)."""
        if id(key) not in self._written:
            raise ComputedKeysError
        layer = self._written[id(key)][1]
        return self.store.keys[layer], self.store.values[layer]

    def visible(self, mask: torch.Tensor | None) -> torch.Tensor:
        """bool [N, length]: keys of its request that a row sees; without a mask, all up to it."""
        if mask is not None:
            return mask[0, 0, :, : self.length]
        keys = torch.arange(self.length, device=self.device)
        return keys <= self.positions[:, None]

    def ranges(self, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor] | None:
        """First key and end, int32 [N] each, if every row sees an unbroken range; else None."""
        if id(mask) not in self._ranges:
            visible = self.visible(mask)
            count = visible.sum(1)
            start = visible.int().argmax(1)
            end = self.length - visible.flip(1).int().argmax(1)
            unbroken = bool((end - start == count).all())
            found = (start.int(), end.int()) if unbroken else None
            self._ranges[id(mask)] = mask, found
        return self._ranges[id(mask)][1]

    def gathered(self, store: torch.Tensor) -> torch.Tensor:
        """[R, length, heads, dim]: a copy of what the requests hold."""
        return store[:, : self.length][self.blocks].flatten(1, 2)[:, : self.length]

    def padded(self, rows: torch.Tensor, fill: float = 0) -> torch.Tensor:
        """Rows [N, ...] laid out by request, [R, width, ...]."""
        shape = (len(self.blocks), self.width, *rows.shape[1:])
        out = torch.full(shape, fill, dtype=rows.dtype, device=rows.device)
        out[self.request_of, self.columns] = rows
        return out


class FixedPass(Pass):
    """A pass whose operations and shapes depend on its number of rows and `bounds` alone, made of
    what lies on the device: it can be captured and replayed with other rows.

    It is laid out for as many requests as there can be, min(N, num_slots), of `bounds.width` rows
    and `bounds.length` keys each. Those that are not there read the padding block. No row is
    padding, positions have blocks (`BlockPool.reserve`), and `store.refill` was called.
    """

    fixed_shapes = True

    def __init__(self, store: LayerStore, slots, positions, bounds: Bounds) -> None:
        pool, num_rows = store.pool, len(slots)
        size = pool.block_size
        self.store, self.device, self.positions = store, slots.device, positions
        self.length, self.width = bounds.length, min(bounds.width, num_rows)
        present = torch.zeros(pool.num_slots, dtype=torch.int64, device=self.device)
        present = present.scatter_(0, slots, 1)
        self.request_of = (present.cumsum(0) - 1)[slots]
        none = present.new_full((min(num_rows, pool.num_slots),), pool.num_slots)
        requests = none.scatter(0, self.request_of, slots)
        first = torch.full_like(none, pool.max_len)
        first.scatter_reduce_(0, self.request_of, positions, "amin")
        self.columns = positions - first[self.request_of]
        self.blocks = store.table[:, : -(-self.length // size)][requests]
        self.rows = store.table[slots, positions // size] * size + positions % size
        self._written: dict[int, tuple[torch.Tensor, int]] = {}
