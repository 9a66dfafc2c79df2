"""How many drafts to verify, the ragged batch that does it, and what is kept afterwards.

One round of a serving loop: `schedule` -> `pack` -> the target's forward over `input_ids` ->
`dspark_ext.sampling.rejection_sample` -> `commit`, with `AcceptanceStats` counting along.
Arithmetic: docs/numerics.md section 9. B requests, K drafts per request; x_0 is the anchor, the
last emitted token, whose KV is not written yet.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from .acceptance_stats import AcceptanceReport, AcceptanceStats
from .cost_table import CostTable, profile_cost_table

__all__ = [
    "AcceptanceReport",
    "AcceptanceStats",
    "Commit",
    "CostTable",
    "Schedule",
    "VerifyBatch",
    "commit",
    "cudagraph_sizes",
    "draft_capacity",
    "pack",
    "profile_cost_table",
    "schedule",
    "unpack",
]

_MODES = ("fixed", "threshold", "early_stop")


class Schedule(NamedTuple):
    """Result of `schedule`; everything stays on the device.

    verify_lens: int32 [B], drafts to verify per request, 0 allowed.
    query_start_loc: int32 [B+1], request b owns rows query_start_loc[b] .. query_start_loc[b+1]-1,
        its anchor first.
    num_rows: int32 [], B + sum of verify_lens.
    expected_tokens: float32 [], B + sum of the survivals admitted: tokens the pass should emit.
        Without confidences every draft counts as certain, which is an upper bound.
    """

    verify_lens: torch.Tensor
    query_start_loc: torch.Tensor
    num_rows: torch.Tensor
    expected_tokens: torch.Tensor


class VerifyBatch(NamedTuple):
    """Result of `pack`: the rows of one verification pass, padded to `max_rows`.

    input_ids, positions: int64 [max_rows]; padding rows hold 0.
    request_ids: int32 [max_rows], request of each row; -1 on padding rows.
    slot_mapping: int64 [max_rows], KV slot to write; -1 on padding rows.
    query_start_loc, verify_lens: from the schedule.
    num_drafts: K, columns of the draft.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    request_ids: torch.Tensor
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    verify_lens: torch.Tensor
    num_drafts: int


class Commit(NamedTuple):
    """Result of `commit`.

    seq_lens: int64 [B], tokens whose KV is written and kept; the position of the next anchor.
    anchor: int64 [B], the last token emitted, next round's x_0.
    row_kept: bool [max_rows], rows whose KV and hidden state belong to kept tokens: the anchor and
        the accepted drafts. Nothing of any other row may be used.
    num_rejected: int32 [B], drafts verified but not accepted.
    """

    seq_lens: torch.Tensor
    anchor: torch.Tensor
    row_kept: torch.Tensor
    num_rejected: torch.Tensor


