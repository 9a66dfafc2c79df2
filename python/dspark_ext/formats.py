"""Number formats of weights: 8-bit and 4-bit floats with block scales, as checkpoints store them.

| format | codes | scales |
|---|---|---|
| `"fp8_e4m3"` | OCP e4m3, one per byte | E8M0 or float32, one per block of any size |
| `"fp8_e4m3fnuz"` | e4m3 FNUZ, one per byte | the same |
| `"mxfp4"` | e2m1, two per byte, even column in the low half | E8M0, one per 1x32 |

DeepSeek-V4 is released with fp8_e4m3 in blocks of 128x128, V4.1 of 32x32, the experts of both in
mxfp4; fp8_e4m3fnuz is for hardware that wants it.

A block at the right or lower edge may be partial. A weight is `decoded code * scale` in float32,
rounded once to the dtype asked for. The codecs are csrc/device/formats.h, the same text for the
CPU and for kernels.
"""

import math

import torch
from torch import Tensor

from . import _operators as _ops

FORMATS = ("fp8_e4m3", "fp8_e4m3fnuz", "mxfp4")
CODE_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e4m3fnuz": torch.float8_e4m3fnuz}
LARGEST = {"fp8_e4m3": 448.0, "fp8_e4m3fnuz": 240.0, "mxfp4": 6.0}
DEFAULT_BLOCKS = {"fp8_e4m3": (128, 128), "fp8_e4m3fnuz": (128, 128), "mxfp4": (1, 32)}
_MOST_BLOCK = 1 << 30
SCALE_DTYPES = (torch.float8_e8m0fnu, torch.float32)
_CHUNK = 1 << 18  # numbers that quantize works on at a time
_CODES = {"mxfp4": "fp4_e2m1"}  # name of the codes of a weight format, where it differs

# Dtypes of codes and scales besides uint8; others of one byte hold other numbers.
_CODE_DTYPES = {
    "fp8_e4m3": (torch.float8_e4m3fn,),
    "fp8_e4m3fnuz": (torch.float8_e4m3fnuz,),
    "fp4_e2m1": (torch.int8, torch.float4_e2m1fn_x2),
    "mxfp4": (torch.int8, torch.float4_e2m1fn_x2),
    "e8m0": (torch.float8_e8m0fnu,),
    "scale": (torch.float8_e8m0fnu, torch.float32),
}


def decode(codes: Tensor, format: str) -> Tensor:
    """Numbers of codes, exactly.

    Args:
        codes: `[..., n]` uint8, or the torch dtype of the format (float8_e4m3fn, float8_e4m3fnuz,
            float8_e8m0fnu; int8 or float4_e2m1fn_x2). For "fp4_e2m1" a byte holds two, the even one
            in its low half.
        format: "fp8_e4m3", "fp8_e4m3fnuz", "fp4_e2m1" or "e8m0".

    Returns:
        `[..., n]` float32 (`[..., 2n]` for fp4). Codes without a number give NaN.

    Raises:
        RuntimeError: wrong dtype, unknown format, a tensor that is not on the CPU.
    """
    return _ops.decode(code_bytes("decode", "codes", codes, format), format)


def encode(values: Tensor, format: str) -> Tensor:
    """Codes nearest to numbers, ties to the even code.

    Numbers beyond the largest one and infinities become the largest one, with their sign. NaN
    becomes NaN; in fp4, which has none, +6. A negative number that rounds to zero keeps its sign
    except in FNUZ, which has no -0.

    Args:
        values: `[..., n]` float32; n even for fp4.
        format: "fp8_e4m3", "fp8_e4m3fnuz" or "fp4_e2m1".

    Returns:
        `[..., n]` uint8 (`[..., n / 2]` for fp4).

    Raises:
        RuntimeError: wrong dtype, unknown format, odd n for fp4, a tensor that is not on the CPU.
    """
    return _ops.encode(values, format)


