"""Moving rows to the order of experts, and back."""

import torch

from .. import _operators as _ops
from .plan import DispatchPlan


def permute(x: torch.Tensor, plan: DispatchPlan) -> torch.Tensor:
    """Copies the row of each token to the rows of its slots.

    A GEMM that can read through an index need not have the copy: row r of the result is row
    `plan.sorted[r] // k` of x (docs/moe.md).

    Args:
        x: [T, d] of any dtype (bfloat16, float32, fp8 codes, ...); rows may have any stride.
        plan: for T tokens.

    Returns:
        [capacity, d], dtype of x. Padding rows, and all rows from plan.total on, are 0.

    Raises RuntimeError for shapes, dtypes and devices.
    """
    return _ops.permute(x, plan.sorted, plan.inverse)


def combine(
    y: torch.Tensor,
    plan: DispatchPlan,
    weights: torch.Tensor,
    *,
    shared: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Adds up the rows of the slots of each token, weighted.

    out[t] = round(sum over j of weights[t, j] * y[plan.inverse[t, j]] + shared[t] + residual[t]).
    The sum starts from 0 and takes the slots that are here in order, each by one fused
    multiply-add in float32; `shared` and `residual` are added last, in this order, and the result
    is rounded once. A slot that is not here adds nothing, whatever its weight; a token without any
    gives exactly 0. The weights are used exactly as given. Same bits on every backend, run to run,
    and whatever the other tokens are.

    Args:
        y: float32, bfloat16 or float16 [rows, d], rows in the order of the plan, at least
            plan.total of them; any row stride.
        plan: of which `inverse` int64 [T, k] is read.
        weights: float32, bfloat16 or float16 [T, k], any strides.
        shared: [T, d], dtype of y; what the shared experts give.
        residual: [T, d], dtype of y.

    Returns:
        [T, d], dtype of y.

    Raises RuntimeError for shapes, dtypes and devices and, on a CPU, for a row of the plan that y
    does not have; on a GPU such a slot adds nothing.
    """
    return _ops.combine(y, plan.inverse, weights, shared, residual)
