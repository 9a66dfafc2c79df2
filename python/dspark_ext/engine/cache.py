"""Dense key/value caches and the slots that requests hold in them."""

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
    """Hands out cache slots; the lowest free one first, so that runs repeat."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots))[::-1]

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        self._free.append(slot)
        self._free.sort(reverse=True)
