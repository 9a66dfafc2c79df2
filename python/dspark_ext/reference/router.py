"""Routing twice: `route` in readable float64, `route_bits` in the float32 of docs/numerics.md.

`route` says what the numbers mean; `route_bits` is what every backend has to reproduce exactly.
"""

from __future__ import annotations

import numpy as np
import torch

from . import numerics

NAN_ROW, EMPTY_ROW, INVALID_ID = 1, 4, 16
FLT_MAX = np.finfo(np.float32).max


def scores(logits: torch.Tensor, scoring: str) -> torch.Tensor:
    """Unbiased scores [T, E], float64."""
    x = logits.double().clamp(max=float(FLT_MAX))
    if scoring == "softmax":
        return torch.softmax(x, -1).nan_to_num()  # a row of -inf has no score
    if scoring == "sigmoid":
        return torch.sigmoid(x)
    softplus = x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))
    return softplus.sqrt()


def group_mask(biased: torch.Tensor, num_groups: int, topk_groups: int) -> torch.Tensor:
    """Whether the group of each expert is among the best; [T, E] bool."""
    tokens, experts = biased.shape
    groups = biased.reshape(tokens, num_groups, -1)
    group_score = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
    best = group_score.sort(dim=-1, descending=True, stable=True).indices[:, :topk_groups]
    kept = torch.zeros(tokens, num_groups, dtype=torch.bool).scatter_(1, best, True)
    return kept.repeat_interleave(experts // num_groups, 1)


def route(
    logits,
    k,
    *,
    scoring="softmax",
    bias=None,
    num_groups=None,
    topk_groups=None,
    renormalize=True,
    scale=1.0,
):
    """Rows without NaN -> ids [T, k] int64, weights [T, k] float64, biased scores [T, E]."""
    unbiased = scores(logits, scoring)
    biased = unbiased if bias is None else unbiased + bias.double()
    if num_groups is not None and num_groups > 1:
        kept = group_mask(biased, num_groups, topk_groups)
        biased = biased.masked_fill(~kept, -torch.inf)
    ids = biased.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = unbiased.gather(1, ids)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * scale, biased


# ---- docs/numerics.md section 12, bit by bit -----------------------------------------------------

F = np.float32
LOG2_E_HIGH = F(float.fromhex("0x1.715476p+0"))
LOG2_E_LOW = F(float.fromhex("0x1.4ae0cp-26"))
LOG1P = [  # of r^3 .. r^0
    F(float.fromhex(text))
    for text in ("0x1.1940ep-3", "0x1.1ff946p-3", "0x1.99bca2p-3", "0x1.555538p-2")
]
fma = numerics.fma32


def horner(coefficients, x):
    p = np.full(np.shape(x), coefficients[0], F)
    for coefficient in coefficients[1:]:
        p = fma(p, x, F(coefficient))
    return p


def exp_nonpositive(x):
    """float32 e^x for x <= 0."""
    x = np.asarray(x, F)
    small = x * LOG2_E_HIGH < -125
    x = np.where(small, F(0), x)
    z = x * LOG2_E_HIGH
    rest = fma(x, LOG2_E_LOW, fma(x, LOG2_E_HIGH, -z))
    n = np.rint(z)
    p = horner(numerics.EXP2_FLOAT, (z - n) + rest)
    return np.where(small, F(0), np.ldexp(p, n.astype(np.int32)))


def log1p_unit(t):
    """float32 log(1 + t) for t in [0, 1]."""
    s = t / (F(2) + t)
    r = s * s
    twice = s + s
    return fma(twice * r, horner(LOG1P, r), twice)


def drop_small(score):
    return np.where(score < F(2.0**-100), F(0), score)


def scores_bits(x: np.ndarray, scoring: str) -> np.ndarray:
    """Unbiased scores of one row [E] without NaN, float32."""
    x = np.where(x < FLT_MAX, x, FLT_MAX)
    if scoring == "softmax":
        largest = x.max()
        numerator = exp_nonpositive(x - (largest if largest > -np.inf else F(0)))
        total = numerics.tile_sum(numerator)
        return drop_small(numerator / (total if total > 0 else F(1)))
    t = exp_nonpositive(np.where(x < 0, x, F(0) - x))
    if scoring == "sigmoid":
        return drop_small(np.where(x < 0, t, F(1)) / (F(1) + t))
    return drop_small(np.sqrt(np.where(x < 0, F(0), x) + log1p_unit(t)))


def kept_groups(biased: np.ndarray, num_groups: int, topk_groups: int) -> np.ndarray:
    group_score = []
    for group in biased.reshape(num_groups, -1):
        best = np.sort(group)[::-1]
        group_score.append(best[0] if len(best) == 1 else best[0] + best[1])
    order = sorted(range(num_groups), key=lambda g: (-group_score[g], g))
    return np.repeat(np.isin(np.arange(num_groups), order[:topk_groups]), len(biased) // num_groups)


def choose_bits(score, k, bias, num_groups, topk_groups):
    """Ids and counted scores of the slots; None where a biased score is NaN."""
    biased = score if bias is None else score + np.asarray(bias, F)
    if np.isnan(biased).any():
        return None
    biased = np.maximum(biased, -FLT_MAX)
    kept = np.ones(len(score), bool)
    if num_groups > 1:
        kept = kept_groups(biased, num_groups, topk_groups)
    order = sorted(np.flatnonzero(kept), key=lambda e: (-biased[e], e))[:k]
    return order, [F(0) if biased[e] <= -FLT_MAX else score[e] for e in order]


def route_bits(
    logits,
    k,
    scoring,
    bias=None,
    num_groups=0,
    topk_groups=0,
    renormalize=True,
    scale=1.0,
    hash_ids=None,
    hash_table=None,
    shared_expert_weight=None,
):
    """Arguments of torch.ops.dspark_ext.route -> (ids, weights, status), one row at a time."""
    rows, bias = logits.float().numpy(), None if bias is None else bias.numpy()
    slots = k + (shared_expert_weight is not None)
    ids = np.zeros((len(rows), slots), np.int32)
    weights = np.zeros((len(rows), slots), F)
    status = np.zeros(len(rows), np.int32)
    experts = rows.shape[1]
    for token, x in enumerate(rows):
        ids[token, :k], ids[token, k:] = np.arange(k), experts
        if np.isnan(x).any():
            status[token] = NAN_ROW
            continue
        with np.errstate(all="ignore"):
            score = scores_bits(x, scoring)
            status[token] = 0 if x.max() > -np.inf else EMPTY_ROW
            if hash_ids is not None:
                entry = int(hash_ids[token])
                row = hash_table[entry].tolist() if 0 <= entry < len(hash_table) else [-1]
                if min(row) < 0 or max(row) >= experts:
                    status[token] |= INVALID_ID
                    continue
                choice = row, score[row]
            else:
                choice = choose_bits(score, k, bias, num_groups, topk_groups)
            if choice is None:
                status[token] = NAN_ROW
                continue
            chosen, counted = choice
            total = F(0)
            for s in counted:
                total = total + s
            share = np.asarray(counted, F)
            if renormalize:
                share = share / (total + F(1e-20))
            ids[token, :k] = chosen
            weights[token, :k] = share * F(scale)
            weights[token, k:] = F(shared_expert_weight or 0)
    return torch.from_numpy(ids), torch.from_numpy(weights), torch.from_numpy(status)
