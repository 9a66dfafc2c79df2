"""Matrices of a model, packed for `dspark_ext.linear`."""

from collections.abc import Callable, Sequence

import torch

from ..linear import linear, pack_linear

PackedMatrix = Callable[[torch.Tensor], torch.Tensor]


def pack(
    weights: Sequence[torch.Tensor],
    dtype: torch.dtype,
    biases: Sequence[torch.Tensor | None] = (),
) -> PackedMatrix:
    """One matrix out of several that read the same rows: x [N, in] -> fp32 [N, sum of outs].

    weights  [out, in] each, kept in `dtype`; with torch.bfloat16 the rows are rounded to it too, so
             that the processor's bf16 dot products can be used (sums stay fp32)
    biases   [out] or None each
    """
    packed = pack_linear(torch.cat([weight.detach().to(dtype) for weight in weights]))
    out_features = sum(len(weight) for weight in weights)
    bias = None
    if any(each is not None for each in biases):
        bias = torch.cat(
            [
                torch.zeros(len(weight)) if each is None else each.detach().float()
                for weight, each in zip(weights, biases, strict=True)
            ]
        )
    return lambda x: linear(x.to(dtype), packed, bias, out_features)
