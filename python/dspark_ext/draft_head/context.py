"""The context of a draft head: keys and values of verified tokens, per request slot.

Only verified and kept tokens are appended; the rows of a block are never written. A windowed
flavour keeps a ring of the last `window + max_rollback` positions, the others keep `max_len`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .._recording import reads_values
from .state import ContextState, state_header


class BlockView:
    """The context that one pass over blocks reads; the rows of the block itself come with each
    call and are kept by nobody."""

    def __init__(self, context: DraftContext, slots: Tensor, visible: Tensor) -> None:
        self._context, self._slots, self._visible = context, slots, visible

    def visible(self, rows: int) -> Tensor:
        """bool [B, N + rows]: which of the N context entries, and all `rows` of the block."""
        block = self._visible.new_ones(len(self._slots), rows)
        return torch.cat([self._visible, block], 1)

    def joined(self, name: str, layer: int, block: Tensor) -> Tensor:
        """[B, N + rows, ...]: the entries `name` of `layer`, then `block` [B, rows, ...]."""
        columns = self._visible.shape[1]
        store = getattr(self._context, name)[layer, self._slots, :columns]
        return torch.cat([store.to(block.dtype), block], 1)


class DraftContext(nn.Module):
    """Slots 0 .. max_requests-1, each the context of one request.

    entries       name -> shape of what a layer stores per token, e.g. {"kv": (512,)}
    window        positions before an anchor that a block sees, or None for all
    max_len       positions a request may have
    max_rollback  positions that `truncate` may take back where a window limits what is kept

    Positions of a slot are appended in order, without gaps: the first row of a call is at most the
    slot's length. Appending at an earlier position takes back what was there and behind it, so a
    slot is reused by appending from position 0. Where a window limits what is kept, a call that
    brings at least `window` rows may leave a gap before them; to begin a new request so, first
    `truncate` the slot to 0.

    The tensors are buffers without a place in state_dict(). `lengths` int64 [max_requests] holds
    the number of positions of each slot.
    """

    def __init__(
        self,
        flavour: str,
        num_layers: int,
        entries: Mapping[str, tuple[int, ...]],
        *,
        window: int | None,
        max_requests: int,
        max_len: int,
        max_rollback: int = 16,
        dtype: torch.dtype = torch.float32,
        device=None,
    ) -> None:
        super().__init__()
        self.flavour, self.num_layers, self.entries = flavour, num_layers, dict(entries)
        self.window, self.max_requests, self.max_len = window, max_requests, max_len
        sizes = {"max_requests": max_requests, "max_len": max_len, "max_rollback": max_rollback}
        for name, value in sizes.items():
            if value < 0:
                raise ValueError(
                    f"dspark_ext.draft_head: allocate_context: {name}: expected at least 0, got "
                    f"{value}"
                )
        self.capacity = max_len if window is None else min(max_len, window + max_rollback)
        # One slot more than requests: padding rows land there, and its length stays 0.
        self._padding = max_requests
        shape = (max_requests + 1, self.capacity)
        with torch.inference_mode(False):  # written to in any mode
            for name, entry in self.entries.items():
                store = torch.zeros(num_layers, *shape, *entry, dtype=dtype, device=device)
                self.register_buffer(name, store, persistent=False)
            held = torch.full(shape, -1, dtype=torch.int64, device=device)
            ends = torch.zeros(max_requests + 1, dtype=torch.int64, device=device)
        self.register_buffer("held", held, persistent=False)  # position of each entry, -1 = none
        self.register_buffer("_ends", ends, persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        return getattr(self, next(iter(self.entries))).dtype

    @property
    def lengths(self) -> Tensor:
        return self._ends[: self.max_requests]

    def append(self, rows: Mapping[str, Tensor], positions: Tensor, slots: Tensor) -> None:
        """Store ragged rows: name -> [num_layers, T, ...]; positions, slots int64 [T].

        Rows of slot -1 are padding. The rows of a slot are consecutive positions in any order. On a
        CPU a gap, a repeated position, one beyond max_len and a foreign slot are errors; elsewhere
        the caller answers for them.
        """
        if positions.numel() == 0:
            return
        if reads_values(positions):
            self._check_rows(positions, slots)
        slots = torch.where(slots < 0, self._padding, slots)
        last = torch.full_like(self._ends, -1).scatter_reduce_(0, slots, positions, "amax")
        if self.window is not None:
            # What lies before a gap is of no use and may be of another request.
            first = torch.full_like(self._ends, self.max_len)
            first.scatter_reduce_(0, slots, positions, "amin")
            gap = (last >= 0) & (first > self._ends)
            self.held.masked_fill_(gap[:, None], -1)
        # Of a chunk longer than the ring only the last rows stay.
        kept = (slots != self._padding) & (positions > last[slots] - self.capacity)
        slots = torch.where(kept, slots, self._padding)
        column = positions.remainder(self.capacity)
        for name in self.entries:
            getattr(self, name)[:, slots, column] = rows[name].to(self.dtype)
        self.held[slots, column] = positions
        last[self._padding] = -1
        self._ends.copy_(torch.where(last >= 0, last + 1, self._ends))

    def view(self, slots: Tensor, anchors: Tensor) -> BlockView:
        """What the blocks at `anchors` of `slots`, both int64 [B], may look at: the positions
        before the anchor, at most `window` of them. A slot of -1 sees nothing. On a CPU an anchor
        beyond the slot's length, or one whose window is not there any more, is an error; elsewhere
        its block just sees less."""
        if reads_values(slots):
            self._check_anchors(slots, anchors)
        slots = torch.where(slots < 0, self._padding, slots)
        columns = self.capacity
        if self.window is None and reads_values(slots):
            columns = int(self._ends[slots].max()) if len(slots) else 0
        held = self.held[slots, :columns]
        visible = (held >= 0) & (held < torch.minimum(anchors, self._ends[slots])[:, None])
        if self.window is not None:
            visible &= held >= (anchors - self.window)[:, None]
            if reads_values(slots):
                seen = visible.sum(1)
                lost = (slots != self._padding) & (seen < anchors.clamp(max=self.window))
                for row in lost.nonzero()[:1, 0].tolist():
                    self._held_columns("draft", int(slots[row]), int(anchors[row]))
        return BlockView(self, slots, visible)

    def truncate(self, slots: Tensor, lengths: Tensor) -> None:
        """Keep the first `lengths` positions of `slots`, both int64 [n], and forget the rest.

        Raises ValueError where that is more than the slot has, or where a window needs positions
        that the ring has given up (more than `max_rollback` taken back). Reads device values.
        """
        self._check_index("truncate", "slots", slots)
        self._check_index("truncate", "lengths", lengths, len(slots))
        if len(slots.unique()) != len(slots):
            raise ValueError(
                f"dspark_ext.draft_head: truncate: slots: expected each slot once, got "
                f"{slots.tolist()}"
            )
        for slot, length in zip(slots.tolist(), lengths.tolist()):
            self._check_slot("truncate", slot)
            end = int(self._ends[slot])
            if not 0 <= length <= end:
                raise ValueError(
                    f"dspark_ext.draft_head: truncate: lengths: expected 0..{end} for slot {slot}, "
                    f"got {length}"
                )
            self._held_columns("truncate", slot, length)
        self._ends[slots] = lengths.to(self._ends)

    def export_state(self, slot: int) -> ContextState:
        """A copy of what a block behind the slot's last position needs, on the CPU."""
        self._check_slot("export_state", slot)
        columns = self._held_columns("export_state", slot, int(self._ends[slot]))
        tensors = {name: getattr(self, name)[:, slot, columns].cpu() for name in self.entries}
        return ContextState(self._header(), self.held[slot, columns].cpu(), tensors)

    def import_state(self, slot: int, state: ContextState) -> None:
        """Make `slot` the request that `state` was exported from; it replaces what was there."""
        self._check_slot("import_state", slot)
        state.check(self._header(), {name: self.num_layers for name in self.entries}, self.entries)
        length = state.length
        if length > self.max_len:
            raise ValueError(
                f"dspark_ext.draft_head: import_state: positions: expected at most max_len "
                f"{self.max_len}, got {length}"
            )
        columns = (state.positions % self.capacity).to(self.held.device)
        self.held[slot] = -1
        self.held[slot, columns] = state.positions.to(self.held)
        for name in self.entries:
            store = getattr(self, name)
            store[:, slot, columns] = state.tensors[name].to(store)
        self._ends[slot] = length

    def _header(self) -> dict[str, str]:
        return state_header(self.flavour, self.num_layers, self.entries, self.window, self.dtype)

    def _held_columns(self, call: str, slot: int, length: int) -> Tensor:
        """Columns of the positions a block at `length` sees, ascending; all must be there."""
        first = 0 if self.window is None else max(0, length - self.window)
        wanted = torch.arange(first, length, device=self.held.device)
        columns = wanted.remainder(self.capacity)
        missing = wanted[self.held[slot, columns] != wanted]
        if len(missing):
            raise ValueError(
                f"dspark_ext.draft_head: {call}: slot {slot} needs positions {first}..{length - 1} "
                f"at length {length} and has given up {int(missing[0])}..{int(missing[-1])}; the "
                f"ring holds {self.capacity} positions (window {self.window} + max_rollback)"
            )
        return columns

    def check_rows(self, count: int, positions: Tensor, slots: Tensor) -> None:
        """Raises ValueError unless there are `count` positions and slots."""
        self._check_index("append", "positions", positions, count)
        self._check_index("append", "slots", slots, count)

    @staticmethod
    def _check_index(call: str, name: str, values: Tensor, size: int | None = None) -> None:
        fits = values.dim() == 1 and size in (None, len(values))
        if values.dtype != torch.int64 or not fits:
            dtype = str(values.dtype).removeprefix("torch.")
            expected = "[n]" if size is None else f"[{size}]"
            raise ValueError(
                f"dspark_ext.draft_head: {call}: {name}: expected int64 {expected}, got {dtype} "
                f"{list(values.shape)}"
            )

    def _check_slot(self, call: str, slot: int) -> None:
        if not 0 <= slot < self.max_requests:
            raise ValueError(
                f"dspark_ext.draft_head: {call}: slot: expected 0..{self.max_requests - 1}, "
                f"got {slot}"
            )

    def _check_anchors(self, slots: Tensor, anchors: Tensor) -> None:
        for slot, anchor in zip(slots.tolist(), anchors.tolist()):
            if slot < 0:
                continue
            self._check_slot("draft", slot)
            if not 0 <= anchor <= int(self._ends[slot]):
                raise ValueError(
                    f"dspark_ext.draft_head: draft: positions: expected 0..{int(self._ends[slot])} "
                    f"for slot {slot} (tokens appended so far), got {anchor}"
                )

    def _check_rows(self, positions: Tensor, slots: Tensor) -> None:
        real = slots >= 0
        positions, slots = positions[real], slots[real]
        if len(slots) == 0:
            return
        if int(slots.max()) >= self.max_requests:
            self._check_slot("append", int(slots.max()))
        if int(positions.min()) < 0 or int(positions.max()) >= self.max_len:
            raise ValueError(
                f"dspark_ext.draft_head: append: positions: expected 0..{self.max_len - 1}, got "
                f"{int(positions.min())}..{int(positions.max())}"
            )
        large = torch.full_like(self._ends, self.max_len)
        first = large.scatter_reduce(0, slots, positions, "amin")
        last = torch.zeros_like(self._ends).scatter_reduce(0, slots, positions, "amax")
        repeated = torch.unique(slots * self.max_len + positions).numel() != len(slots)
        count = torch.zeros_like(self._ends).scatter_add(0, slots, torch.ones_like(slots))
        gap = first > self._ends
        if self.window is not None:
            gap &= count < self.window
        torn = (count > 0) & (gap | (last - first + 1 != count))
        if repeated and not torn.any():
            raise ValueError(
                "dspark_ext.draft_head: append: positions: expected each position of a slot once, "
                "got one twice"
            )
        if torn.any():
            slot = int(torn.nonzero()[0])
            raise ValueError(
                f"dspark_ext.draft_head: append: positions: expected consecutive ones from at most "
                f"{int(self._ends[slot])} for slot {slot}, got {int(count[slot])} rows in "
                f"{int(first[slot])}..{int(last[slot])}"
            )
