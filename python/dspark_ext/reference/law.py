"""The law of one row: temperature, filters, draws. First half of the sampling specification.

What `dspark_ext.sampling` offers stands at the end of the file, with the same arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .numerics import EMPTY_ROW, FLT_MAX, NAN_ROW, uniform


@dataclass
class Row:
    """One distribution over the vocabulary."""

    x: Tensor  # [V] float64 logits as read: NaN is -inf, +inf is the largest float32
    probs: Tensor  # [V] float64; all zero if no entry is above -inf
    status: int = 0  # NAN_ROW, EMPTY_ROW


def row_statistics(logits: Tensor, temperature: float) -> Row:
    """softmax(logits / temperature), or a one-hot at the lowest argmax if `temperature` is 0."""
    nan = logits.isnan()
    x = logits.double().clamp(max=float(FLT_MAX)).masked_fill(nan, -torch.inf)
    status = NAN_ROW if nan.any() else 0
    probs = torch.zeros_like(x)
    if x.max() == -torch.inf:
        return Row(x, probs, status | EMPTY_ROW)
    if temperature == 0:
        probs[int((x == x.max()).nonzero()[0])] = 1
    else:
        weight = torch.exp((x - x.max()) / temperature)
        probs = weight / weight.sum()
    return Row(x, probs, status)


def filter_cut(row: Row, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Row:
    """Keeps a prefix of the entries in the order (logit descending, id ascending), renormalised.

    top-k: the first k. top-p: the shortest prefix of what top-k kept that has `top_p` of its mass,
    one entry at least. min-p: entries with at least `min_p` times the largest probability.
    """
    if row.status & EMPTY_ROW:
        return row
    probs = row.probs
    order = torch.argsort(row.x, descending=True, stable=True)
    kept = torch.zeros_like(probs, dtype=torch.bool)
    kept[order[: top_k if 0 < top_k < len(probs) else len(probs)]] = True
    if top_p < 1:
        sorted_mass = (probs * kept)[order].cumsum(0)
        count = int((sorted_mass < top_p * sorted_mass[-1]).sum()) + 1
        kept[order[count:]] = False
    if min_p > 0:
        kept &= probs >= min(min_p, 1.0) * probs.max()
    filtered = torch.where(kept, probs, 0.0)
    return Row(row.x, filtered / filtered.sum(), row.status)


def draw(weights: Tensor, u: float) -> int:
    """Inverse CDF in index order; an id without weight is never drawn."""
    cumulative = weights.cumsum(0)
    above = ((cumulative > u * cumulative[-1]) & (weights > 0)).nonzero()
    return int(above[0] if len(above) else weights.nonzero()[-1])


def per_row(value, count: int, default) -> list:
    """A scalar or a [count] tensor as a list."""
    if value is None:
        return [default] * count
    return torch.as_tensor(value).expand(count).tolist()


def target_probs(logits, *, temperature, top_k=None, top_p=None, min_p=None) -> Tensor:
    """[N, V] float64: the law that every row is verified against and sampled from."""
    return torch.stack([row.probs for row in target_rows(logits, temperature, top_k, top_p, min_p)])


def target_rows(logits, temperature, top_k, top_p, min_p) -> list[Row]:
    n = len(logits)
    params = zip(
        per_row(temperature, n, 1.0),
        per_row(top_k, n, 0),
        per_row(top_p, n, 1.0),
        per_row(min_p, n, 0.0),
    )
    return [
        filter_cut(row_statistics(row, t), k, p, m) for row, (t, k, p, m) in zip(logits, params)
    ]


def sample(
    logits,
    *,
    temperature,
    top_k=None,
    top_p=None,
    min_p=None,
    seeds,
    positions,
    stream="resample",
    slots=None,
    uniforms=None,
) -> tuple[Tensor, Tensor]:
    """(ids [N] int64, log-probabilities [N] float64): one draw per row."""
    ids, logprobs = [], []
    rows = target_rows(logits, temperature, top_k, top_p, min_p)
    for i, row in enumerate(rows):
        if uniforms is not None:
            u = float(uniforms[i])
        else:
            slot = 0 if slots is None else int(slots[i])
            u = uniform(int(seeds[i]), int(positions[i]), stream, slot)
        ids.append(0 if row.status & EMPTY_ROW else draw(row.probs, u))
        logprobs.append(row.probs[ids[-1]].log())
    return torch.tensor(ids), torch.stack(logprobs)
