"""Host values to a device, and which device is the current one."""

import contextlib

import torch


def upload(
    values, dtype: torch.dtype | None, device: torch.device | str | None = None
) -> torch.Tensor:
    """A tensor of numbers in (nested) lists, on `device`. The host does not wait for a GPU: torch
    keeps the page-locked memory until the copy is over. A replayed graph would read that memory
    when it is something else's: in a capture it is a copy that waits, which the capture refuses."""
    device = torch.device("cpu" if device is None else device)
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return torch.tensor(values, dtype=dtype, device=device)
    pinned = torch.tensor(values, dtype=dtype, device="cpu", pin_memory=True)
    return pinned.to(device, non_blocking=True)


def current(device: torch.device | str):
    """A context in which `device` is the current GPU; for another kind of device it does nothing.

    Operators find the device by their tensors. Graphs, streams and compilers of kernels go by the
    current one, which is a thread's own and at first GPU 0.
    """
    device = torch.device(device)
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
