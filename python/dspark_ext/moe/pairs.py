"""The layout "pairs": weights as vector and matrix units of a CPU are fed.

    [E, ceil(N / 16), words, 16, 4 bytes]
    = [expert, panel of 16 rows, word of 4 bytes of a row, row, byte]

for rows whose K weights are filled up to a multiple of 32 by zeros; and so is their number to a
multiple of 16. A word has two columns of 16 bits, four of fp8 or eight of mxfp4; the words of 16
rows are a vector of 64 bytes without a gap. The tensor keeps the dtype of the weights: the last
dimension has 2 elements of 16 bits, or 4 bytes of codes.

Scales stay as they are.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

DIMS = 4  # of the weights of an expert
ROWS = 16
WORD_BYTES = 4
COLUMNS = 32  # K is filled up to a multiple of these


def weight_shape(rows: int, width: int, element_bytes: int, per_element: int) -> tuple[int, ...]:
    """Of an expert with `width` elements to a row, each `per_element` weights."""
    size = WORD_BYTES // element_bytes
    padded = math.ceil(width * per_element / COLUMNS) * COLUMNS // per_element
    return math.ceil(rows / ROWS), padded // size, ROWS, size


def pack_weight(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Of an expert's [rows, width]; `shape` is its `weight_shape`."""
    panels, words, _, size = shape
    more = (0, words * size - weight.shape[1], 0, panels * ROWS - weight.shape[0])
    padded = F.pad(weight, more) if any(more) else weight.contiguous()
    return padded.view(panels, ROWS, words, size).transpose(1, 2)


def unpack_weight(packed: Tensor, rows: int, width: int) -> Tensor:
    """[rows, width] of an expert, what `pack_weight` was given."""
    panels, words, _, size = packed.shape
    padded = packed.transpose(1, 2).reshape(panels * ROWS, words * size)
    return padded[:rows, :width]


def has_scales_by_row(format: str) -> bool:
    """Whether the scales are packed too, with their rows."""
    return False
