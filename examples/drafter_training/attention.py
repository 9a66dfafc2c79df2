"""Attention of many blocks at once: each sees the context before its anchor, and itself."""

from __future__ import annotations

import torch
from torch import Tensor


def context_mask(anchor_positions: Tensor, length: int, window: int | None) -> Tensor:
    """[R, A, T], added to scores: 0 at the positions before an anchor, at most `window` of them;
    -inf at the others."""
    distance = anchor_positions[..., None] - torch.arange(length)
    visible = distance > 0
    if window is not None:
        visible &= distance <= window
    return torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)


def block_attention(
    query: Tensor, key: Tensor, value: Tensor, context: tuple[Tensor, Tensor], mask: Tensor
) -> Tensor:
    """[R, A, K, H, D] of query [R, A, K, H, D], key and value [R, A, K, G, D], context keys and
    values [R, T, G, D], and `context_mask` [R, A, T].

    Scores are those of T context positions and of the K of the own block; those with other blocks
    are never computed. Scale D ** -0.5, softmax in float32 or better.
    """
    num_rows, num_anchors, num_drafts, num_heads, dim = query.shape
    groups = key.shape[3]
    # The query heads of a group become query rows of their KV head.
    query = query.unflatten(3, (groups, num_heads // groups)).permute(0, 3, 1, 2, 4, 5)
    query = query.flatten(3, 4)  # [R, G, A, K*H/G, D]
    key, value = key.permute(0, 3, 1, 2, 4), value.permute(0, 3, 1, 2, 4)
    context_key, context_value = (each.transpose(1, 2) for each in context)
    far = (query.flatten(2, 3) @ context_key.mT).unflatten(2, (num_anchors, -1))
    near = query @ key.mT
    wide = torch.promote_types(near.dtype, torch.float32)
    far = far.to(wide) * dim**-0.5 + mask[:, None, :, None]
    scores = torch.cat([far, near.to(wide) * dim**-0.5], -1)
    weights = torch.softmax(scores, -1).to(value.dtype)
    far, near = weights.split([context_key.shape[2], num_drafts], -1)
    mixed = (far.flatten(2, 3) @ context_value).unflatten(2, (num_anchors, -1)) + near @ value
    mixed = mixed.unflatten(3, (num_drafts, -1)).permute(0, 2, 3, 1, 4, 5)
    return mixed.flatten(3, 4)
