"""The draft head: Markov block sampling and confidences, written to be read.

Same names and arguments as `dspark_ext.draft`, with the uniforms given. The logits are those of
docs/numerics.md section 10 to the bit; draws and confidences are float64. `head_step64` and
`step_logits64` say in float64 what the logits approximate. Source: DSpark (2607.05147) 3.1 and 3.2;
DeepSpec markov_head.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .law import draw, row_statistics
from .numerics import EMPTY_ROW, LOG2_E, exp2_nonpositive, fma32, uniform

BIAS_LANES = 16
HIDDEN_LANES = 256
KINDS = ("vanilla", "gated", "rnn")


class DraftOutput(NamedTuple):
    token_ids: Tensor  # [B, K] int64
    logits: Tensor  # [B, K, V], dtype of the base logits; what was sampled from
    prev_embed: Tensor  # [B, K, r], dtype of w1; w1[x_{k-1}]


class Head(NamedTuple):
    """kind: vanilla, gated or rnn; what the last two read besides the embedding."""

    kind: str = "vanilla"
    weight: Tensor | None = None  # gated [r, d + r], columns [h ; e]; rnn [3r, 2r + d], [s ; e ; h]
    bias: Tensor | None = None  # [r] or [3r]


VANILLA = Head()


def lane_dot(matrix: Tensor, vector: Tensor, lanes: int) -> Tensor:
    """matrix [V, r] times vector [r], float32 [V]: both padded with zeros, lane = index mod
    `lanes`, fused multiply-adds in index order, then a halving tree."""
    m, v = matrix.float().numpy(), vector.float().numpy()
    padding = -m.shape[1] % lanes
    m, v = np.pad(m, ((0, 0), (0, padding))), np.pad(v, (0, padding))
    acc = np.zeros((m.shape[0], lanes), np.float32)
    for start in range(0, m.shape[1], lanes):
        acc = fma32(m[:, start : start + lanes], v[start : start + lanes], acc)
    while lanes > 1:
        lanes //= 2
        acc = acc[:, :lanes] + acc[:, lanes : 2 * lanes]
    return torch.from_numpy(acc[:, 0].copy())


def exp_minus_magnitude(z: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # NaN
        return exp2_nonpositive(-np.abs(z) * np.float32(float(LOG2_E))).astype(np.float32)


def sigmoid(z: Tensor) -> Tensor:
    """float32, to the bit."""
    z, one = z.numpy(), np.float32(1)
    s = exp_minus_magnitude(z)
    return torch.from_numpy(np.where(z >= 0, one / (one + s), s / (one + s)))


def tanh(x: Tensor) -> Tensor:
    """float32, to the bit."""
    x, one = x.numpy(), np.float32(1)
    t = exp_minus_magnitude(2 * x)
    magnitude = (one - t) / (one + t)
    return torch.from_numpy(np.where(x < 0, -magnitude, magnitude))


def head_step(head: Head, embed: Tensor, hidden: Tensor | None, state: Tensor):
    """(u, next state), float32 [r] each: what w2 is multiplied with; to the bit."""
    e = embed.float()
    if head.kind == "vanilla":
        return e, state
    rank = len(e)
    if head.kind == "gated":
        parts = {"h": head.weight[:, :-rank], "e": head.weight[:, -rank:]}
    else:
        parts = {
            "s": head.weight[:, :rank],
            "e": head.weight[:, rank : 2 * rank],
            "h": head.weight[:, 2 * rank :],
        }
    z = lane_dot(parts["h"], hidden, HIDDEN_LANES) + lane_dot(parts["e"], e, BIAS_LANES)
    if head.kind == "rnn":
        z = z + lane_dot(parts["s"], state, BIAS_LANES)
    z = z + (0.0 if head.bias is None else head.bias.float())
    if head.kind == "gated":
        return sigmoid(z) * e, state
    g, c, o = z.split(rank)
    state = sigmoid(g) * state + (1 - sigmoid(g)) * tanh(c)
    return tanh(o), state


def head_step64(head: Head, embed: Tensor, hidden: Tensor | None, state: Tensor):
    """`head_step` in float64, as the model is defined."""
    e = embed.double()
    if head.kind == "vanilla":
        return e, state
    h, weight = hidden.double(), head.weight.double()
    features = [h, e] if head.kind == "gated" else [state.double(), e, h]
    z = weight @ torch.cat(features)
    if head.bias is not None:
        z = z + head.bias.double()
    if head.kind == "gated":
        return torch.sigmoid(z) * e, state
    g, c, o = z.split(len(e))
    g = torch.sigmoid(g)
    return torch.tanh(o), g * state.double() + (1 - g) * torch.tanh(c)


def step_logits(base: Tensor, u: Tensor, w2: Tensor) -> Tensor:
    """base [V_draft] + w2 u, rounded once to the dtype of `base`."""
    return (base.float() + lane_dot(w2, u, BIAS_LANES)).to(base.dtype)


def step_logits64(base: Tensor, u: Tensor, w2: Tensor) -> Tensor:
    """`step_logits` in float64, not rounded."""
    return base.double() + w2.double() @ u.double()


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
    head: Head = VANILLA,
    hidden: Tensor | None = None,
    method: str = "probabilistic",
    d2t: Tensor | None = None,
    num_drafts: int | None = None,
) -> DraftOutput:
    """base_logits [B, K, V_draft], anchor [B], w1 [V, r], w2 [V_draft, r], uniforms [B, K] float64,
    temperature [B], hidden [B, K, d]. Only the first `num_drafts` positions are drafted."""
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
        previous, state = int(anchor[b]), torch.zeros(w1.shape[1])
        for k in range(steps):
            embed = w1[previous]
            u, state = head_step(head, embed, None if hidden is None else hidden[b, k], state)
            logits = step_logits(base_logits[b, k], u, w2)
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
    logits = lane_dot(flat, weight.reshape(-1), HIDDEN_LANES)
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
