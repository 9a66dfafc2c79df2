"""Integers of any width in the one an operator takes: nothing wraps, no fraction is cut off."""

from numbers import Integral

import torch

_LARGEST = 2**31 - 1


def as_int64(op: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """RuntimeError unless it is a tensor of integers."""
    if not isinstance(tensor, torch.Tensor):
        raise RuntimeError(
            f"dspark_ext.{op}: {name}: expected a tensor of integers, got {tensor!r}"
        )
    dtype = tensor.dtype
    if dtype == torch.int64:
        return tensor
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        raise RuntimeError(
            f"dspark_ext.{op}: {name}: expected integers, got {str(dtype).removeprefix('torch.')}"
        )
    return tensor.to(torch.int64)


def as_int32(op: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """As `as_int64`. What int32 cannot hold becomes -1 or its largest number, which are out of
    range where that matters."""
    if tensor.dtype == torch.int32:
        return tensor
    return as_int64(op, name, tensor).clamp(-1, _LARGEST).to(torch.int32)


def clamped(op: str, name: str, value, most: int = _LARGEST) -> int:
    """A number as `as_int32` takes those of a tensor: from -1 to `most`."""
    is_integer = isinstance(value, (int, Integral, torch.SymInt)) and not isinstance(value, bool)
    if not is_integer:
        raise RuntimeError(f"dspark_ext.{op}: {name}: expected an integer, got {value!r}")
    return min(max(value, -1), most)
