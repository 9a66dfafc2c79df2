"""Verification lengths, the ragged batch and what is kept: the specification, written to be read.

Same names and arguments as `dspark_ext.verify`. Integers have to agree exactly with the operators;
arithmetic is that of docs/numerics.md section 9. Source of the early stop: DSpark (2607.05147),
Algorithm 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST_SURVIVAL = 2.0**-100


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


def step_cost(cost: Tensor, rows: int) -> float:
    """Seconds of a pass over `rows` rows, from the dense table [L+1] indexed by rows; beyond its
    end the last slope goes on."""
    last = cost.numel() - 1
    if rows <= last:
        return float(cost[rows])
    return float(cost[last]) + float(rows - last) * (float(cost[last]) - float(cost[last - 1]))


class Admission:
    """Drafts admitted so far."""

    def __init__(self, limits: list[int], max_rows: int | None):
        self.lens = [0] * len(limits)
        self.limits = limits
        self.tau = float(len(limits))
        self.max_rows = max_rows

    def rows(self) -> int:
        return len(self.lens) + sum(self.lens)

    def is_full(self) -> bool:
        return self.max_rows is not None and self.rows() >= self.max_rows

    def admit(self, request: int, survives: float) -> None:
        self.lens[request] += 1
        self.tau += survives


def admit_at_once(state: Admission, wanted: list[int], alive: list[list[float]]) -> None:
    """Step 1: position by position, request by request, whatever the survival."""
    for position in range(max(wanted, default=0)):
        for request, count in enumerate(wanted):
            if position < count:
                if state.is_full():
                    return
                state.admit(request, alive[request][position])


def candidates(state: Admission, ends: list[int], alive: list[list[float]]) -> list[tuple]:
    """(survival, position, request) of the drafts not yet admitted: survival descending, then
    position, then request ascending. `ends`: how far each request may go."""
    found = [
        (alive[request][position], position, request)
        for request, end in enumerate(ends)
        for position in range(state.lens[request], end)
        if alive[request][position] > 0
    ]
    return sorted(found, key=lambda item: (-item[0], item[1], item[2]))


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


def admit_while_faster(
    state: Admission, alive: list[list[float]], cost: Tensor, num_other_rows: int
) -> None:
    """Step 2 of early_stop: stop for good at the first candidate that does not raise tau / cost.

    A look past that candidate would read confidences that depend on drafts which have not been
    admitted, and the emitted law would no longer be the target's.
    """
    if not state.lens:
        return
    best = state.tau / step_cost(cost, num_other_rows + state.rows())
    for survives, _, request in candidates(state, state.limits, alive):
        if state.is_full():
            return
        theta = (state.tau + survives) / step_cost(cost, num_other_rows + state.rows() + 1)
        if not theta > best:
            return
        best = theta
        state.admit(request, survives)


def schedule(
    confidence: Tensor | None,
    *,
    cost: Tensor | None = None,
    mode: str = "early_stop",
    capacity: Tensor | None = None,
    threshold: float = 0.0,
    num_drafts: int | None = None,
    min_drafts: int = 0,
    max_rows: int | None = None,
    num_other_rows: int = 0,
) -> Schedule:
    """`cost` [L+1] float64: seconds by number of rows. Without confidences (mode fixed only)
    `num_drafts` gives K, `capacity` gives B, and every survival counts as 1."""
    if confidence is None:
        batch, width = capacity.numel(), num_drafts
        alive = [[1.0] * width] * batch
    else:
        batch, width = confidence.shape
        alive = survival(confidence).tolist()
    room = [width] * batch if capacity is None else capacity.tolist()
    most = width if num_drafts is None else num_drafts
    limits = [max(0, min(width, most, space)) for space in room]
    state = Admission(limits, max_rows)

    floor = most if mode == "fixed" else min_drafts
    admit_at_once(state, [min(floor, limit) for limit in limits], alive)
    if mode == "threshold":
        ends = confident_prefix(confidence, threshold, limits)
        for survives, _, request in candidates(state, ends, alive):
            if state.is_full():
                break
            state.admit(request, survives)
    elif mode == "early_stop":
        admit_while_faster(state, alive, cost, num_other_rows)

    lens = torch.tensor(state.lens, dtype=torch.int32)
    starts = torch.zeros(batch + 1, dtype=torch.int32)
    starts[1:] = (lens + 1).cumsum(0)
    expected = torch.tensor(state.tau, dtype=torch.float32)
    return Schedule(lens, starts, starts[-1].clone(), expected)


def pack(
    anchor: Tensor,
    draft_token_ids: Tensor,
    seq_lens: Tensor,
    plan: Schedule,
    *,
    max_rows: int,
    block_table: Tensor | None = None,
    block_size: int | None = None,
) -> PackedRows:
    """Request b puts x_0 .. x_l at positions seq_lens[b] + 0 .. l. The slot of a position is
    block_table[b, position // block_size] * block_size + position % block_size, or the position. A
    negative draft id is fed as 0."""
    input_ids = torch.zeros(max_rows, dtype=torch.int64)
    positions = torch.zeros(max_rows, dtype=torch.int64)
    request_ids = torch.full((max_rows,), -1, dtype=torch.int32)
    slots = torch.full((max_rows,), -1, dtype=torch.int64)
    row = 0
    for request, length in enumerate(plan.verify_lens.tolist()):
        tokens = [int(anchor[request]), *draft_token_ids[request, :length].tolist()]
        for offset, token in enumerate(tokens):
            position = int(seq_lens[request]) + offset
            slot = position
            if block_table is not None:
                block = int(block_table[request, position // block_size])
                slot = block * block_size + position % block_size
            input_ids[row], positions[row] = max(token, 0), position
            request_ids[row], slots[row] = request, slot
            row += 1
    return PackedRows(input_ids, positions, request_ids, slots)


def unpack(rows: Tensor, plan: Schedule, num_drafts: int, fill: float = 0) -> Tensor:
    """[max_rows, ...] -> [B, K+1, ...]: row i of request b at [b, i], `fill` where none was run."""
    batch = plan.verify_lens.numel()
    out = torch.full((batch, num_drafts + 1, *rows.shape[1:]), fill, dtype=rows.dtype)
    for request, length in enumerate(plan.verify_lens.tolist()):
        start = int(plan.query_start_loc[request])
        out[request, : length + 1] = rows[start : start + length + 1]
    return out


def commit(
    num_emitted: Tensor, last_token: Tensor, seq_lens: Tensor, plan: Schedule, num_rows: int
) -> Commit:
    """A request that emitted n tokens keeps its first n rows (x_0 and the accepted drafts); the
    last token becomes the anchor, its own row not yet computed."""
    kept = torch.zeros(num_rows, dtype=torch.bool)
    for request, emitted in enumerate(num_emitted.tolist()):
        start = int(plan.query_start_loc[request])
        kept[start : start + emitted] = True
    rejected = plan.verify_lens + 1 - num_emitted
    return Commit(seq_lens + num_emitted, last_token.clone(), kept, rejected.to(torch.int32))


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
