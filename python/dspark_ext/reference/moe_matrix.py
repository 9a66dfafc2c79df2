"""The default path of `moe.grouped_gemm` in float64, step by step as it is defined: the products of
one block of columns are summed, the sum times the scale is added to the running sum, and the
activation takes the sums as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from .moe_gemm import expert_of_rows, swiglu


def product(
    x: Tensor, numbers: Tensor, scales: Tensor | None = None, block: tuple[int, int] | None = None
) -> Tensor:
    """float64 [N] from a row x [K] and an expert's weights.

    numbers [N, K]: what the codes stand for without their scales, or plain weights
    scales [ceil(N / block rows), ceil(K / block columns)]: numbers, one for each block
    """
    x, numbers = x.double(), numbers.double()
    if scales is None:
        return numbers @ x
    total = torch.zeros(len(numbers), dtype=torch.float64)
    block_row = torch.arange(len(numbers)) // block[0]
    for block_column, first in enumerate(range(0, len(x), block[1])):
        columns = slice(first, first + block[1])
        sums = numbers[:, columns] @ x[columns]
        total += sums * scales[block_row, block_column].double()
    return total


def grouped_gemm(
    x: Tensor,
    numbers: Tensor,
    plan,
    gather: bool = True,
    *,
    scales: Tensor | None = None,
    block: tuple[int, int] | None = None,
    activation: str | None = None,
    interleaved: bool = False,
    limit: float | None = None,
) -> Tensor:
    """float64 [capacity, N], with an activation [capacity, N / 2], from x [T, K] (or [capacity, K])
    and numbers [E, N, K] with scales [E, ...] as for `product`."""
    k = plan.inverse.shape[1]
    out = torch.zeros(len(plan.sorted), numbers.shape[1], dtype=torch.float64)
    for row, e in enumerate(expert_of_rows(plan).tolist()):
        if e < 0:
            continue
        source = int(plan.sorted[row]) // k if gather else row
        out[row] = product(x[source], numbers[e], None if scales is None else scales[e], block)
    return out if activation is None else swiglu(out, limit, interleaved)
