"""Fake kernels of the verify family."""

import torch

from ._register import register_fake


@register_fake("schedule")
def _schedule(
    confidence,
    mode,
    capacity,
    cost,
    budget,
    lagged_confidence,
    num_requests,
    threshold,
    num_drafts,
    min_drafts,
    max_rows,
    num_other_rows,
):
    like = confidence if confidence is not None else capacity
    batch = like.shape[0]
    return (
        like.new_empty((batch,), dtype=torch.int32),
        like.new_empty((batch + 1,), dtype=torch.int32),
        like.new_empty((), dtype=torch.int32),
        like.new_empty((), dtype=torch.float32),
    )


@register_fake("pack")
def _pack(
    anchor,
    draft_token_ids,
    seq_lens,
    verify_lens,
    query_start_loc,
    max_rows,
    block_table,
    block_size,
    rows_per_request=0,
):
    return (
        anchor.new_empty((max_rows,), dtype=torch.int64),
        anchor.new_empty((max_rows,), dtype=torch.int64),
        anchor.new_empty((max_rows,), dtype=torch.int32),
        anchor.new_empty((max_rows,), dtype=torch.int64),
        anchor.new_empty((max_rows,), dtype=torch.int64),
    )


@register_fake("unpack")
def _unpack(rows, fill, query_start_loc, num_drafts, rows_per_request=0):
    batch = query_start_loc.shape[0] - 1
    return rows.new_empty((batch, num_drafts + 1, *rows.shape[1:]))


@register_fake("commit")
def _commit(num_emitted, last_token, seq_lens, query_start_loc, num_rows, rows_per_request=0):
    batch = seq_lens.shape[0]
    return (
        seq_lens.new_empty((batch,), dtype=torch.int64),
        seq_lens.new_empty((batch,), dtype=torch.int64),
        seq_lens.new_empty((num_rows,), dtype=torch.bool),
        seq_lens.new_empty((batch,), dtype=torch.int32),
    )


@register_fake("accumulate_stats")
def _accumulate_stats(verify_lens, num_accepted, request_ids, verified, reached, histogram):
    return None
