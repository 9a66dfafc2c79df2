"""Fake kernels of the router family."""

import torch

from ._register import register_fake


@register_fake("route")
def _route(
    logits,
    k,
    scoring,
    bias,
    num_groups,
    topk_groups,
    renormalize,
    scale,
    hash_ids,
    hash_table,
    shared_expert_weight,
):
    tokens = logits.shape[0]
    slots = k if shared_expert_weight is None else k + 1
    return (
        logits.new_empty((tokens, slots), dtype=torch.int32),
        logits.new_empty((tokens, slots), dtype=torch.float32),
        logits.new_empty((tokens,), dtype=torch.int32),
    )
