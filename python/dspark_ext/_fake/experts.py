"""Fake kernels of the expert layer."""

from ._register import register_fake


@register_fake("grouped_gemm")
def _grouped_gemm(
    x,
    weight,
    scales,
    format,
    block,
    layout,
    size,
    sorted,
    inverse,
    tile_expert,
    tile_row,
    tile_size,
    gather,
    dtype,
    exact,
    activation,
    limit,
):
    rows = size[0] if size else weight.shape[1]
    columns = rows // 2 if activation else rows
    return x.new_empty((sorted.shape[0], columns), dtype=dtype)


@register_fake("swiglu")
def _swiglu(gate_up, limit, interleaved):
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
