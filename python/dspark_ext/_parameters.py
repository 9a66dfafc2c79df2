"""Parameters of requests or rows: a tensor of one entry each, or a number that stands for all."""

from numbers import Integral, Real

import torch

from ._integers import as_int64

_FLOAT32, _INT64 = torch.float32, torch.int64
_LARGEST = 3.4028234663852886e38  # of float32
_REALS = (int, float, Real, torch.SymInt, torch.SymFloat)
_INTEGERS = (int, Integral, torch.SymInt)


def floats(op: str, name: str, value, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Dense float32, one for each of `rows`, on the device of `like`. RuntimeError unless it is a
    tensor or a number within float32; the shape of a tensor with dimensions is the operator's to
    check."""
    if isinstance(value, torch.Tensor):
        if value.dtype is _FLOAT32 and value.ndim and value.is_contiguous():
            return value  # every call of a serving loop
        if value.dtype != torch.float32:
            if value.dtype.is_complex:
                raise _error(op, name, "numbers", str(value.dtype).removeprefix("torch."))
            value = value.to(torch.float32)
        return _expanded(value, rows, like)
    if not isinstance(value, _REALS) or _LARGEST < abs(value) < torch.inf:
        raise _error(op, name, "a tensor or a number within float32", repr(value))
    return torch.full(rows.shape[:1], value, dtype=torch.float32, device=like.device)


def integers(op: str, name: str, value, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Dense int64, as `floats`; nothing wraps, no fraction is cut off."""
    if isinstance(value, torch.Tensor):
        if value.dtype is _INT64 and value.ndim and value.is_contiguous():
            return value
        return _expanded(as_int64(op, name, value), rows, like)
    is_integer = isinstance(value, _INTEGERS) and not isinstance(value, bool)
    if not is_integer or not -(2**63) <= value < 2**63:
        raise _error(op, name, "a tensor or an integer from -2^63 to 2^63 - 1", repr(value))
    return torch.full(rows.shape[:1], value, dtype=torch.int64, device=like.device)


def _expanded(value: torch.Tensor, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if value.dim() == 0:  # on a CPU it counts as a number, as everywhere in torch
        value = (value.to(like.device) if value.is_cpu else value).expand(rows.shape[:1])
    return value if value.is_contiguous() else value.contiguous()


def _error(op: str, name: str, expected: str, got: str) -> RuntimeError:
    return RuntimeError(f"dspark_ext.{op}: {name}: expected {expected}, got {got}")
