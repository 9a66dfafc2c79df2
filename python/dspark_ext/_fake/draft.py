"""Fake kernels of the draft family."""

import torch

from ._register import register_fake

_TILE = 4096


@register_fake("markov_sample")
def _markov_sample(
    base_logits,
    anchor,
    w1,
    w2,
    head,
    hidden,
    head_weight,
    head_bias,
    method,
    temperature,
    seeds,
    positions,
    d2t,
    num_drafts,
    vocab_size,
    exact,
):
    rows = (base_logits.shape[0], num_drafts)
    tiles = (*rows, (vocab_size + _TILE - 1) // _TILE)
    return (
        base_logits.new_empty(rows, dtype=torch.int64),
        base_logits.new_empty((*rows, vocab_size)),
        w1.new_empty((*rows, w1.shape[1])),
        base_logits.new_empty(rows, dtype=torch.float32),
        base_logits.new_empty(tiles, dtype=torch.float32),
        base_logits.new_empty(tiles, dtype=torch.float32),
        base_logits.new_empty(tiles, dtype=torch.uint8),
    )


@register_fake("markov_logits")
def _markov_logits(base_logits, anchor, w1, w2, head, hidden, head_weight, head_bias, state, exact):
    batch, rank = base_logits.shape[0], w1.shape[1]
    return (
        base_logits.new_empty((batch, 1, base_logits.shape[2])),
        w1.new_empty((batch, 1, rank)),
        base_logits.new_empty((batch, rank if head == "rnn" else 0), dtype=torch.float32),
    )


@register_fake("row_statistics")
def _row_statistics(logits, temperature):
    tiles = (logits.shape[0], (logits.shape[1] + _TILE - 1) // _TILE)
    return (
        logits.new_empty(tiles, dtype=torch.float32),
        logits.new_empty(tiles, dtype=torch.float32),
        logits.new_empty(tiles, dtype=torch.uint8),
    )


@register_fake("draw_shard")
def _draw_shard(logits, first_tile, tile_max, tile_sum, temperature, seeds, positions, slot):
    return logits.new_empty(logits.shape[:1], dtype=torch.int64)


@register_fake("confidence")
def _confidence(hidden, prev_embed, weight, bias, temperatures):
    return hidden.new_empty(hidden.shape[:2], dtype=torch.float32)


@register_fake("calibrate")
def _calibrate(conf_logits, temperatures):
    return conf_logits.new_empty(conf_logits.shape, dtype=torch.float32)
