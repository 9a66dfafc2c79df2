"""Integers of any width in the one an operator takes: nothing wraps, no fraction is cut off."""

import torch


def as_int64(op: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """RuntimeError unless the tensor holds integers."""
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
    return as_int64(op, name, tensor).clamp(-1, 2**31 - 1).to(torch.int32)
