"""Dense key/value caches and the slots that requests hold in them."""

from collections.abc import Sequence

import torch


class KVCache:
    """Keys and values of `num_layers` layers: fp32 [slots, length, kv_heads, head_dim] each.

    A row is addressed by (slot, position). What a request wrote stays until it is overwritten, so a
    reader must bound the positions it looks at.
    """

    def __init__(
        self, num_layers: int, num_slots: int, length: int, num_kv_heads: int, head_dim: int
    ) -> None:
        shape = (num_slots, length, num_kv_heads, head_dim)
        self.keys = [torch.zeros(shape) for _ in range(num_layers)]
        self.values = [torch.zeros(shape) for _ in range(num_layers)]
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
