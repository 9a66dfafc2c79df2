"""Matrices of a model, packed for `dspark_ext.linear`."""

from collections.abc import Callable, Sequence

import torch

from ..linear import linear, pack_linear
from .lean import ours

PackedMatrix = Callable[[torch.Tensor], torch.Tensor]


def pack(
    weights: Sequence[torch.Tensor],
    dtype: torch.dtype,
    biases: Sequence[torch.Tensor | None] = (),
    device: torch.device | None = None,
) -> PackedMatrix:
    """One matrix out of several that read the same rows: x [N, in] -> fp32 [N, sum of outs].

    weights  [out, in] each, kept in `dtype`; with torch.bfloat16 the rows are rounded to it too, so
             that the processor's bf16 dot products can be used (sums stay fp32)
    biases   [out] or None each
    device   where to keep it; None = where the weights are

    On a CPU by `dspark_ext.linear`; elsewhere by torch, with results rounded to `dtype`.
    """
    joined = torch.cat([weight.detach().to(device, dtype) for weight in weights])
    out_features = sum(len(weight) for weight in weights)
    bias = None
    if any(each is not None for each in biases):
        bias = torch.cat(
            [
                joined.new_zeros(len(weight)).float()
                if each is None
                else each.detach().float().to(device)
                for weight, each in zip(weights, biases, strict=True)
            ]
        )
    if not ours(joined):
        rounded = None if bias is None else bias.to(dtype)
        return lambda x: torch.nn.functional.linear(x.to(dtype), joined, rounded).float()
    packed = pack_linear(joined)
    return lambda x: linear(x.to(dtype), packed, bias, out_features)