def dequantize(
    weight: Tensor,
    scale: Tensor,
    format: str,
    *,
    block: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Weights from codes and block scales.

    Args:
        weight: `[..., rows, columns]` codes: the torch dtype of the format or uint8; for "mxfp4"
            `[..., rows, columns / 2]` uint8, int8 or float4_e2m1fn_x2.
        scale: `[..., ceil(rows / block rows), ceil(columns / block columns)]` float8_e8m0fnu (or
            its bytes as uint8) or float32.
        format: one of `FORMATS`.
        block: (rows, columns) that share a scale; None for the format's usual size, (128, 128) or
            (1, 32).
        dtype: float32, bfloat16 or float16, of the result.

    Returns:
        `[..., rows, columns]`: the float32 product of code and scale, rounded once to `dtype`. NaN
        where the code or the scale is NaN.

    Raises:
        RuntimeError: a shape, dtype or the format does not fit; the message names the argument.
    """
    block = DEFAULT_BLOCKS.get(format, (0, 0)) if block is None else block
    scale = code_bytes("dequantize", "scale", scale, "scale")
    codes = code_bytes("dequantize", "weight", weight, format)
    if weight.device.type in ("cpu", "meta"):
        return _ops.dequantize(codes, scale, format, list(block), dtype)
    return _dequantize_elsewhere(codes, scale, format, block, dtype)


def quantize(
    weight: Tensor,
    format: str,
    *,
    block: tuple[int, int] | None = None,
    scale_dtype: torch.dtype = torch.float8_e8m0fnu,
) -> tuple[Tensor, Tensor]:
    """Codes and block scales of weights.

    A block's scale maps its largest magnitude into the range of the codes: for E8M0 the smallest
    power of two that does, so that nothing saturates (within 2^-127 .. 2^127); for float32 the
    quotient of the two. A block of zeros has the scale 1.

    Args:
        weight: `[..., rows, columns]` float32, bfloat16 or float16, finite, on the CPU; columns
            even for "mxfp4".
        format: one of `FORMATS`.
        block: (rows, columns) that share a scale; None for the format's usual size, (128, 128) or
            (1, 32).
        scale_dtype: torch.float8_e8m0fnu, or torch.float32 (not for "mxfp4").

    Returns:
        (codes, scale): `[..., rows, columns]` in the torch dtype of the format, for "mxfp4"
        `[..., rows, columns / 2]` uint8; and `[..., ceil(rows / block rows), ceil(columns / block
        columns)]` in `scale_dtype`. `dequantize` with the same format and block is the way back.

    Raises:
        ValueError: unknown format or block, a scale dtype that the format does not have, a weight
            whose shape, dtype or device does not fit or that is not finite.
    """
    block = check_format(format, block, scale_dtype)
    _check_weight(weight)
    if weight.dim() < 2 or (format == "mxfp4" and weight.shape[-1] % 2):
        wanted = "[..., rows, even columns]" if format == "mxfp4" else "[..., rows, columns]"
        raise ValueError(
            f"dspark_ext.quantize: weight: expected shape {wanted}, got {list(weight.shape)}"
        )
    # A block may be larger than the weight; padding to its whole size would take the memory.
    rows, columns = weight.shape[-2:]
    block = tuple(min(b, max(size, 1)) for b, size in zip(block, (rows, columns), strict=True))
    matrices = math.prod(weight.shape[:-2])
    weights = weight.detach().reshape(matrices, rows, columns)
    width = columns // 2 if format == "mxfp4" else columns
    codes = torch.empty(matrices, rows, width, dtype=torch.uint8, device=weight.device)
    scale = codes.new_empty(scale_shape((matrices, rows, columns), block), dtype=scale_dtype)
    for some, part in _chunks((matrices, rows, columns), block[0]):
        blocks = slice(part.start // block[0], -(-part.stop // block[0]))
        codes[some, part], scale[some, blocks] = _quantize_chunk(
            weights[some, part].float(), format, block, scale_dtype
        )
    codes = codes.view(*weight.shape[:-1], width).view(CODE_DTYPES.get(format, torch.uint8))
    return codes, scale.view(scale_shape(weight.shape, block))


def check_format(
    format: str, block: tuple[int, int] | None, scale_dtype: torch.dtype
) -> tuple[int, int]:
    """The block size in force, or a ValueError that says what does not fit."""
    name = "dspark_ext.formats"
    if format not in FORMATS:
        raise ValueError(f"{name}: format: expected one of {', '.join(FORMATS)}, got {format!r}")
    if scale_dtype not in SCALE_DTYPES or (format == "mxfp4" and scale_dtype == torch.float32):
        wanted = "torch.float8_e8m0fnu" + ("" if format == "mxfp4" else " or torch.float32")
        raise ValueError(f"{name}: scale_dtype: expected {wanted} for {format}, got {scale_dtype}")
    block = DEFAULT_BLOCKS[format] if block is None else tuple(block)
    if (
        len(block) != 2
        or min(block) < 1
        or max(block) > _MOST_BLOCK
        or (format == "mxfp4" and block[1] % 2)
    ):
        raise ValueError(
            f"{name}: block: expected (rows, columns) from 1 to 2^30, even columns for mxfp4, "
            f"got {block}"
        )
    return block


def scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Shape of the scales of weights [..., rows, columns]; a partial block counts as one."""
    return (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))


def as_bytes(codes: Tensor) -> Tensor:
    """The same codes as uint8, whatever one-byte dtype they come in; others stay as they are."""
    return codes.view(torch.uint8) if codes.dtype.itemsize == 1 else codes