def schedule(
    confidence: torch.Tensor | None,
    *,
    cost: CostTable | torch.Tensor | None = None,
    budget: torch.Tensor | None = None,
    mode: str = "early_stop",
    capacity: torch.Tensor | Sequence[int] | None = None,
    min_drafts: int = 0,
    max_rows: int | None = None,
    num_other_rows: int = 0,
    threshold: float | None = None,
    num_drafts: int | None = None,
) -> Schedule:
    """Chooses how many drafts of each request the target verifies in this pass.

    Every mode is lossless: whether x_j is verified depends on its request's c_1..c_j and on other
    requests, never on c_{j+1} and later, which x_j itself influences.

    Args:
        confidence: float32 [B, K], CONDITIONAL probabilities c_j that x_j is accepted if
            x_1..x_{j-1} were (not survivals, which are their running products). NaN counts as 0,
            values are clamped to [0, 1]. None only in mode fixed, given `capacity` (which tells B)
            and `num_drafts`.
        cost: CostTable, or float64 [n] with seconds for 0, 1, ... rows; required by early_stop, not
            looked at by the other modes.
        budget: for mode budget, which is not available.
        mode: `"early_stop"`: the paper's Algorithm 1: drafts in the order (survival descending,
            position ascending, request ascending) while each one raises expected tokens per second.
            `"threshold"`: each request up to its first c_j below `threshold`.
            `"fixed"`: everything `num_drafts` and `capacity` allow, whatever the confidences.
        capacity: int32 [B], drafts a request has room for (see `draft_capacity`); negative is 0.
        min_drafts: verify at least this many of each request where capacity and max_rows permit.
        max_rows: rows the pass can hold, anchors included, >= B. Where it binds, drafts go in the
            order above (by position, then request, in mode fixed and for min_drafts).
        num_other_rows: rows of the same pass that are neither anchors nor drafts (prefill): they
            shift the look-up in `cost`, they do not count against `max_rows`.
        threshold: for mode threshold: smallest CONDITIONAL confidence that is verified, in [0, 1].
        num_drafts: use at most the first so many drafts, 0..K; default K.

    A draft of survival 0 is never chosen, except by fixed and min_drafts.

    Raises NotImplementedError for a mode that is not available, ValueError for a budget or
    threshold the mode does not use or lacks, RuntimeError for missing confidences, a missing cost
    table (a flat one is reported by CostTable), shapes, dtypes and ranges.

    Source: DSpark paper, Algorithm 1; DeepSpec's static threshold.
    """
    if mode not in _MODES:
        raise NotImplementedError(
            f"dspark_ext.schedule: mode {mode!r} is not available; available: {', '.join(_MODES)}"
        )
    if budget is not None:
        raise ValueError(f"dspark_ext.schedule: budget: not used by mode {mode!r}, expected None")
    if (threshold is None) == (mode == "threshold"):
        raise ValueError(
            "dspark_ext.schedule: threshold: expected a conditional confidence in [0, 1] in mode "
            f"'threshold' and None otherwise, got {threshold} in mode {mode!r}"
        )
    if confidence is None and mode != "fixed":
        raise RuntimeError(
            "dspark_ext.schedule: confidence: expected float32 [B, K], got None; only mode 'fixed' "
            f"works without (mode {mode!r})"
        )
    if confidence is None:
        for name, value in (("capacity", capacity), ("num_drafts", num_drafts)):
            if value is None:
                raise RuntimeError(
                    f"dspark_ext.schedule: {name}: needed without confidence, got None"
                )
    if confidence is not None and confidence.dim() != 2:
        raise RuntimeError(
            f"dspark_ext.schedule: confidence: expected shape [B, K], got {list(confidence.shape)}"
        )
    if capacity is not None:
        device = confidence.device if confidence is not None else None
        capacity = torch.as_tensor(capacity, dtype=torch.int32, device=device)
    if isinstance(cost, CostTable):
        cost = cost.for_batch(capacity.shape[0] if confidence is None else confidence.shape[0])
    if cost is not None and confidence is not None:
        cost = cost.to(confidence.device)
    if num_drafts is None:
        num_drafts = confidence.shape[1]
    return Schedule(
        *torch.ops.dspark_ext.schedule(
            confidence,
            mode,
            capacity,
            cost,
            0.0 if threshold is None else threshold,
            num_drafts,
            min_drafts,
            -1 if max_rows is None else max_rows,
            num_other_rows,
        )
    )


def draft_capacity(
    context_left: torch.Tensor | Sequence[int | None] | None,
    output_left: torch.Tensor | Sequence[int | None] | None,
    num_drafts: int,
) -> torch.Tensor:
    """Drafts each request has room for: int32 [B], min(K, context_left - 1, output_left - 1), >= 0.

    n drafts use n + 1 positions (the anchor is written too) and emit up to n + 1 tokens.

    Args:
        context_left: [B] positions left from the anchor's on (context length - seq_lens).
        output_left: [B] tokens the request may still emit.
            Each may be an integer tensor, a sequence in which None means no limit, or None.
        num_drafts: K.

    Raises ValueError when both are None or they differ in length.
    """
    limits = [
        _limits(name, values)
        for name, values in (("context_left", context_left), ("output_left", output_left))
        if values is not None
    ]
    if not limits or limits[0].shape != limits[-1].shape:
        raise ValueError(
            "dspark_ext.draft_capacity: expected context_left and output_left of one length B, at "
            f"least one of them, got {[list(limit.shape) for limit in limits]}"
        )
    room = torch.minimum(limits[0], limits[-1].to(limits[0].device)) - 1
    return room.clamp(min=0, max=num_drafts).to(torch.int32)


def _limits(name: str, values: torch.Tensor | Sequence[int | None]) -> torch.Tensor:
    if not isinstance(values, torch.Tensor):
        values = torch.tensor([2**62 if v is None else v for v in values], dtype=torch.int64)
    if values.dim() != 1 or values.dtype.is_floating_point:
        raise ValueError(
            f"dspark_ext.draft_capacity: {name}: expected integers [B], got {values.dtype} "
            f"{list(values.shape)}"
        )
    return values.to(torch.int64)


