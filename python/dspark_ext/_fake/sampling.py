"""Fake kernels of the sampling family."""

import torch
from torch import Tensor


def _check_devices(*arguments) -> None:
    devices = {str(x.device) for x in arguments if isinstance(x, Tensor)}
    if len(devices) > 1:
        raise RuntimeError(
            f"dspark_ext: expected target_logits and all other tensors on one device, got {devices}"
        )


@torch.library.register_fake("dspark_ext::rejection_sample")
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
    return_logprobs,
):
    _check_devices(
        target_logits, draft_token_ids, draft_logits, draft_probs, query_start_loc, temperature
    )
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


@torch.library.register_fake("dspark_ext::target_probs")
def _(logits, temperature, top_k, top_p, min_p):
    _check_devices(logits, temperature, top_k, top_p, min_p)
    return logits.new_empty(logits.shape, dtype=torch.float32)


@torch.library.register_fake("dspark_ext::sample")
def _(logits, temperature, top_k, top_p, min_p, seeds, positions, stream, uniforms):
    _check_devices(logits, temperature, top_k, top_p, min_p, seeds, positions, uniforms)
    rows = logits.shape[0]
    return (
        logits.new_empty((rows,), dtype=torch.int64),
        logits.new_empty((rows,), dtype=torch.float32),
    )


@torch.library.register_fake("dspark_ext::block_acceptance")
def _(target_logits, draft_token_ids, *_):
    return tuple(
        target_logits.new_empty(draft_token_ids.shape, dtype=torch.float64) for _ in range(3)
    )


def _writes_only(*_args, **_kwargs):
    """An out variant: nothing is returned, and shapes are the caller's."""


for _name in ("rejection_sample", "target_probs", "sample"):
    torch.library.register_fake(f"dspark_ext::{_name}.out")(_writes_only)
