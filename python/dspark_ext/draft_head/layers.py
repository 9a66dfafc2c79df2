"""Norm, rotary embedding and block attention, as the draft heads share them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Normalises in float32 and answers in the dtype of its input. `size` None: no weight."""

    def __init__(self, size: int | None, eps: float, device=None) -> None:
        super().__init__()
        self.eps = eps
        weight = None if size is None else torch.ones(size, device=device)
        self.weight = None if weight is None else nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.float()
        return F.rms_norm(x.float(), x.shape[-1:], weight, self.eps).to(x.dtype)


class Rotary:
    """Angles of positions, cos and sin [..., pairs] float32, computed in float64.

    dim    entries that are rotated, two by two
    pairs  pairs with a frequency above 0; the others stay as they are
    """

    def __init__(self, dim: int, theta: float, pairs: int | None = None) -> None:
        self.dim, self.theta = dim, theta
        self.pairs = dim // 2 if pairs is None else pairs

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        index = torch.arange(self.dim // 2, dtype=torch.float64, device=positions.device)
        frequency = self.theta ** (-2.0 * index / self.dim)
        frequency = torch.where(index < self.pairs, frequency, 0.0)
        angle = positions[..., None].double() * frequency
        return angle.cos().float(), angle.sin().float()


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., H, D]: entry i pairs with entry i + D/2; cos, sin [..., D/2]."""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def rotate_tail(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """x [..., H, D]: of its last 2 * cos.shape[-1] entries, neighbours pair up."""
    dim = 2 * cos.shape[-1]
    if dim == 0:
        return x
    head, tail = x[..., : x.shape[-1] - dim], x[..., x.shape[-1] - dim :]
    a, b = tail.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    sin = -sin if inverse else sin
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([head, turned.to(x.dtype)], -1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    scale: float,
    sink: Tensor | None = None,
) -> Tensor:
    """Softmax attention where all rows of a block see the same keys, in float32.

    query [B, R, H, D], key and value [B, N, G, D], G dividing H; visible bool [B, N]; sink [H]: a
    logit per head that takes weight and has no value. A request without a visible key gets zeros
    if there is a sink, and must not occur without one.
    """
    batch, rows, heads, dim = query.shape
    groups = key.shape[2]
    grouped = query.float().view(batch, rows, groups, heads // groups, dim)
    scores = torch.einsum("brghd,bngd->bghrn", grouped, key.float()) * scale
    scores = scores.masked_fill(~visible[:, None, None, None, :], float("-inf"))
    if sink is not None:
        column = sink.float().view(1, groups, heads // groups, 1, 1)
        scores = torch.cat([scores, column.expand(batch, -1, -1, rows, 1)], -1)
    weights = scores.softmax(-1)[..., : key.shape[1]]
    value = value.float().masked_fill(~visible[:, :, None, None], 0.0)  # 0 * NaN would be NaN
    mixed = torch.einsum("bghrn,bngd->brghd", weights, value)
    return mixed.reshape(batch, rows, heads, dim).to(query.dtype)
