"""The products of an expert layer: every row with the weights of its expert."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _operators as _ops
from ..formats import CODE_DTYPES, DEFAULT_BLOCKS, as_bytes, code_bytes
from .plan import DispatchPlan

_FORMAT_OF = {dtype: format for format, dtype in CODE_DTYPES.items()}
if hasattr(torch, "float4_e2m1fn_x2"):
    _FORMAT_OF[torch.float4_e2m1fn_x2] = "mxfp4"


def grouped_gemm(
    x: Tensor,
    weight: Tensor,
    plan: DispatchPlan,
    *,
    scales: Tensor | None = None,
    format: str | None = None,
    block: tuple[int, int] | None = None,
    layout: str = "rows",
    size: tuple[int, int] | None = None,
    gather: bool = True,
    dtype: torch.dtype | None = None,
    activation: str | None = None,
    interleaved: bool = False,
    limit: float | None = None,
    exact: bool = False,
) -> Tensor:
    """out[r] = weight[e] @ x[row of r] for every row r of the plan, e its expert.

    Sums are float32, rounded once to `dtype`, with an activation after it. A row has the same bits
    run to run, and whatever the other rows, the tiles and the threads are. With `exact` they are
    those of every backend, too: one order that depends on K alone (docs/numerics.md, section 13),
    and codes count as `float32(code) * scale`, rounded to float32, as `formats.dequantize` gives
    them. Without, a device may take its matrix units where x and the weights are of 16 bits, or the
    weights are codes; scales then multiply the sums of their blocks.

    Args:
        x: float32, bfloat16 or float16. With `gather` [T, K], the rows of the tokens: row r reads
            `x[plan.sorted[r] // k]`, nothing is copied. Without, [capacity, K], rows in the order
            of the plan, as `permute` or another `grouped_gemm` returns them. Rows of any stride.
        weight: [E, N, K] contiguous: float32, bfloat16 or float16, whatever x is; or codes, fp8
            [E, N, K] (float8_e4m3fn, float8_e4m3fnuz or uint8) or mxfp4 [E, N, K / 2]
            (uint8, int8 or float4_e2m1fn_x2, the even column in the low half). K and N are no
            multiple of anything; only rows of a multiple of 16 bytes are read 16 bytes at a time.
            E may be 0, for a plan without slots.
        plan: of `moe.plan(..., tile_rows=n)`. Each expert's weights are read once for n rows.
        scales: of codes, [E, ceil(N / block rows), ceil(K / block columns)] float8_e8m0fnu (or its
            bytes as uint8) or float32, contiguous.
        format: of codes, one of `formats.FORMATS`; not needed where the dtype tells it.
        block: (rows, columns) of weights that share a scale, of any size; default (128, 128), for
            mxfp4 (1, 32). Those at the edges may be partial.
        layout: "rows" as above, or that of `prepare_weights`: "panels" for GPUs, "pairs" for CPUs.
        size: (N, K) of prepared weights.
        gather: whether x is in the order of tokens.
        dtype: float32, bfloat16 or float16, of the result; default that of x.
        activation: "swiglu": the rows of weight[e] are N / 2 gates, then N / 2 ups, and `swiglu` of
            their products, in float32, is what is rounded.
        interleaved: row 2i is gate i, row 2i + 1 up i.
        limit: of the activation, as for `swiglu`.
        exact: sums in the stated order.

    Returns:
        [capacity, N], with an activation [capacity, N / 2]. Rows that hold no slot, padding and
        those past the end, are 0.

    Raises:
        RuntimeError: a shape, dtype, device, layout or the format does not fit, or two arguments
            exclude each other; on a CPU also a tile that the plan cannot have, which a GPU leaves
            out. The message names the argument.
        ValueError: `interleaved` without an activation, or an activation that is not known.
    """
    if format is None:
        format = _FORMAT_OF.get(weight.dtype, "")
    return _ops.grouped_gemm(
        x,
        code_bytes("grouped_gemm", "weight", weight, format) if format else as_bytes(weight),
        None if scales is None else code_bytes("grouped_gemm", "scales", scales, "scale"),
        format,
        list(DEFAULT_BLOCKS.get(format, (0, 0)) if block is None else block),
        layout,
        [] if size is None else list(size),
        plan.sorted,
        plan.inverse,
        plan.tile_expert,
        plan.tile_row,
        plan.tile_size,
        gather,
        x.dtype if dtype is None else dtype,
        exact,
        _activation_name(activation, interleaved),
        limit,
    )


def _activation_name(activation: str | None, interleaved: bool) -> str:
    if activation not in (None, "swiglu"):
        raise ValueError(
            f"dspark_ext.grouped_gemm: activation: expected 'swiglu' or None, got {activation!r}"
        )
    if activation is None and interleaved:
        raise ValueError("dspark_ext.grouped_gemm: interleaved: expected an activation with it")
    return "" if activation is None else "swiglu_interleaved" if interleaved else "swiglu"


def swiglu(gate_up: Tensor, limit: float | None = None, *, interleaved: bool = False) -> Tensor:
    """silu(min(gate, limit)) * min(max(up, -limit), limit).

    silu(z) = z / (1 + e^-z). Computed in float32 by the package's own exponential, with the same
    bits on every backend, and rounded once.

    Args:
        gate_up: float32, bfloat16 or float16 [rows, 2N]: N gates, then N ups. Rows of any stride.
        limit: above 0; None: nothing is clamped.
        interleaved: gates are the even columns, ups the odd ones.

    Returns:
        [rows, N], dtype of gate_up. NaN stays NaN.

    Raises RuntimeError for shapes, dtypes and limits that do not fit.

    Source: DeepSeek-V4 (clamped SwiGLU, limit 10).
    """
    return _ops.swiglu(gate_up, limit, interleaved)
