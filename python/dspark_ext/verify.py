"""How many drafts to verify, the ragged batch that does it, and what is kept afterwards.

One round of a serving loop: `schedule` -> `pack` -> the target's forward over `input_ids` ->
`dspark_ext.sampling.rejection_sample` -> `commit`, with `AcceptanceStats` counting along.
Arithmetic: docs/numerics.md section 9. B requests, K drafts per request; x_0 is the anchor, the
last emitted token, whose KV is not written yet.
"""

import math
from typing import NamedTuple

import torch

from . import _operators as _ops
from ._integers import as_int32, as_int64
from .acceptance_estimator import AcceptanceEstimator
from .acceptance_stats import AcceptanceReport, AcceptanceStats
from .calibration import calibrate, fit_sts
from .cost_table import CostTable, profile_cost_table
from .draft_gate import DraftGate
from .scheduling import Schedule, draft_capacity, schedule

__all__ = [
    "AcceptanceEstimator",
    "AcceptanceReport",
    "AcceptanceStats",
    "Commit",
    "CostTable",
    "DraftGate",
    "Schedule",
    "VerifyBatch",
    "calibrate",
    "commit",
    "cudagraph_sizes",
    "draft_capacity",
    "fit_sts",
    "pack",
    "profile_cost_table",
    "schedule",
    "unpack",
]


class VerifyBatch(NamedTuple):
    """Result of `pack`: the rows of one verification pass, padded to `max_rows`.

    input_ids, positions: int64 [max_rows]; padding rows hold 0.
    request_ids: int32 [max_rows], request of each row; -1 on padding rows.
    slot_mapping: int64 [max_rows], KV slot to write; -1 on padding rows.
    query_start_loc, verify_lens: from the schedule.
    num_drafts: K, columns of the draft.
    sample_rows: int64 [max_rows], entry r = where row r of the schedule's ragged order lies among
        the rows of the pass; 0 past the end. Gather hidden states by it before the logits, and
        `rejection_sample` takes the schedule's `query_start_loc` whatever the layout.
    rows_per_request: 0, or the rows that every request owns in the padded layout.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    request_ids: torch.Tensor
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    verify_lens: torch.Tensor
    num_drafts: int
    sample_rows: torch.Tensor
    rows_per_request: int = 0


class Commit(NamedTuple):
    """Result of `commit`.

    seq_lens: int64 [B], tokens whose KV is written and kept; the position of the next anchor.
    anchor: int64 [B], the last token emitted, next round's x_0.
    row_kept: bool [max_rows], rows whose KV and hidden state belong to kept tokens: the anchor and
        the accepted drafts. Nothing of any other row may be used.
    num_rejected: int32 [B], rows that are not kept: drafts verified but not accepted, and the
        anchor's row too where nothing was emitted.
    """

    seq_lens: torch.Tensor
    anchor: torch.Tensor
    row_kept: torch.Tensor
    num_rejected: torch.Tensor


def pack(
    anchor: torch.Tensor,
    draft_token_ids: torch.Tensor,
    seq_lens: torch.Tensor,
    schedule: Schedule,
    *,
    max_rows: int,
    block_table: torch.Tensor | None = None,
    block_size: int | None = None,
    rows_per_request: int | None = None,
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
        block_size: positions per block, >= 1; given with a block_table, and only then.
        rows_per_request: for targets that take only batches of equal lengths: row i of request b
            lies at b * rows_per_request + i, and what a request does not use of its rows is
            padding. Every verify_len + 1 must fit (num_drafts + 1 always does), and B *
            rows_per_request in max_rows. Default: rows without gaps, by query_start_loc.

    Raises RuntimeError for shapes and dtypes and, on a CPU, for too few rows and a position without
    a block (beyond the table, or a negative entry). On a GPU rows that do not fit are left out and
    such a position gets slot -1.
    """
    if (block_table is None) != (block_size is None):
        missing = "block_table" if block_table is None else "block_size"
        raise ValueError(
            f"dspark_ext.pack: {missing}: expected block_table and block_size together, got None"
        )
    if block_table is not None:
        block_table = as_int32("pack", "block_table", block_table)
    if rows_per_request is not None and rows_per_request < 1:
        raise ValueError(
            f"dspark_ext.pack: rows_per_request: expected at least 1, got {rows_per_request}"
        )
    rows_per_request = rows_per_request or 0
    *rows, sample_rows = _ops.pack(
        as_int64("pack", "anchor", anchor),
        as_int64("pack", "draft_token_ids", draft_token_ids),
        as_int64("pack", "seq_lens", seq_lens),
        schedule.verify_lens,
        schedule.query_start_loc,
        max_rows,
        block_table,
        0 if block_size is None else block_size,
        rows_per_request,
    )
    return VerifyBatch(
        *rows,
        schedule.query_start_loc,
        schedule.verify_lens,
        draft_token_ids.shape[1],
        sample_rows,
        rows_per_request,
    )


def unpack(rows: torch.Tensor, batch: VerifyBatch, fill: float = 0.0) -> torch.Tensor:
    """Per-row values as [B, K+1, ...]: entry [b, i] is row i of request b, or `fill` where there is
    none.

    Args:
        rows: [max_rows, ...], any dtype (float32, int64, ...), in the order of `pack`.
        batch: the batch they belong to.
        fill: a number that the dtype holds, and finite, so that nothing downstream meets a NaN.
    """
    _check_fill(fill, rows.dtype)
    max_rows = batch.input_ids.shape[:1].numel()
    if rows.dim() == 0 or rows.shape[0] != max_rows:
        raise ValueError(
            f"dspark_ext.unpack: rows: expected [{max_rows}, ...], got {list(rows.shape)}"
        )
    return _ops.unpack(
        rows,
        rows.new_full((), fill),
        batch.query_start_loc,
        batch.num_drafts,
        batch.rows_per_request,
    )


def _check_fill(fill: float, dtype: torch.dtype) -> None:
    if dtype.is_complex:
        return
    if dtype.is_floating_point:
        is_held = not abs(fill) < math.inf or abs(fill) <= torch.finfo(dtype).max
    elif dtype == torch.bool:
        is_held = fill in (0, 1)
    else:
        numbers = torch.iinfo(dtype)
        is_held = numbers.min <= fill <= numbers.max and fill == int(fill)
    if not is_held:
        raise ValueError(
            "dspark_ext.unpack: fill: expected a number that "
            f"{str(dtype).removeprefix('torch.')} holds, got {fill}"
        )


def commit(output, batch: VerifyBatch, seq_lens: torch.Tensor) -> Commit:
    """What a verification pass leaves behind.

    Args:
        output: `RejectionOutput`, of which `num_emitted` int32 [B] and `last_token` int64 [B] are
            read. A request with num_emitted 0, or without rows, keeps none.
        batch: the batch that was verified.
        seq_lens: int64 [B], as given to `pack`.

    Raises RuntimeError for shapes and dtypes and, on a CPU, when more was emitted than a request
    has rows; on a GPU that counts as all of them.
    """
    return Commit(
        *_ops.commit(
            output.num_emitted,
            output.last_token,
            as_int64("commit", "seq_lens", seq_lens),
            batch.query_start_loc,
            batch.input_ids.shape[:1].numel(),
            batch.rows_per_request,
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
