"""Conversions between the layouts of engines and that of `dspark_ext.sampling`.

B requests of up to K drafts each, N drafts in all, V entries of a vocabulary. Nothing here waits
for a GPU: sizes come from shapes and arguments, lengths stay tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

NO_PROPOSAL = -1


def query_start_loc_from_ends(draft_ends: Tensor) -> Tensor:
    """Row starts [B + 1] from inclusive sums of drafts [B] without a leading 0.

    A request of n drafts owns n + 1 rows, the last for the token after them.

    Example:
        >>> query_start_loc_from_ends(torch.tensor([3, 3, 5]))
        tensor([0, 4, 5, 8])
    """
    rows = draft_ends + torch.arange(
        1, draft_ends.shape[0] + 1, dtype=draft_ends.dtype, device=draft_ends.device
    )
    return torch.cat([rows.new_zeros(1), rows])


def request_of_draft(draft_ends: Tensor, num_drafts: int) -> Tensor:
    """Which request each of `num_drafts` flat drafts belongs to, int64; values[B] indexed by it
    are values per draft.

    Example:
        >>> request_of_draft(torch.tensor([2, 2, 5]), 5)
        tensor([0, 0, 2, 2, 2])
    """
    draft = torch.arange(num_drafts, device=draft_ends.device)
    return torch.searchsorted(draft_ends.to(torch.int64), draft, right=True)


def _slots(draft_ends: Tensor, num_slots: int, num_flat: int) -> tuple[Tensor, Tensor]:
    """Index [B, K] of each slot's entry in a flat tensor, and which slots have one."""
    ends = draft_ends.to(torch.int64)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    slots = torch.arange(num_slots, device=ends.device)
    used = slots < (ends - starts)[:, None]
    return (starts[:, None] + slots).clamp(max=max(num_flat - 1, 0)), used


def pad_ids(flat: Tensor, draft_ends: Tensor, num_slots: int) -> Tensor:
    """Flat ids [N] of B requests as [B, num_slots] int64, -1 where a request has no such draft.

    Example:
        >>> pad_ids(torch.tensor([7, 8, 9]), torch.tensor([2, 2, 3]), 2)
        tensor([[ 7,  8],
                [-1, -1],
                [ 9, -1]])
    """
    flat = flat.to(torch.int64)
    if flat.shape[0] == 0:
        return flat.new_full((draft_ends.shape[0], num_slots), NO_PROPOSAL)
    index, used = _slots(draft_ends, num_slots, flat.shape[0])
    return flat[index].masked_fill(~used, NO_PROPOSAL)


def pad_rows(flat: Tensor, draft_ends: Tensor, num_slots: int) -> Tensor:
    """Flat rows [N, V] of B requests as [B, num_slots, V]; unused slots hold finite rows that
    `rejection_sample` does not read. Without gaps it is a view, not a copy."""
    batch = draft_ends.shape[0]
    if flat.shape[0] == batch * num_slots:
        return flat.view(batch, num_slots, flat.shape[1])
    if flat.shape[0] == 0:
        return flat.new_zeros(batch, num_slots, flat.shape[1])
    index, _ = _slots(draft_ends, num_slots, flat.shape[0])
    return flat[index]


def rows_with_given_bonus(target_logits: Tensor, bonus_ids: Tensor, draft_ends: Tensor) -> Tensor:
    """Judging rows [N, V] and bonus tokens drawn elsewhere [B] as rows [N + B, V] of
    `rejection_sample`: each request's last row is the point mass at its bonus token, so that this
    token follows when every draft stands."""
    num_drafts, vocab = target_logits.shape
    last = query_start_loc_from_ends(draft_ends.to(torch.int64))[1:] - 1
    rows = target_logits.new_full((num_drafts + last.shape[0], vocab), float("-inf"))
    rows[last, bonus_ids.reshape(-1).to(torch.int64)] = 0.0
    # Draft i of request b lies at row i + b, behind the last rows of b requests.
    draft = torch.arange(num_drafts, device=target_logits.device)
    rows[draft + request_of_draft(draft_ends, num_drafts)] = target_logits
    return rows


def emitted_as_rows(token_ids: Tensor, width: int) -> Tensor:
    """`RejectionOutput.token_ids` [B, K + 1] as int32 [B, width], -1 past the end."""
    batch, columns = token_ids.shape
    out = token_ids.new_full((batch, width), NO_PROPOSAL, dtype=torch.int32)
    out[:, : min(columns, width)] = token_ids[:, :width]
    return out


def logits_of_probs(probs: Tensor) -> Tensor:
    """Logits whose law at temperature 1 is `probs`: logarithms, -inf where it is 0."""
    return probs.log()
