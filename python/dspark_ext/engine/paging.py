"""Blocks of cache positions: which block of a shared store holds which positions of which slot."""

import heapq

import torch


class CacheFullError(RuntimeError):
    """A pass needs more cache blocks than are free."""


class BlockPool:
    """Hands out blocks of `block_size` positions to slots, the lowest free block first.

    num_slots   requests at a time
    max_len     positions a slot may have
    block_size  positions per block
    num_blocks  blocks altogether; default: enough for every slot to be full

    `table` int64 [num_slots, ceil(max_len / block_size)] holds the block of each run of positions,
    -1 where there is none: the field's block table. Position p of a slot lies in row
    `table[slot, p // block_size] * block_size + p % block_size` of the store.

    `version` counts the changes of the table, for those who keep a copy of it.

    A slot takes blocks by `reserve`, before its request is admitted, or by `grow`, as its passes
    need them, and gives them all back by `release`.
    """

    def __init__(
        self, num_slots: int, max_len: int, block_size: int, num_blocks: int | None = None
    ) -> None:
        blocks_per_slot = -(-max_len // block_size) if block_size >= 1 else 0
        if num_blocks is None:
            num_blocks = num_slots * blocks_per_slot
        for name, value in (("block_size", block_size), ("num_blocks", num_blocks)):
            if value < 1:
                raise ValueError(f"dspark_ext.engine.BlockPool: {name}: expected >= 1, got {value}")
        self.num_slots, self.max_len, self.block_size = num_slots, max_len, block_size
        self.num_blocks = num_blocks
        self.table = torch.full((num_slots, blocks_per_slot), -1, dtype=torch.int64, device="cpu")
        self.version = 0
        self._held = [0] * num_slots
        self._free = list(range(num_blocks))

    @property
    def available(self) -> int:
        """Free blocks."""
        return len(self._free)

    def held(self, slot: int) -> int:
        """Blocks of a slot."""
        return self._held[slot]

    def reserve(self, slot: int, length: int) -> bool:
        """Give `slot` blocks for `length` positions. False, and nothing changes, if too few are
        free. A length that no pool of this size could hold is a CacheFullError."""
        wanted = -(-min(length, self.max_len) // self.block_size)
        if wanted > self.num_blocks:
            raise CacheFullError(
                f"dspark_ext.engine.BlockPool: a request of {length} positions needs {wanted} "
                f"blocks of {self.block_size}, and there are {self.num_blocks} altogether"
            )
        missing = wanted - self._held[slot]
        if missing > len(self._free):
            return False
        for index in range(self._held[slot], wanted):
            self.table[slot, index] = heapq.heappop(self._free)
            self.version += 1
        self._held[slot] = max(self._held[slot], wanted)
        return True

    def grow(self, slots: torch.Tensor, positions: torch.Tensor) -> None:
        """Make sure that all rows of a pass (int64 [N]; a negative slot is padding) have blocks."""
        for slot, position in zip(slots.tolist(), positions.tolist(), strict=True):
            if slot >= 0 and position >= self._held[slot] * self.block_size:
                self._grow(slot, position)

    def _grow(self, slot: int, position: int) -> None:
        if position >= self.max_len:
            raise ValueError(
                f"dspark_ext.engine.BlockPool: positions: expected 0..{self.max_len - 1}, got "
                f"{position} for slot {slot}"
            )
        if not self.reserve(slot, position + 1):
            raise CacheFullError(
                f"dspark_ext.engine.BlockPool: slot {slot} needs a block for position {position} "
                f"and none of the {self.num_blocks} is free; give the cache more blocks, or "
                "reserve a request's blocks before it is admitted"
            )

    def release(self, slot: int) -> None:
        """Take back all blocks of a slot."""
        for block in self.table[slot, : self._held[slot]].tolist():
            heapq.heappush(self._free, block)
        self.table[slot] = -1
        self.version += self._held[slot] > 0
        self._held[slot] = 0

    def rows(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rows of the store, int64 [N] (the field's slot mapping); the positions have blocks.
        Padding, of a negative slot, gets the row behind the last block."""
        blocks = self.table[slots.clamp(min=0), positions // self.block_size]
        rows = blocks * self.block_size + positions % self.block_size
        return torch.where(slots < 0, self.num_blocks * self.block_size, rows)


class SlotBlocks(BlockPool):
    """The dense cache as a pool: block s is slot s's for good, and as long as a slot may get."""

    def __init__(self, num_slots: int, max_len: int) -> None:
        super().__init__(num_slots, max_len, max_len)
        self.table = torch.arange(num_slots, device="cpu")[:, None]
        self._held = [1] * num_slots
        self._free = []

    def release(self, slot: int) -> None:
        """The block stays the slot's."""


def make_pool(
    num_slots: int, max_len: int, block_size: int | None, num_blocks: int | None
) -> BlockPool:
    """Dense without a block size, paged with one."""
    if block_size is not None:
        return BlockPool(num_slots, max_len, block_size, num_blocks)
    if num_blocks is not None:
        raise ValueError(
            f"dspark_ext.engine: num_blocks: expected None without a block_size, got {num_blocks}"
        )
    return SlotBlocks(num_slots, max_len)
