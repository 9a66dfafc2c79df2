"""Fake kernels of the expert layer."""

from ._register import register_fake


@register_fake("grouped_gemm")
def _grouped_gemm(
    x,
    weight,
    scales,
    format,
    block,
    sorted,
    inverse,
    tile_expert,
    tile_row,
    tile_size,
    gather,
    dtype,
):
    return x.new_empty((sorted.shape[0], weight.shape[1]), dtype=dtype)


@register_fake("swiglu")
def _swiglu(gate_up, limit, interleaved):
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