def pack(
    anchor: torch.Tensor,
    draft_token_ids: torch.Tensor,
    seq_lens: torch.Tensor,
    schedule: Schedule,
    *,
    max_rows: int,
    block_table: torch.Tensor | None = None,
    block_size: int | None = None,
) -> VerifyBatch:
    """Lays the anchors and the drafts to verify out as the rows of one pass.

    Row i of a request holds x_i at position seq_lens + i. Int32 ids and lengths are converted.

    Args:
        anchor: int64 [B], x_0, >= 0.
        draft_token_ids: int64 [B, K]; a negative id (no proposal) is fed as id 0, and
            `rejection_sample` ends the block there.
        seq_lens: int64 [B], tokens whose KV is written = position of the anchor.
        schedule: which rows; its num_rows must not exceed max_rows.
        max_rows: rows of the result; the rest is padding (id 0, position 0, slot -1, request -1).
        block_table: int32 [B, num_blocks], block of each `block_size` positions: slot = block *
            block_size + position % block_size. Without it the slot is the position.
        block_size: positions per block, >= 1; required with a block_table.

    Raises RuntimeError for shapes and dtypes, too few rows, and a position without a block
    (beyond the table, or a negative entry).
    """
    if block_table is not None and block_size is None:
        raise ValueError("dspark_ext.pack: block_size: expected an int with block_table, got None")
    if block_table is not None:
        block_table = block_table.to(torch.int32)
    rows = torch.ops.dspark_ext.pack(
        anchor.to(torch.int64),
        draft_token_ids.to(torch.int64),
        seq_lens.to(torch.int64),
        schedule.verify_lens,
        schedule.query_start_loc,
        max_rows,
        block_table,
        0 if block_size is None else block_size,
    )
    return VerifyBatch(
        *rows, schedule.query_start_loc, schedule.verify_lens, draft_token_ids.shape[1]
    )


def unpack(rows: torch.Tensor, batch: VerifyBatch, fill: float = 0.0) -> torch.Tensor:
    """Per-row values as [B, K+1, ...]: entry [b, i] is row i of request b, or `fill` where there is
    none.

    Args:
        rows: [max_rows, ...], any dtype, in the order of `pack`.
        batch: the batch they belong to.
        fill: finite, so that nothing downstream meets a NaN.
    """
    max_rows = batch.input_ids.shape[0]
    if rows.shape[0] != max_rows:
        raise ValueError(
            f"dspark_ext.unpack: rows: expected [{max_rows}, ...], got {list(rows.shape)}"
        )
    column = torch.arange(batch.num_drafts + 1, device=rows.device)
    present = column <= batch.verify_lens[:, None]
    index = torch.where(present, batch.query_start_loc[:-1, None] + column, 0)
    present = present.reshape(present.shape + (1,) * (rows.dim() - 1))
    return rows[index].masked_fill(~present, fill)


def commit(output, batch: VerifyBatch, seq_lens: torch.Tensor) -> Commit:
    """What a verification pass leaves behind.

    Args:
        output: `RejectionOutput`, of which `num_emitted` int32 [B] and `last_token` int64 [B] are
            read. A request with num_emitted 0 keeps none of its rows.
        batch: the batch that was verified.
        seq_lens: int64 [B], as given to `pack`.

    Raises RuntimeError for shapes and dtypes and when more was emitted than a request has rows.
    """
    return Commit(
        *torch.ops.dspark_ext.commit(
            output.num_emitted,
            output.last_token,
            seq_lens.to(torch.int64),
            batch.query_start_loc,
            batch.input_ids.shape[0],
        )
    )


def cudagraph_sizes(max_batch: int, num_drafts: int) -> list[int]:
    """Row counts worth capturing for up to `max_batch` requests of 1..1+num_drafts rows.

    1, 2, 4, 8, then multiples of 8 and, from 128 on, eight sizes per power of two, so that rounding
    up wastes at most about an eighth of a larger pass. The sizes end with max_batch * (1 +
    num_drafts) and the power of two above it, which leaves room for rows of other requests: 128
    requests of 1 + 5 rows end with 768, 1024.
    """
    if max_batch < 1 or num_drafts < 0:
        raise ValueError(
            "dspark_ext.cudagraph_sizes: expected max_batch >= 1 and num_drafts >= 0, "
            f"got {max_batch}, {num_drafts}"
        )
    most = max_batch * (1 + num_drafts)
    sizes = [size for size in (1, 2, 4) if size < most]
    size = 8
    while size < most:
        sizes.append(size)
        size += max(8, 2 ** (size.bit_length() - 4))
    return sorted({*sizes, most, 1 << (most - 1).bit_length()})
