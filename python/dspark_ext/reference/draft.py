"""The draft head: Markov block sampling and confidences, written to be read.

Same names and arguments as `dspark_ext.draft`, with the uniforms given. The logits are those of
docs/numerics.md section 10 to the bit; draws and confidences are float64. Source: DSpark
(2607.05147) 3.1 and 3.2, vanilla Markov head.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .law import draw, row_statistics
from .numerics import EMPTY_ROW, fma32, uniform

BIAS_LANES = 16
CONFIDENCE_LANES = 256


class DraftOutput(NamedTuple):
    token_ids: Tensor  # [B, K] int64
    logits: Tensor  # [B, K, V], dtype of the base logits; what was sampled from
    prev_embed: Tensor  # [B, K, r], dtype of w1; w1[x_{k-1}]


def lane_dot(matrix: Tensor, vector: Tensor, lanes: int) -> Tensor:
    """matrix [V, r] times vector [r], float32 [V]: lane = index mod `lanes`, fused multiply-adds in
    index order, then a halving tree."""
    m, v = matrix.float().numpy(), vector.float().numpy()
    acc = np.zeros((m.shape[0], lanes), np.float32)
    for start in range(0, m.shape[1], lanes):
        part = m[:, start : start + lanes]
        width = part.shape[1]
        acc[:, :width] = fma32(part, v[start : start + lanes], acc[:, :width])
    while lanes > 1:
        lanes //= 2
        acc = acc[:, :lanes] + acc[:, lanes : 2 * lanes]
    return torch.from_numpy(acc[:, 0].copy())


def step_logits(base: Tensor, embed: Tensor, w2: Tensor) -> Tensor:
    """base [V_draft] + w2 embed, rounded once to the dtype of `base`."""
    return (base.float() + lane_dot(w2, embed, BIAS_LANES)).to(base.dtype)


def scatter_to_target(logits: Tensor, d2t: Tensor | None, vocab_size: int) -> Tensor:
    """Reduced draft vocabulary: draft id i is target id i + d2t[i]; all other ids get -inf."""
    if d2t is None:
        return logits
    row = torch.full((vocab_size,), float("-inf"), dtype=logits.dtype)
    row[torch.arange(logits.numel()) + d2t] = logits
    return row


def sample_row(logits: Tensor, temperature: float, u: float) -> int:
    """Inverse CDF of softmax(logits / temperature) in index order; lowest argmax at temperature 0;
    id 0 if no logit is above -inf."""
    row = row_statistics(logits, temperature)
    return 0 if row.status & EMPTY_ROW else draw(row.probs, u)


def draft_uniforms(seeds: Tensor, positions: Tensor, num_drafts: int) -> Tensor:
    """[B, K] float64: draft k (from 0) uses stream DRAFT at position positions[b] + k, slot k."""
    rows = [
        [uniform(seed, position + k, "draft", k) for k in range(num_drafts)]
        for seed, position in zip(seeds.tolist(), positions.tolist())
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), num_drafts)


def markov_sample(
    base_logits: Tensor,
    anchor: Tensor,
    w1: Tensor,
    w2: Tensor,
    *,
    uniforms: Tensor,
    temperature: Tensor,
    method: str = "probabilistic",
    d2t: Tensor | None = None,
    num_drafts: int | None = None,
) -> DraftOutput:
    """base_logits [B, K, V_draft], anchor [B], w1 [V, r], w2 [V_draft, r], uniforms [B, K] float64,
    temperature [B]. Only the first `num_drafts` positions are drafted."""
    batch, positions, draft_vocab = base_logits.shape
    steps = positions if num_drafts is None else num_drafts
    vocab = draft_vocab if d2t is None else w1.shape[0]
    out = DraftOutput(
        torch.zeros(batch, steps, dtype=torch.int64),
        torch.zeros(batch, steps, vocab, dtype=base_logits.dtype),
        torch.zeros(batch, steps, w1.shape[1], dtype=w1.dtype),
    )
    for b in range(batch):
        heat = 0.0 if method == "greedy" else float(temperature[b])
        previous = int(anchor[b])
        for k in range(steps):
            embed = w1[previous]
            logits = step_logits(base_logits[b, k], embed, w2)
            logits = scatter_to_target(logits, d2t, vocab)
            previous = sample_row(logits, heat, float(uniforms[b, k]))
            out.token_ids[b, k] = previous
            out.logits[b, k] = logits
            out.prev_embed[b, k] = embed
    return out


def confidence_logits(
    hidden: Tensor, prev_embed: Tensor, weight: Tensor, bias: float | None = None
) -> Tensor:
    """[B, K] float32: weight . [h_k ; w1[x_{k-1}]] + bias, to the bit."""
    features = torch.cat([hidden.float(), prev_embed.float()], -1)
    flat = features.reshape(-1, features.shape[-1])
    logits = lane_dot(flat, weight.reshape(-1), CONFIDENCE_LANES)
    if bias is not None:
        logits = logits + torch.tensor(bias, dtype=torch.float32)
    return logits.reshape(features.shape[:-1])


def confidence(
    hidden: Tensor,
    prev_embed: Tensor,
    weight: Tensor,
    bias: float | None = None,
    temperatures: Tensor | None = None,
) -> Tensor:
    """[B, K] float64: sigmoid(logit_k / temperatures[k]), the probability that x_k is accepted if
    x_1 .. x_{k-1} were. It never sees x_k."""
    logits = confidence_logits(hidden, prev_embed, weight, bias).double()
    if temperatures is not None:
        logits = logits / temperatures.double()
    return torch.sigmoid(logits)
