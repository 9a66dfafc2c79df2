"""The layout "panels": weights as matrix units of a GPU are fed.

    [E, ceil(N / 64), ceil(bytes of a row / 128), 8, 8, 8, 16 bytes]
    = [expert, panel of 64 rows, step of 128 bytes, octet of rows, chunk of 16 bytes, row of the
       octet, byte]

So a panel step is 8 KiB without a gap, of which 8 rows by 16 bytes are 128 bytes without a gap.
Rows and bytes past the end are zeros. The tensor keeps the dtype of the weights: the last dimension
has 8 elements of 16 bits, or 16 bytes of codes.

Scales of fp8 blocks stay as they are. Those of mxfp4 follow their rows,

    [E, ceil(N / 64), ceil(K / 256), 64, 8] = [expert, panel, step, row, 32 columns each],

a scale past the end being 1.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

DIMS = 6  # of the weights of an expert
ROWS = 64  # of a panel
STEP_BYTES = 128  # of each row
SCALES = 8  # of a row in a step, 32 mxfp4 columns each
ONE = 127  # as E8M0


def weight_shape(rows: int, width: int, element_bytes: int, per_element: int) -> tuple[int, ...]:
    """Of an expert with `width` elements to a row, each `per_element` weights."""
    steps = math.ceil(width * element_bytes / STEP_BYTES)
    return math.ceil(rows / ROWS), steps, 8, 8, 8, 16 // element_bytes


def pack_weight(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Of an expert's [rows, width]; `shape` is its `weight_shape`."""
    panels, steps, *_, size = shape
    padded = _pad(weight, panels * ROWS, steps * 8 * size)
    return padded.view(panels, 8, 8, steps, 8, size).permute(0, 3, 1, 4, 2, 5)


def unpack_weight(packed: Tensor, rows: int, width: int) -> Tensor:
    """[rows, width] of an expert, what `pack_weight` was given."""
    panels, steps, *_, size = packed.shape
    padded = packed.permute(0, 2, 4, 1, 3, 5).reshape(panels * ROWS, steps * 8 * size)
    return padded[:rows, :width]


def has_scales_by_row(format: str) -> bool:
    """Whether the scales are packed too, with their rows."""
    return format == "mxfp4"


def scale_shape(rows: int, width: int) -> tuple[int, ...]:
    """Of the packed scales of an expert with `width` of them to a row."""
    return math.ceil(rows / ROWS), math.ceil(width / SCALES), ROWS, SCALES


def pack_scales(scales: Tensor) -> Tensor:
    """[panels, steps, 64, 8] of an expert's [rows, width], bytes."""
    panels, steps, *_ = scale_shape(*scales.shape)
    padded = _pad(scales, panels * ROWS, steps * SCALES, ONE)
    return padded.view(panels, ROWS, steps, SCALES).transpose(1, 2)


def unpack_scales(packed: Tensor, rows: int, width: int) -> Tensor:
    """What `pack_scales` was given."""
    panels, steps = packed.shape[:2]
    padded = packed.transpose(1, 2).reshape(panels * ROWS, steps * SCALES)
    return padded[:rows, :width]


def _pad(values: Tensor, rows: int, width: int, value: int = 0) -> Tensor:
    more = (0, width - values.shape[1], 0, rows - values.shape[0])
    return F.pad(values, more, value=value) if any(more) else values.contiguous()
