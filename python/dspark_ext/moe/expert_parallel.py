"""Experts spread over the ranks of a process group: tokens go to the ranks of their experts, the
experts' rows come back, and each token is combined at home."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from ..ranges import ranged
from .dispatch import combine
from .plan import DispatchPlan, plan

__all__ = ["Dispatched", "ExpertParallel"]


class Dispatched(NamedTuple):
    """What a rank received, and what it needs to send the results back.

    R rows, one per token and sender: a token that chose several experts of this rank comes once.
    Rows stand in the order of the senders' ranks, and of their tokens.

    x: [R, d] as given to `dispatch`; rows may have gaps between them.
    ids: [R, k] int32, the experts of each row counted from the first of this rank, in the slots
        they had; -1 where a slot belongs to another rank or the row is padding.
    overflow: bool [] on the device: results of this rank's own tokens do not fit into `max_rows`.
        `combine` makes those tokens NaN. Always False without `max_rows`.
    route: of this rank's own tokens, see `Route`.
    """

    x: torch.Tensor
    ids: torch.Tensor
    overflow: torch.Tensor
    route: Route


class Route(NamedTuple):
    """Where the slots of a rank's own tokens are.

    slots: plan of the slots [T, k] over the ranks.
    rows_home: results to send to each rank, or None with fixed capacities.
    rows_back: results to receive from each rank, or None.
    num_tokens: rows of each sender among the received, or None.
    """

    slots: DispatchPlan
    rows_home: list[int] | None
    rows_back: list[int] | None
    num_tokens: list[int] | None


class ExpertParallel:
    """Dispatch and combine over a process group.

        ep = moe.ExpertParallel(group, num_experts=256)
        out = ep(x, ids, weights, experts)  # on every rank of the group

    Rank r holds the experts `first_expert .. first_expert + num_local_experts - 1`, a contiguous
    range. The result has the bits of a single process that does `plan`, `permute`, experts and
    `combine`, if a row that an expert computes does not depend on the rows beside it: rows travel
    as bytes, and weights are applied at the token's home, in slot order.

    Every rank must make the same calls in the same order; a rank may have no tokens, and may
    receive none. Works with any backend that has all_to_all_single: gloo, NCCL, RCCL.

    Without `max_tokens` ranks exchange the counts first, and *the host waits* for them once in each
    `dispatch`, because a collective takes the sizes of its messages from the host. With it nothing
    is exchanged beforehand and the host never waits, so that a graph can capture the calls where
    the backend's collectives can be captured; messages then have the size of the worst case.

    Args:
        process_group: a torch.distributed group, None for the default group.
        num_experts: E, over all ranks.
        experts_per_rank: number of experts of each rank; default: as even as possible, the first
            ranks have one more.
        max_tokens: int, the same on all ranks: fixed capacity. No rank may dispatch more tokens.
        max_rows: int, with max_tokens: results that one rank can return to another per call;
            default max_tokens * k, which always suffices. Results that do not fit are not dropped
            silently, see `Dispatched.overflow`.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None,
        num_experts: int,
        *,
        experts_per_rank: Sequence[int] | None = None,
        max_tokens: int | None = None,
        max_rows: int | None = None,
    ):
        self.group = process_group
        self.size = dist.get_world_size(process_group)
        self.rank = dist.get_rank(process_group)
        if experts_per_rank is None:
            whole, rest = divmod(num_experts, self.size)
            experts_per_rank = [whole + (r < rest) for r in range(self.size)]
        self.experts_per_rank = list(experts_per_rank)
        self.num_experts = num_experts
        self._check(max_tokens, max_rows)
        self.max_tokens = max_tokens
        self.max_rows = max_rows
        self.first_expert = sum(self.experts_per_rank[: self.rank])
        self._maps: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def num_local_experts(self) -> int:
        """Experts of this rank; may be 0."""
        return self.experts_per_rank[self.rank]

    @ranged("dspark.ExpertParallel.dispatch")
    def dispatch(self, x: torch.Tensor, ids: torch.Tensor) -> Dispatched:
        """Sends each token to the ranks that hold its experts.

        Args:
            x: `[T, d]` of any dtype, this rank's tokens; T may be 0 and differ between ranks, d and
                the dtype may not.
            ids: `[T, k]` int32 or int64, global expert ids, the same k on all ranks; -1 and other
                ids outside [0, E) go nowhere.

        Raises:
            ValueError: shapes or dtypes do not fit, or T exceeds max_tokens.
        """
        if x.dim() != 2 or ids.dim() != 2 or len(x) != len(ids):
            raise ValueError(
                "dspark_ext.ExpertParallel.dispatch: ids: expected x [T, d] and ids [T, k], got "
                f"{list(x.shape)} and {list(ids.shape)}"
            )
        if ids.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                "dspark_ext.ExpertParallel.dispatch: ids: expected int32 or int64, got "
                f"{str(ids.dtype).removeprefix('torch.')}"
            )
        if ids.device != x.device:
            raise ValueError(
                f"dspark_ext.ExpertParallel.dispatch: ids: expected device {x.device}, got "
                f"{ids.device}"
            )
        if self.max_tokens is not None and len(x) > self.max_tokens:
            raise ValueError(
                "dspark_ext.ExpertParallel.dispatch: x: expected at most "
                f"max_tokens={self.max_tokens} rows, got {len(x)}"
            )
        ranks = self._rank_of(ids)
        slots = plan(ranks, self.size)
        tokens = plan(_first_of_each(ranks), self.size)
        if self.max_tokens is None:
            return self._dispatch_exactly(x, ids, slots, tokens)
        return self._dispatch_fixed(x, ids, slots, tokens)

    @ranged("dspark.ExpertParallel.combine")
    def combine(
        self,
        y: torch.Tensor,
        local_plan: DispatchPlan,
        dispatched: Dispatched,
        weights: torch.Tensor,
        *,
        shared: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the experts' rows to the tokens' homes and combines them there.

        Args:
            y: `[rows, d]` float32, bfloat16 or float16, what the experts of this rank made, in the
                order of `local_plan`. d and the dtype are the same on all ranks.
            local_plan: what `plan` gives.
            dispatched: of this call's `dispatch`.
            weights: `[T, k]`, of this rank's own tokens.
            shared, residual: `[T, d]`, as for `moe.combine`.

        Returns:
            `[T, d]`, dtype of y.
        """
        rows = local_plan.inverse.reshape(-1)
        if self.max_tokens is None:
            returned, own = self._return_exactly(y, rows, dispatched)
        else:
            returned, own = self._return_fixed(y, rows, dispatched)
        return combine(returned, own, weights, shared=shared, residual=residual)

    def __call__(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        experts: Callable[[torch.Tensor, DispatchPlan], torch.Tensor],
        *,
        shared: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        **plan_options,
    ) -> torch.Tensor:
        """`dispatch`, the experts of this rank, `combine`.

        Args:
            experts: `experts(x, plan) -> y` for the received tokens x `[R, d]` and their plan over
                the experts of this rank; y `[rows, d]` in the order of the plan. It is called on
                every rank, also with R = 0.
            plan_options: `alignment`, `tile_rows` of that plan.

        The other arguments and the result are those of `dispatch` and `combine`.
        """
        dispatched = self.dispatch(x, ids)
        local_plan = self.plan(dispatched, **plan_options)
        y = experts(dispatched.x, local_plan)
        return self.combine(y, local_plan, dispatched, weights, shared=shared, residual=residual)

    def plan(self, dispatched: Dispatched, **plan_options) -> DispatchPlan:
        """The plan of the received rows over this rank's experts (over one, which gets nothing, on
        a rank that has none)."""
        return plan(dispatched.ids, max(self.num_local_experts, 1), **plan_options)

    # ---- which rank -----------------------------------------------------------------------------

    def _check(self, max_tokens, max_rows) -> None:
        name = "dspark_ext.ExpertParallel: "
        per_rank = self.experts_per_rank
        if len(per_rank) != self.size or min(per_rank) < 0:
            raise ValueError(
                f"{name}experts_per_rank: expected {self.size} numbers >= 0, got {per_rank}"
            )
        if self.num_experts < 1 or sum(per_rank) != self.num_experts:
            raise ValueError(
                f"{name}num_experts: expected at least 1 and the sum of experts_per_rank="
                f"{sum(per_rank)}, got {self.num_experts}"
            )
        if max_rows is not None and max_tokens is None:
            raise ValueError(f"{name}max_rows: expected None without max_tokens, got {max_rows}")
        for key, value in (("max_tokens", max_tokens), ("max_rows", max_rows)):
            if value is not None and value < 0:
                raise ValueError(f"{name}{key}: expected at least 0, got {value}")

    def _expert_maps(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Rank of each expert, and its number there; at index E, for all other ids, -1."""
        if device not in self._maps:
            ranks = [r for r, n in enumerate(self.experts_per_rank) for _ in range(n)]
            numbers = [i for n in self.experts_per_rank for i in range(n)]
            self._maps[device] = tuple(
                torch.tensor([*values, -1], dtype=torch.int32, device=device)
                for values in (ranks, numbers)
            )
        return self._maps[device]

    def _known(self, ids: torch.Tensor) -> torch.Tensor:
        """ids as indices into the expert maps."""
        ids = ids.long()
        return torch.where((ids >= 0) & (ids < self.num_experts), ids, self.num_experts)

    def _rank_of(self, ids: torch.Tensor) -> torch.Tensor:
        return self._expert_maps(ids.device)[0][self._known(ids)]

    def _local_ids(self, ids: torch.Tensor, to_rank: torch.Tensor) -> torch.Tensor:
        """Of ids [n, k] that go to rank to_rank [n]: their numbers there, -1 where elsewhere."""
        ranks, numbers = self._expert_maps(ids.device)
        known = self._known(ids)
        return torch.where(ranks[known] == to_rank[:, None], numbers[known], -1)

    # ---- messages of the exact size -------------------------------------------------------------

    def _dispatch_exactly(self, x, ids, slots, tokens) -> Dispatched:
        k = ids.shape[1]
        counts = torch.stack([tokens.counts, slots.counts], 1)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        # The host waits here.
        (to_send, rows_back), (to_receive, rows_home) = (
            torch.stack([counts, theirs]).transpose(1, 2).tolist()
        )
        sent = tokens.sorted[: sum(to_send)]
        token = sent // max(k, 1)
        to_rank = self._rank_of(ids).reshape(-1)[sent]
        message = _pack(x, token, self._local_ids(ids[token], to_rank))
        received = self._exchange(message, to_send, to_receive)
        back = Route(slots, rows_home, rows_back, to_receive)
        overflow = torch.zeros((), dtype=torch.bool, device=x.device)
        return Dispatched(*_unpack(received, x, k), overflow, back)

    def _return_exactly(self, y, rows, dispatched) -> tuple[torch.Tensor, DispatchPlan]:
        route = dispatched.route
        # Senders follow one another in the received rows, so their slots are in order already.
        here = torch.nonzero_static(rows >= 0, size=sum(route.rows_home)).reshape(-1)
        returned = self._exchange(_bytes(y)[rows[here]], route.rows_home, route.rows_back)
        return _from_bytes(returned, y), route.slots

    def _exchange(self, message, to_send, to_receive) -> torch.Tensor:
        received = message.new_empty((sum(to_receive), message.shape[1]))
        dist.all_to_all_single(received, message, to_receive, to_send, group=self.group)
        return received

    # ---- messages of a fixed size ---------------------------------------------------------------

    def _dispatch_fixed(self, x, ids, slots, tokens) -> Dispatched:
        k, most = ids.shape[1], self.max_tokens
        sent, is_sent = _blocks(tokens, most)
        token = torch.where(is_sent, sent // max(k, 1), 0)
        to_rank = torch.arange(self.size, device=x.device).repeat_interleave(most)
        # A row of padding is sent nowhere, whatever it holds.
        to_rank = torch.where(is_sent, to_rank, -2)
        if len(x) == 0:
            x, ids = x.new_zeros((1, x.shape[1])), ids.new_full((1, k), -1)
        message = _pack(x, token, self._local_ids(ids[token], to_rank))
        received = torch.empty_like(message)
        dist.all_to_all_single(received, message, group=self.group)
        overflow = (slots.counts > self._rows_per_rank(k)).any()
        return Dispatched(*_unpack(received, x, k), overflow, Route(slots, None, None, None))

    def _return_fixed(self, y, rows, dispatched) -> tuple[torch.Tensor, DispatchPlan]:
        slots = dispatched.route.slots
        k = slots.inverse.shape[1]
        most = self._rows_per_rank(k)
        home = torch.arange(self.size, device=y.device, dtype=torch.int32)
        home = home.repeat_interleave(self.max_tokens * k)
        results = plan(torch.where(rows >= 0, home, -1)[:, None], self.size)
        sent, is_sent = _blocks(results, most)
        if len(y) == 0:
            y = y.new_zeros((1, y.shape[1]))
        row = torch.where(is_sent, rows[torch.where(is_sent, sent, 0)], 0) if len(rows) else sent
        message = _bytes(y)[row]
        # One row more, of NaN: where the results are that did not fit.
        returned = y.new_full((len(message) + 1, y.shape[1]), torch.nan)
        dist.all_to_all_single(_bytes(returned)[:-1], message, group=self.group)
        return returned, slots._replace(inverse=self._rows_of_blocks(slots, most))

    def _rows_per_rank(self, k: int) -> int:
        return self.max_tokens * k if self.max_rows is None else self.max_rows

    def _rows_of_blocks(self, slots: DispatchPlan, most: int) -> torch.Tensor:
        """Where the results of the slots are, in blocks of `most` rows of each rank."""
        rank = torch.searchsorted(slots.offsets[1:], slots.inverse.clamp(min=0), right=True)
        place = slots.inverse - slots.offsets[rank]
        row = torch.where(place < most, rank * most + place, self.size * most)
        return torch.where(slots.inverse >= 0, row, -1)


def _first_of_each(ranks: torch.Tensor) -> torch.Tensor:
    """ranks [T, k] with -1 where an earlier slot of the token has the same rank."""
    k = ranks.shape[1]
    earlier = torch.ones(k, k, dtype=torch.bool, device=ranks.device).tril(-1)
    repeats = ((ranks[:, :, None] == ranks[:, None, :]) & earlier).any(-1)
    return torch.where(repeats, -1, ranks)


def _blocks(by_rank: DispatchPlan, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `most` slots of each rank, [ranks * most], and which of them exist."""
    place = torch.arange(most, device=by_rank.counts.device)
    exists = place < by_rank.counts[:, None]
    row = torch.where(exists, by_rank.offsets[:-1, None] + place, 0).reshape(-1)
    if len(by_rank.sorted) == 0:
        return row, exists.reshape(-1)
    return by_rank.sorted[row], exists.reshape(-1)


# ---- rows as bytes ------------------------------------------------------------------------------


def _bytes(rows: torch.Tensor) -> torch.Tensor:
    """rows [n, d] as [n, bytes]."""
    rows = rows.resolve_neg().contiguous()
    if rows.stride(1) != 1:  # of a single column any stride counts as contiguous
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.view(torch.uint8).reshape(len(rows), _width(rows))


def _width(rows: torch.Tensor) -> int:
    return rows.shape[1] * rows.element_size()


def _from_bytes(message: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if like.shape[1] == 0:
        return like.new_empty(len(message), 0)
    return message.view(like.dtype).reshape(len(message), like.shape[1])


def _align(size: int) -> int:
    return (size + 15) // 16 * 16


def _pack(x: torch.Tensor, token: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """A message row per token: its row of x, then its ids, both from a multiple of 16 bytes on."""
    width, of_ids = _width(x), _width(ids)
    message = torch.zeros(
        (len(token), _align(width) + _align(of_ids)), dtype=torch.uint8, device=x.device
    )
    message[:, :width] = _bytes(x)[token]
    message[:, _align(width) :][:, :of_ids] = _bytes(ids)
    return message


def _unpack(message: torch.Tensor, x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = message[:, _align(_width(x)) :][:, : 4 * k]
    of_k = torch.empty(0, k, dtype=torch.int32, device=ids.device)
    return _from_bytes(message[:, : _width(x)], x), _from_bytes(ids, of_k)
