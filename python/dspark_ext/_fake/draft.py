"""Fake kernels of the draft family."""

import torch

from ._register import register_fake


@register_fake("markov_sample")
def _markov_sample(
    base_logits,
    anchor,
    w1,
    w2,
    method,
    temperature,
    seeds,
    positions,
    d2t,
    num_drafts,
    vocab_size,
    exact,
):
    batch = base_logits.shape[0]
    return (
        anchor.new_empty((batch, num_drafts), dtype=torch.int64),
        base_logits.new_empty((batch, num_drafts, vocab_size)),
        w1.new_empty((batch, num_drafts, w1.shape[1])),
    )


@register_fake("confidence")
def _confidence(hidden, prev_embed, weight, bias, temperatures):
    return hidden.new_empty(hidden.shape[:2], dtype=torch.float32)


@register_fake("calibrate")
def _calibrate(conf_logits, temperatures):
    return conf_logits.new_empty(conf_logits.shape, dtype=torch.float32)
