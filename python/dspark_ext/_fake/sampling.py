"""Fake kernels of the sampling family."""

import torch

from ._register import register_fake


@register_fake("rejection_sample")
def _(
    target_logits,
    draft_token_ids,
    draft_logits,
    draft_probs,
    query_start_loc,
    method,
    temperature,
    draft_temperature,
    top_k,
    top_p,
    min_p,
    seeds,
    positions,
    synthetic_acceptance_rates,
    uniforms,
    draft_statistics,
    return_logprobs,
):
    batch, num_drafts = draft_token_ids.shape

    def new(shape, dtype):
        return target_logits.new_empty(shape, dtype=dtype)

    return (
        new((batch, num_drafts + 1), torch.int64),
        new((batch,), torch.int32),
        new((batch,), torch.int32),
        new((batch,), torch.int64),
        new((batch,), torch.int32),
        new((batch if return_logprobs else 0, num_drafts + 1), torch.float32),
    )


@register_fake("target_probs")
def _(logits, temperature, top_k, top_p, min_p):
    return logits.new_empty(logits.shape, dtype=torch.float32)


@register_fake("sample")
def _(logits, temperature, top_k, top_p, min_p, seeds, positions, stream, uniforms, slots=None):
    rows = logits.shape[0]
    return (
        logits.new_empty((rows,), dtype=torch.int64),
        logits.new_empty((rows,), dtype=torch.float32),
    )


@register_fake("block_acceptance")
def _(target_logits, draft_token_ids, *_):
    return tuple(
        target_logits.new_empty(draft_token_ids.shape, dtype=torch.float64) for _ in range(3)
    )


def _writes_only(*_args, **_kwargs):
    """An out variant: nothing is returned, and shapes are the caller's."""


for _name in ("rejection_sample", "target_probs", "sample"):
    register_fake(f"{_name}.out")(_writes_only)
