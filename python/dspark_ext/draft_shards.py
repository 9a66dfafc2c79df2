"""Markov block sampling with the vocabulary spread over processes (tensor parallel).

Every process holds some rows of w2 and the same columns of the base logits, as its part of the
output matrix makes them. The draw is defined over tiles of 4096 target ids (docs/numerics.md
sections 3 and 6), so each tile gets one holder:

1. each process computes the logits of its draft ids;
2. those that belong to a tile held elsewhere are sent there;
3. each process computes the statistics of its tiles, 9 bytes each, and all are gathered;
4. every process finds the same tile, its holder draws the entry, and the largest answer is it.

The ids, the logits and their statistics are those of one process that has everything, to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist

from ._integers import as_int64
from ._parameters import floats, integers
from .draft import (
    RowStatistics,
    _check_dim,
    _drawn_temperature,
    draw_shard,
    markov_logits,
    row_statistics,
)
from .ranges import ranged

__all__ = ["MarkovShards", "ShardedDraftOutput"]

TILE = 4096


class ShardedDraftOutput(NamedTuple):
    """Result of `MarkovShards.markov_sample`; the same on every process but for `logits`.

    token_ids: int64 [B, n], x_1..x_n, target ids.
    logits: [B, n, width], columns `MarkovShards.first .. first + width - 1` of the logits kept.
    prev_embed: [B, n, r] in the dtype of w1.
    statistics: `RowStatistics` of the whole rows.
    """

    token_ids: torch.Tensor
    logits: torch.Tensor
    prev_embed: torch.Tensor
    statistics: RowStatistics


class MarkovShards:
    """One process of a group that drafts together.

    Args:
        group: a torch.distributed process group, None for the default one, with all_gather,
            all_reduce and all_to_all for tensors on `device`: gloo for the CPU, NCCL or RCCL for
            GPUs.
        shard_size: draft ids of this process. Process 0 has the first draft ids, process 1 the
            next, and so on; sizes may differ, 0 is allowed.
        d2t: int64 [shard_size], this process's part of the offsets from draft to target ids; None:
            equal. All processes give one, or none does.
        vocab_size: V, target ids; default: the number of draft ids. Needed with d2t.
        device: where the tensors of every call are; default: the current GPU if the group is one
            of NCCL, which serves no others, else the CPU.

    Attributes: first, width: the target ids whose logits this process keeps. Without d2t it keeps
    the tiles that begin among its own ids; with d2t every process keeps about as many tiles.

    Collective: every process of the group constructs it, and calls `markov_sample`, at once and
    with equal arguments (those that are not parts). The constructor reads values on the host; no
    call after it does, so that on a GPU it neither waits nor breaks the capture of a graph.

    Raises RuntimeError for target ids that collide or lie outside [0, V).
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        shard_size: int,
        d2t: torch.Tensor | None = None,
        vocab_size: int | None = None,
        device: torch.device | str | None = None,
    ):
        self.group = group
        self.device = _device_of(group) if device is None else torch.device(device)
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.shard_size = shard_size
        sizes = self._agree(shard_size, d2t)
        start = sum(sizes[: self.rank])
        if vocab_size is None:
            if d2t is not None:
                _fail(
                    "vocab_size", "d2t does not tell the number of target ids: expected V, got None"
                )
            vocab_size = sum(sizes)
        ids = torch.arange(start, start + shard_size, device=self.device)
        if d2t is not None:
            ids = ids + as_int64("MarkovShards", "d2t", d2t).to(self.device)
        self.vocab_size = vocab_size
        self.tiles = -(-vocab_size // TILE)
        self._check_ids(ids, sizes)
        begins = [sum(sizes[:r]) for r in range(self.world + 1)]
        if d2t is None:
            tile_bounds = [min(-(-begin // TILE), self.tiles) for begin in begins]
            tile_bounds[-1] = self.tiles
        else:
            tile_bounds = [r * self.tiles // self.world for r in range(self.world + 1)]
        bounds = [min(tile * TILE, vocab_size) for tile in tile_bounds]
        self.tile_counts = [b - a for a, b in zip(tile_bounds, tile_bounds[1:], strict=False)]
        self.first_tile = tile_bounds[self.rank]
        self.first = bounds[self.rank]
        self.width = bounds[self.rank + 1] - self.first
        self._plan_exchange(ids, torch.tensor(bounds[1:], device=self.device))

    def _agree(self, shard_size: int, d2t: torch.Tensor | None) -> list[int]:
        """The sizes of all processes. What one got wrong, all refuse: nobody is left waiting."""
        is_size = isinstance(shard_size, int) and not isinstance(shard_size, bool)
        size = shard_size if is_size and shard_size >= 0 else -1
        fits = d2t is None or list(d2t.shape) == [shard_size]
        mine = torch.tensor([size, d2t is not None, fits], device=self.device)
        everyone = self._gather(mine).tolist()
        if size < 0:
            _fail("shard_size", f"expected an integer >= 0, got {shard_size!r}")
        if not fits:
            _fail("d2t", f"expected shape [{shard_size}], got {list(d2t.shape)}")
        for rank, (other, has_d2t, other_fits) in enumerate(everyone):
            if other < 0:
                _fail("shard_size", f"expected an integer >= 0, got another on process {rank}")
            if has_d2t != (d2t is not None):
                _fail("d2t", f"expected one of every process or of none, unlike process {rank}")
            if not other_fits:
                _fail("d2t", f"expected shape [shard_size], got another on process {rank}")
        sizes = [other for other, _, _ in everyone]
        if sum(sizes) == 0:
            _fail("shard_size", "expected a draft id on some process, got 0 on all")
        return sizes

    def _check_ids(self, ids: torch.Tensor, sizes: list[int]) -> None:
        everyone = self._gather_ragged(ids, sizes)
        bad = everyone[(everyone < 0) | (everyone >= self.vocab_size)]
        if len(bad):
            _fail("d2t", f"expected target ids in [0, {self.vocab_size}), got {int(bad[0])}")
        if everyone.unique().numel() != everyone.numel():
            _fail("d2t", "expected distinct target ids over all processes")

    def _plan_exchange(self, ids: torch.Tensor, ends: torch.Tensor) -> None:
        """What goes where, the same at every step: holders of the ids, and where they lie there."""
        holder = torch.bucketize(ids, ends, right=True)
        order = holder.argsort(stable=True)
        self._order = None if _is_identity(order) else order
        self._send = torch.bincount(holder, minlength=self.world).tolist()
        counts = self._gather(torch.tensor(self._send, device=self.device))
        self._receive = counts[:, self.rank].tolist()
        self._is_local = bool((counts == torch.diag(counts.diagonal())).all())
        arrived = ids.new_empty(sum(self._receive))
        dist.all_to_all_single(arrived, ids[order], self._receive, self._send, group=self.group)
        columns = arrived - self.first
        in_place = len(columns) == self.width and _is_identity(columns)
        self._columns = None if in_place else columns

    @ranged("dspark.MarkovShards.markov_sample")
    def markov_sample(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        *,
        head: str = "vanilla",
        hidden: torch.Tensor | None = None,
        head_weight: torch.Tensor | None = None,
        head_bias: torch.Tensor | None = None,
        method: str = "probabilistic",
        temperature: torch.Tensor | float,
        seeds: torch.Tensor | int,
        positions: torch.Tensor | int,
        num_drafts: int | None = None,
    ) -> ShardedDraftOutput:
        """`dspark_ext.draft.markov_sample` over the whole vocabulary, exact path.

        Args:
            base_logits: [B, K, shard_size], this process's columns.
            w2: [shard_size, r], this process's rows.
            w1: [V, r], all of it; and everything else as in `dspark_ext.draft.markov_sample`.

        Raises RuntimeError for the same reasons, on every process that sees them. On a GPU a
        request with a temperature out of range is drafted as `markov_sample` does it there.
        """
        if base_logits.dim() != 3 or base_logits.shape[2] != self.shard_size:
            _fail(
                "base_logits",
                f"expected shape [B, K, {self.shard_size}], got {list(base_logits.shape)}",
            )
        if hidden is not None and hidden.shape[:-1] != base_logits.shape[:-1]:
            _fail(
                "hidden",
                f"expected shape {[*base_logits.shape[:-1], 'd']}, got {list(hidden.shape)}",
            )
        if method not in ("probabilistic", "greedy"):
            _fail("method", f"expected probabilistic or greedy, got {method}")
        op = "MarkovShards"
        batch, steps = base_logits.shape[:2]
        steps = steps if num_drafts is None else num_drafts
        if not 0 <= steps <= base_logits.shape[1]:
            _fail("num_drafts", f"expected 0 to K={base_logits.shape[1]}, got {steps}")
        _check_dim(op, "w1", w1, ("V", "r"))
        device = base_logits.device
        heat = floats(op, "temperature", temperature, base_logits, base_logits)
        if method == "greedy":  # what is out of range stays so
            heat = heat.masked_fill(~_drawn_temperature(heat).isnan(), 0.0)
        seeds = integers(op, "seeds", seeds, base_logits, base_logits)
        positions = integers(op, "positions", positions, base_logits, base_logits)
        ids = torch.empty(batch, steps, dtype=torch.int64, device=device)
        logits = base_logits.new_empty(batch, steps, self.width)
        embeds = w1.new_empty(batch, steps, w1.shape[1])
        statistics = _empty_statistics(batch, steps, self.tiles, device)
        previous, state = as_int64(op, "anchor", anchor), None
        for k in range(steps if batch else 0):
            step = markov_logits(
                base_logits[:, k],
                previous,
                w1,
                w2,
                head=head,
                hidden=None if hidden is None else hidden[:, k],
                head_weight=head_weight,
                head_bias=head_bias,
                state=state,
                exact=True,
            )
            rows, state = self.to_holders(step.logits), step.state
            whole = self.gather_statistics(row_statistics(rows, heat))
            previous = self.draw(rows, whole, seeds=seeds, positions=positions + k, slot=k)
            ids[:, k], logits[:, k], embeds[:, k] = previous, rows, step.prev_embed
            for kept, now in zip(statistics, whole, strict=True):
                kept[:, k] = now
        return ShardedDraftOutput(ids, logits, embeds, statistics)

    # The steps of it, for loops of one's own.

    def to_holders(self, logits: torch.Tensor) -> torch.Tensor:
        """[B, width]: the columns this process keeps, from everybody's [B, shard_size] logits.
        -inf where no draft id maps to."""
        rows = logits if self._order is None else logits[:, self._order]
        if not self._is_local:
            rows = self._exchange(rows)
        if self._columns is None:
            return rows
        kept = logits.new_full((len(logits), self.width), -torch.inf)
        kept[:, self._columns] = rows
        return kept

    def gather_statistics(self, mine: RowStatistics) -> RowStatistics:
        """Statistics of the whole rows [B, tiles] from those of everybody's tiles."""
        # One collective: a row of bytes per tile, the maxima, the sums, the flags.
        parts = [_as_bytes(part) for part in mine[1:]]
        whole = self._gather_ragged(torch.cat(parts, 1), self.tile_counts)
        columns = whole.split([part.shape[1] for part in parts], 1)
        return RowStatistics(
            mine.temperature,
            *(_from_bytes(part, of.dtype) for part, of in zip(columns, mine[1:], strict=True)),
        )

    def draw(
        self,
        logits: torch.Tensor,
        statistics: RowStatistics,
        *,
        seeds: torch.Tensor | int,
        positions: torch.Tensor | int,
        slot: int,
    ) -> torch.Tensor:
        """int64 [B]: one draw per row, the same on every process. `logits` [B, width] are kept
        here, `statistics` are of the whole rows."""
        ids = draw_shard(
            logits, self.first_tile, statistics, seeds=seeds, positions=positions, slot=slot
        )
        dist.all_reduce(ids, dist.ReduceOp.MAX, group=self.group)
        return ids

    # Collectives, on bytes where a backend may not know the dtype.

    def _exchange(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) == 0:
            return rows.new_empty(0, sum(self._receive))
        by_column = _as_bytes(rows)
        arrived = by_column.new_empty(sum(self._receive), by_column.shape[1])
        dist.all_to_all_single(arrived, by_column, self._receive, self._send, group=self.group)
        return _from_bytes(arrived, rows.dtype)

    def _gather(self, part: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(part) for _ in range(self.world)]
        dist.all_gather(parts, part, group=self.group)
        return torch.stack(parts)

    def _gather_ragged(self, part: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """Parts of different first sizes, one after the other; padded to the largest on the way."""
        padded = part.new_zeros(max(sizes), *part.shape[1:])
        padded[: len(part)] = part
        parts = self._gather(padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def _fail(argument: str, message: str) -> None:
    raise RuntimeError(f"dspark_ext.MarkovShards: {argument}: {message}")


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Of the tensors that a group takes."""
    if dist.get_backend(group) == "nccl":  # RCCL has this name, too
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """[columns, B * bytes of an element] of rows [B, columns]."""
    return rows.T.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _from_bytes(columns: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rows [B, columns] again."""
    return columns.clone(memory_format=torch.contiguous_format).view(dtype).T.contiguous()


def _is_identity(order: torch.Tensor) -> bool:
    return bool((order == torch.arange(len(order), device=order.device)).all())


def _empty_statistics(batch: int, steps: int, tiles: int, device: torch.device) -> RowStatistics:
    return RowStatistics(
        torch.empty(batch, steps, device=device),
        torch.empty(batch, steps, tiles, device=device),
        torch.empty(batch, steps, tiles, device=device),
        torch.empty(batch, steps, tiles, dtype=torch.uint8, device=device),
    )
