"""Verification lengths, the ragged batch and what is kept: the specification, written to be read.

Same names and arguments as `dspark_ext.verify`. Integers have to agree exactly with the operators;
arithmetic is that of docs/numerics.md section 9. Source: DSpark (2607.05147), Algorithm 1 and
section 5.2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST_SURVIVAL = 2.0**-100
TOKEN = 2**40  # tokens are counted in integer units of 2^-40


class Schedule(NamedTuple):
    verify_lens: Tensor  # [B] int32, drafts to verify
    query_start_loc: Tensor  # [B+1] int32, rows before request b
    num_rows: Tensor  # [] int32
    expected_tokens: Tensor  # [] float32


class PackedRows(NamedTuple):
    input_ids: Tensor  # [max_rows] int64, 0 in padding rows
    positions: Tensor  # [max_rows] int64, 0 in padding rows
    request_ids: Tensor  # [max_rows] int32, -1 in padding rows
    slot_mapping: Tensor  # [max_rows] int64, -1 in padding rows
    sample_rows: Tensor  # [max_rows] int64, where the ragged row lies in the pass; 0 past the end


class Commit(NamedTuple):
    seq_lens: Tensor  # [B] int64
    anchor: Tensor  # [B] int64
    row_kept: Tensor  # [num_rows] bool
    num_rejected: Tensor  # [B] int32


def conditional(confidence: Tensor) -> Tensor:
    """[B, K] float32: NaN counts as 0, everything is clipped to [0, 1]."""
    return confidence.float().nan_to_num(nan=0.0).clamp(0.0, 1.0)


def survival(confidence: Tensor) -> Tensor:
    """[B, K] float32 running product of the conditional confidences, left to right."""
    running = torch.ones(confidence.shape[0], dtype=torch.float32)
    columns = []
    for column in conditional(confidence).unbind(1):
        running = running * column
        running = torch.where(running < SMALLEST_SURVIVAL, torch.zeros(()), running)
        columns.append(running)
    return torch.stack(columns, 1) if columns else torch.zeros(confidence.shape[0], 0)


def units(survives: float) -> int:
    """Tokens that a draft is expected to give, rounded down."""
    return int(survives * TOKEN)


def step_cost(cost: Tensor, rows: int) -> float:
    """Seconds of a pass over `rows` rows, from the dense table [L+1] indexed by rows; beyond its
    end the last slope goes on."""
    last = cost.numel() - 1
    if rows <= last:
        return float(cost[rows])
    return float(cost[last]) + float(rows - last) * (float(cost[last]) - float(cost[last - 1]))


class Rates:
    """Tokens per second of passes, `num_other_rows` rows of others included."""

    def __init__(self, cost: Tensor, num_other_rows: int):
        self.cost, self.num_other_rows = cost, num_other_rows

    def seconds(self, rows: int) -> float:
        return step_cost(self.cost, self.num_other_rows + rows)

    def rate(self, tokens: int, rows: int) -> float:
        seconds = self.seconds(rows)
        return float(tokens) / TOKEN / seconds if seconds > 0 else 0.0

    def pays(self, tokens: int, rows: int, more_tokens: int, more_rows: int) -> bool:
        """Some more tokens for no more time, or at a higher rate."""
        if self.seconds(more_rows) <= self.seconds(rows):
            return True
        return self.rate(more_tokens, more_rows) > self.rate(tokens, rows)


def draft_order(
    alive: list[list[float]], ends: list[int], forced: list[int]
) -> list[tuple[int, int]]:
    """(request, position) of the drafts in the order of admission: first those that are admitted
    whatever their survival (the first `forced` of each request), by position, then request; then by
    survival descending, position and request ascending, none of survival 0. `ends`: how far each
    request may go."""
    first, rest = [], []
    for request, (end, count) in enumerate(zip(ends, forced)):
        first += [(position, request) for position in range(count)]
        rest += [
            (-alive[request][position], position, request)
            for position in range(count, end)
            if alive[request][position] > 0
        ]
    return [(request, position) for *_, position, request in [*sorted(first), *sorted(rest)]]


def confident_prefix(confidence: Tensor, threshold: float, limits: list[int]) -> list[int]:
    """Length of the longest prefix whose every CONDITIONAL confidence reaches the threshold."""
    reaches = conditional(confidence) >= torch.tensor(threshold, dtype=torch.float32)
    ends = []
    for row, limit in zip(reaches.tolist(), limits):
        end = 0
        while end < limit and row[end]:
            end += 1
        ends.append(end)
    return ends


def early_stop_count(order, alive, num_forced: int, live: int, rates: Rates) -> int:
    """Drafts before the first one that does not pay.

    A look past that one would read confidences that depend on drafts which have not been admitted,
    and the emitted law would no longer be the target's.
    """
    tokens = live * TOKEN + sum(units(alive[b][j]) for b, j in order[:num_forced])
    for count in range(num_forced, len(order)):
        request, position = order[count]
        more = tokens + units(alive[request][position])
        if not rates.pays(tokens, live + count, more, live + count + 1):
            return count
        tokens = more
    return len(order)


def best_count(order, alive, num_forced: int, live: int, rates: Rates, room: int) -> int:
    """The number of drafts with most tokens per second, `alive` being survivals of an earlier step.
    The smallest of several."""
    if num_forced >= room:
        return room
    tokens = live * TOKEN + sum(units(alive[b][j]) for b, j in order[:num_forced])
    best, best_rate = num_forced, rates.rate(tokens, live + num_forced)
    for count in range(num_forced + 1, min(len(order), room) + 1):
        request, position = order[count - 1]
        tokens += units(alive[request][position])
        if rates.rate(tokens, live + count) > best_rate:
            best, best_rate = count, rates.rate(tokens, live + count)
    return best


def uniform_length(
    alive: list[list[float]],
    limits: list[int],
    most: int,
    floor: int,
    rates: Rates,
    lagged: bool,
) -> int:
    """One length for all requests; a pass of length n has n + 1 rows of every request. Unless the
    survivals are those of an earlier step, the search ends at the first position that does not
    pay: the next ones depend on drafts that have not been admitted."""
    live = len(limits)
    tokens = live * TOKEN
    length, best_rate = 0, rates.rate(tokens, live)
    for position in range(most):
        gain = sum(units(row[position]) for row, limit in zip(alive, limits) if position < limit)
        rows = live * (position + 1)
        rate = rates.rate(tokens + gain, rows + live)
        if position < floor:
            better = True
        elif lagged:
            better = rate > best_rate
        else:
            better = gain > 0 and rates.pays(tokens, rows, tokens + gain, rows + live)
        tokens += gain
        if better:
            length, best_rate = position + 1, rate
        elif not lagged:
            break
    return length


def schedule(
    confidence: Tensor | None,
    *,
    cost: Tensor | None = None,
    budget: int | Tensor | None = None,
    mode: str = "early_stop",
    capacity: Tensor | None = None,
    threshold: float = 0.0,
    num_drafts: int | None = None,
    min_drafts: int = 0,
    max_rows: int | None = None,
    num_other_rows: int = 0,
    lagged_confidence: Tensor | None = None,
    num_requests: int | Tensor | None = None,
) -> Schedule:
    """`cost` [L+1] float64: seconds by number of rows. Without confidences (mode fixed only)
    `num_drafts` gives K, `capacity` gives B, and every survival counts as 1."""
    if confidence is None:
        batch, width = capacity.numel(), num_drafts
        alive = [[1.0] * width] * batch
    else:
        batch, width = confidence.shape
        alive = survival(confidence).tolist()
    live = batch if num_requests is None else max(0, min(batch, int(num_requests)))
    room = [width] * batch if capacity is None else capacity.tolist()
    most = width if num_drafts is None else num_drafts
    limits = [max(0, min(most, space)) for space in room][:live]
    rows = 2**62 if max_rows is None else max_rows
    if budget is not None:
        rows = min(rows, int(budget))
    rates = Rates(cost, num_other_rows)
    past = None if lagged_confidence is None else survival(lagged_confidence).tolist()

    lens = [0] * batch
    if mode == "uniform":
        longest = min(most, rows // live - 1) if live else 0
        source = alive if past is None else past
        length = uniform_length(source, limits, longest, min_drafts, rates, past is not None)
        lens[:live] = [min(limit, length) for limit in limits]
    else:
        forced = [min(most if mode == "fixed" else min_drafts, limit) for limit in limits]
        ends = limits
        if mode == "threshold":
            ends = confident_prefix(confidence, threshold, limits)
        order = draft_order(alive, ends, forced)
        count = len(order)
        drafts = max(0, rows - live)
        if mode == "early_stop":
            count = early_stop_count(order, alive, sum(forced), live, rates)
        elif mode == "lagged":
            old = draft_order(past, limits, forced)
            count = best_count(old, past, sum(forced), live, rates, drafts)
        for request, position in order[: min(count, drafts)]:
            lens[request] = position + 1

    tokens = live * TOKEN + sum(units(a) for row, n in zip(alive, lens) for a in row[:n])
    verify_lens = torch.tensor(lens, dtype=torch.int32)
    starts = torch.zeros(batch + 1, dtype=torch.int32)
    starts[1:] = (verify_lens + (torch.arange(batch) < live)).cumsum(0)
    expected = torch.tensor(float(tokens) / TOKEN, dtype=torch.float64).float()
    return Schedule(verify_lens, starts, starts[-1].clone(), expected)


def request_rows(plan: Schedule, rows_per_request: int) -> list[range]:
    """The rows of the pass that belong to each request."""
    starts = plan.query_start_loc.tolist()
    ranges = []
    for request, (begin, end) in enumerate(zip(starts, starts[1:])):
        first = request * rows_per_request if rows_per_request else begin
        ranges.append(range(first, first + end - begin))
    return ranges


def pack(
    anchor: Tensor,
    draft_token_ids: Tensor,
    seq_lens: Tensor,
    plan: Schedule,
    *,
    max_rows: int,
    block_table: Tensor | None = None,
    block_size: int | None = None,
    rows_per_request: int = 0,
) -> PackedRows:
    """Request b puts x_0 .. x_l at positions seq_lens[b] + 0 .. l. The slot of a position is
    block_table[b, position // block_size] * block_size + position % block_size, or the position. A
    negative draft id is fed as 0."""
    input_ids = torch.zeros(max_rows, dtype=torch.int64)
    positions = torch.zeros(max_rows, dtype=torch.int64)
    request_ids = torch.full((max_rows,), -1, dtype=torch.int32)
    slots = torch.full((max_rows,), -1, dtype=torch.int64)
    sample_rows = torch.zeros(max_rows, dtype=torch.int64)
    in_pass = []
    for request, rows in enumerate(request_rows(plan, rows_per_request)):
        tokens = [int(anchor[request]), *draft_token_ids[request].tolist()]
        for offset, row in enumerate(rows):
            position = int(seq_lens[request]) + offset
            slot = position
            if block_table is not None:
                block = int(block_table[request, position // block_size])
                slot = block * block_size + position % block_size
            input_ids[row], positions[row] = max(tokens[offset], 0), position
            request_ids[row], slots[row] = request, slot
            in_pass.append(row)
    sample_rows[: len(in_pass)] = torch.tensor(in_pass, dtype=torch.int64)
    return PackedRows(input_ids, positions, request_ids, slots, sample_rows)


def unpack(
    rows: Tensor, plan: Schedule, num_drafts: int, fill: float = 0, rows_per_request: int = 0
) -> Tensor:
    """[max_rows, ...] -> [B, K+1, ...]: row i of request b at [b, i], `fill` where none was run."""
    batch = plan.verify_lens.numel()
    out = torch.full((batch, num_drafts + 1, *rows.shape[1:]), fill, dtype=rows.dtype)
    for request, owned in enumerate(request_rows(plan, rows_per_request)):
        out[request, : len(owned)] = rows[owned.start : owned.stop]
    return out


def commit(
    num_emitted: Tensor,
    last_token: Tensor,
    seq_lens: Tensor,
    plan: Schedule,
    num_rows: int,
    rows_per_request: int = 0,
) -> Commit:
    """A request that emitted n tokens keeps its first n rows (x_0 and the accepted drafts); the
    last token becomes the anchor, its own row not yet computed."""
    kept = torch.zeros(num_rows, dtype=torch.bool)
    owned = request_rows(plan, rows_per_request)
    count = [min(n, len(rows)) for n, rows in zip(num_emitted.tolist(), owned)]
    for rows, n in zip(owned, count):
        kept[rows.start : rows.start + n] = True
    rejected = torch.tensor([len(rows) - n for rows, n in zip(owned, count)], dtype=torch.int32)
    return Commit(
        seq_lens + torch.tensor(count, dtype=torch.int64), last_token.clone(), kept, rejected
    )


def count_acceptance(verify_lens: Tensor, num_accepted: Tensor, num_drafts: int) -> dict:
    """Counters of one step for every request: `verified` [B, K] positions verified, `reached`
    [B, K] of those, the ones with every earlier draft accepted, `histogram` [B, K+1] by number of
    accepted drafts. The anchor row is not a draft."""
    position = torch.arange(num_drafts)
    lens, accepted = verify_lens[:, None], num_accepted[:, None]
    return {
        "verified": (position < lens).long(),
        "reached": ((position < lens) & (position <= accepted)).long(),
        "histogram": (torch.arange(num_drafts + 1) == accepted).long(),
    }
