"""Manifold-constrained hyper-connections: a residual stream of several copies, mixed per token.

A sublayer reads one weighted sum of the copies (`collapse`), and its output is spread over copies
that were mixed by a doubly stochastic matrix (`expand`). Source: DeepSeek's mHC (arXiv 2512.24880).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Mixes(NamedTuple):
    """Float32. pre [..., c]: weights of the copies a sublayer reads. post [..., c]: how its output
    is spread. comb [..., c, c]: copy i goes to copy j with weight comb[i, j]."""

    pre: Tensor
    post: Tensor
    comb: Tensor


def mixes(
    streams: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    *,
    iterations: int,
    eps: float,
    norm_eps: float,
) -> Mixes:
    """Mixing weights of streams [..., c, d] by fn [2c + c*c, c*d], scale [3], base [2c + c*c]."""
    copies = streams.shape[-2]
    pre, post, comb = project(streams, fn, norm_eps).split([copies, copies, copies**2], -1)
    pre_base, post_base, comb_base = base.float().split([copies, copies, copies**2])
    scale = scale.float()
    comb = (comb * scale[2] + comb_base).unflatten(-1, (copies, copies))
    return Mixes(
        torch.sigmoid(pre * scale[0] + pre_base) + eps,
        2 * torch.sigmoid(post * scale[1] + post_base),
        sinkhorn(comb, iterations, eps),
    )


def project(streams: Tensor, fn: Tensor, norm_eps: float) -> Tensor:
    """The copies of a token as one row, normalised, times fn^T; float32."""
    flat = streams.flatten(-2).float()
    scale = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    return F.linear(flat, fn.float()) * scale


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """A nearly doubly stochastic matrix [..., c, c]: softmax of the rows, then columns and rows
    normalised in turn, ending with columns."""
    matrix = logits.softmax(-1) + eps
    matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    return matrix


def collapse(streams: Tensor, weights: Tensor) -> Tensor:
    """[..., d]: streams [..., c, d] summed with weights [..., c], in float32."""
    return (weights[..., None] * streams.float()).sum(-2).to(streams.dtype)


def expand(streams: Tensor, output: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New streams: copy j is the sum of comb[i, j] streams[i] over i, plus post[j] output."""
    mixed = torch.einsum("...ij,...id->...jd", comb, streams.float())
    return (mixed + post[..., None] * output.float()[..., None, :]).to(streams.dtype)


def first_copy(streams: Tensor) -> Tensor:
    """Weights [..., c] that read copy 0 alone: what a delayed pre-mix starts from."""
    weights = torch.zeros(streams.shape[:-1], device=streams.device)
    weights[..., 0] = 1.0
    return weights


def mean_of_copies(streams: Tensor) -> Tensor:
    """Features [T, d] of a target's streams [T, c, d]: the mean over the copies, in float32."""
    return streams.float().mean(-2).to(streams.dtype)
