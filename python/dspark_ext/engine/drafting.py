"""The drafts of a step: for those requests that want some, one block or several."""

import dataclasses

import torch

from .._upload import upload
from ..draft import RowStatistics
from .drafter import Draft, DraftBatch, Drafter

CONTINUE_THRESHOLD = 0.5  # where the settings give none
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64


@dataclasses.dataclass
class Proposal:
    """What was drafted in a step.

    draft  token_ids [B, n] and so on, of all requests; where a request has fewer drafts, ids are
           -1 and confidences 0
    made   drafts that each request has
    """

    draft: Draft
    made: list[int]


def propose(
    drafter: Drafter,
    batch: DraftBatch,
    wanted: list[bool],
    room: list[int],
    num_drafts: int,
    *,
    method: str,
    num_blocks: int = 1,
    continue_threshold: float = CONTINUE_THRESHOLD,
) -> Proposal:
    """Drafts for the `wanted` requests of `batch`.

    room  drafts each request may have verified. A further block is for requests that have room for
          more than the blocks before, whose blocks were full, and whose confidences so far
          multiply to `continue_threshold` at least.

    A further block starts from the last draft of the one before as its anchor. Lossless: the rule
    reads confidences of the blocks before; a schedule reaches the block only by verifying these
    whole (docs/losslessness.md). Its noise is that of another seed: a position can be drafted in
    several rounds at one place of a block, as part of a first and of a further block.
    """
    size = len(wanted)
    rows = [row for row in range(size) if wanted[row]]
    if not num_drafts or not any(room[row] for row in rows):
        return nothing(size, batch.anchor.device)
    blocks = []
    made, members = [0] * size, rows
    for number in range(num_blocks):
        block = drafter.draft(_select(batch, members, size), num_drafts, method)
        proposed = block.num_proposed
        counts = [num_drafts] * len(members) if proposed is None else proposed.tolist()
        for row, count in zip(members, counts):
            made[row] += count
        block = _spread(block, members, size)
        blocks.append(_copy(block) if num_blocks > 1 else block)
        if number + 1 == num_blocks:
            break
        members = _continuing(blocks, members, made, room, num_drafts, continue_threshold)
        if not members:
            break
        batch = _behind(batch, block, num_drafts)
    return Proposal(_join(blocks), made)


def nothing(size: int, device: torch.device | str) -> Proposal:
    ids = torch.empty((size, 0), dtype=torch.int64, device=device)
    confidence = torch.empty((size, 0), dtype=torch.float32, device=device)
    return Proposal(Draft(ids, None, confidence), [0] * size)


def _continuing(blocks, members, made, room, num_drafts, threshold) -> list[int]:
    """Reads the host once: which requests go on has to be known there."""
    survival = torch.cat([block.confidence for block in blocks], 1).clamp(0, 1).prod(1).tolist()
    full = num_drafts * len(blocks)
    return [
        row
        for row in members
        if made[row] == full and room[row] > full and survival[row] >= threshold
    ]


def _behind(batch: DraftBatch, block: Draft, num_drafts: int) -> DraftBatch:
    return DraftBatch(
        block.token_ids[:, -1].clamp(min=0),
        batch.anchor_positions + num_drafts,
        batch.slots,
        batch.temperature,
        batch.seeds + _GOLDEN,
    )


def _select(batch: DraftBatch, rows: list[int], size: int) -> DraftBatch:
    if len(rows) == size:
        return batch
    index = upload(rows, torch.int64, batch.anchor.device)
    return DraftBatch(*(getattr(batch, each.name)[index] for each in dataclasses.fields(batch)))


def _spread(block: Draft, rows: list[int], size: int) -> Draft:
    """Rows of some requests as rows of all; the others have no proposals."""
    if len(rows) == size:
        return block
    index = upload(rows, torch.int64, block.token_ids.device)

    def spread(values: torch.Tensor | None, fill: float) -> torch.Tensor | None:
        if values is None:
            return None
        out = values.new_full((size, *values.shape[1:]), fill)
        out[index] = values
        return out

    statistics = block.statistics
    return Draft(
        spread(block.token_ids, -1),
        spread(block.logits, 0),
        spread(block.confidence, 0),
        statistics and RowStatistics(*(spread(each, 0) for each in statistics)),
    )


def _copy(block: Draft) -> Draft:
    """Apart from buffers that the next draft may write into (a captured graph's)."""
    statistics = block.statistics
    return Draft(
        block.token_ids.clone(),
        None if block.logits is None else block.logits.clone(),
        block.confidence.clone(),
        statistics and RowStatistics(*(each.clone() for each in statistics)),
    )


def _join(blocks: list[Draft]) -> Draft:
    if len(blocks) == 1:
        return blocks[0]

    def join(name: str) -> torch.Tensor | None:
        parts = [getattr(block, name) for block in blocks]
        return None if parts[0] is None else torch.cat(parts, 1)

    statistics = None
    if all(block.statistics is not None for block in blocks):
        columns = zip(*(block.statistics for block in blocks))
        statistics = RowStatistics(*(torch.cat(parts, 1) for parts in columns))
    return Draft(join("token_ids"), join("logits"), join("confidence"), statistics)