def code_bytes(op: str, name: str, codes: Tensor, format: str) -> Tensor:
    """`as_bytes` of codes in a dtype of the format; an unknown format is left to the operator."""
    if codes.dtype == torch.uint8:
        return codes
    allowed = (torch.uint8, *_CODE_DTYPES.get(format, (codes.dtype,)))
    if codes.dtype not in allowed:
        names = " or ".join(_dtype_name(dtype) for dtype in allowed)
        raise RuntimeError(
            f"dspark_ext.{op}: {name}: expected dtype {names}, got {_dtype_name(codes.dtype)}"
        )
    return as_bytes(codes)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_weight(weight: Tensor) -> None:
    if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(
            "dspark_ext.quantize: weight: expected dtype float32, bfloat16 or float16, got "
            f"{_dtype_name(weight.dtype)}"
        )
    if weight.device.type != "cpu":
        raise ValueError(
            f"dspark_ext.quantize: weight: expected a tensor on the CPU, got {weight.device}"
        )


def _chunks(shape: tuple[int, int, int], block_rows: int):
    """Slices of matrices and of whole blocks of their rows, small enough for what is made of them
    to stay in the cache."""
    matrices, rows, columns = shape
    num_matrices = max(1, _CHUNK // max(1, rows * columns))
    num_rows = block_rows * max(1, _CHUNK // max(1, block_rows * columns))
    for matrix in range(0, matrices, num_matrices):
        for row in range(0, rows, num_rows):
            yield slice(matrix, matrix + num_matrices), slice(row, min(row + num_rows, rows))


def _quantize_chunk(
    values: Tensor, format: str, block: tuple[int, int], scale_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Codes (bytes) and scales of float32 values [..., rows, columns]."""
    whole = _whole_blocks(values, block)
    maxima = whole.abs().amax(-3).amax(-1)
    if not bool(maxima.isfinite().all()):
        raise ValueError(
            "dspark_ext.quantize: weight: expected finite numbers, found NaN or infinity"
        )
    scale = _block_scales(maxima, LARGEST[format], scale_dtype)
    quotients = whole / scale.float()[..., :, None, :, None]
    rows, columns = values.shape[-2:]
    quotients = quotients.flatten(-2).flatten(-3, -2)[..., :rows, :columns]
    return encode(quotients, _CODES.get(format, format)), scale


def _whole_blocks(values: Tensor, block: tuple[int, int]) -> Tensor:
    """[..., r, block rows, c, block columns], with zeros past the edge."""
    rows, columns = values.shape[-2:]
    padding = (0, -columns % block[1], 0, -rows % block[0])
    if any(padding):
        values = torch.nn.functional.pad(values, padding)
    return values.unflatten(-1, (-1, block[1])).unflatten(-3, (-1, block[0]))


def _block_scales(maxima: Tensor, largest: float, scale_dtype: torch.dtype) -> Tensor:
    if scale_dtype == torch.float32:
        quotient = (maxima / largest).clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where(maxima > 0, quotient, 1.0)
    mantissa, exponent = torch.frexp(maxima)  # maxima = mantissa * 2^exponent, mantissa in [1/2, 1)
    top_mantissa, top_exponent = math.frexp(largest)
    exponent = exponent - top_exponent + (mantissa > top_mantissa).int()
    exponent = torch.where(maxima > 0, exponent.clamp(-127, 127), 0)
    return (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def _spread(scale: Tensor, block: tuple[int, int], shape: tuple[int, ...]) -> Tensor:
    """Scales [..., r, c] repeated over their blocks, cut to [..., rows, columns]."""
    wide = scale.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return wide[..., : shape[-2], : shape[-1]]


def _dequantize_elsewhere(codes, scale, format, block, dtype):
    """`dequantize` in torch's own operations, for devices that the compiled one does not serve."""
    if format not in FORMATS:
        raise RuntimeError(
            f"dspark_ext.dequantize: format: expected one of {', '.join(FORMATS)}, got {format}"
        )
    if format == "mxfp4":
        each = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).int()
        exponent, mantissa = (each >> 1) & 3, each & 1
        normal = ((exponent + 126) << 23) | (mantissa << 22)
        magnitude = torch.where(exponent == 0, mantissa * 0.5, normal.view(torch.float32))
        numbers = torch.where(each >= 8, -magnitude, magnitude)
    else:
        numbers = codes.view(CODE_DTYPES[format]).float()
    if scale.dtype != torch.float32:
        scale = scale.view(torch.float8_e8m0fnu).float()
    expected = scale_shape(numbers.shape, block)
    if tuple(scale.shape) != expected:
        raise RuntimeError(
            f"dspark_ext.dequantize: scale: expected shape {list(expected)}, one for each block, "
            f"got {list(scale.shape)}"
        )
    return (numbers * _spread(scale, block, numbers.shape)).to(dtype)
