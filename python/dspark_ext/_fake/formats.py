"""Fake kernels of the formats family."""

import torch

from ._register import register_fake


def _last(shape, size):
    return (*shape[:-1], size)


@register_fake("decode")
def _(codes, format):
    width = codes.shape[-1] * (2 if format == "fp4_e2m1" else 1)
    return codes.new_empty(_last(codes.shape, width), dtype=torch.float32)


@register_fake("encode")
def _(values, format):
    width = values.shape[-1] // (2 if format == "fp4_e2m1" else 1)
    return values.new_empty(_last(values.shape, width), dtype=torch.uint8)


@register_fake("dequantize")
def _(weight, scale, format, block, dtype):
    width = weight.shape[-1] * (2 if format == "mxfp4" else 1)
    return weight.new_empty(_last(weight.shape, width), dtype=dtype)
