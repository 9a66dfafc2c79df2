"""Runs `dspark_ext.sampling` and `moe.route` on a backend of choice with tensors on the CPU.

    with backends.running("simt"):
        out = sampling.rejection_sample(...)

"cpu" is the CPU backend, "simt" the device kernels on the emulator (tests/simt), "cuda" the device
kernels on the GPU that torch calls cuda: inputs are copied there and outputs back.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import sys

import torch

import dspark_ext
from dspark_ext import sampling

# Modules that call their operators through the name _ops.
_CALLERS = (
    sampling,
    *(
        importlib.import_module(f"dspark_ext.moe.{name}")
        for name in ("route", "plan", "dispatch", "gemm")
    ),
)


def gpu_available() -> bool:
    """Whether torch has a GPU and this build serves it."""
    return torch.cuda.is_available() and "sample" in dspark_ext.capabilities("cuda")["operators"]


def gpu_missing() -> str:
    """Why not."""
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    return dspark_ext.capabilities("cuda")["reason"]


def moved(value, device):
    """A tensor on another device with the same strides and offset, so equally (un)aligned."""
    if not torch.is_tensor(value) or value.numel() == 0:
        return value.to(device) if torch.is_tensor(value) else value
    memory = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
    return memory.to(device).as_strided(value.shape, value.stride(), value.storage_offset())


class MovedOperators:
    """torch.ops.dspark_ext for CPU tensors, run on another device."""

    def __init__(self, device, operators=torch.ops.dspark_ext):
        self.device, self.operators = device, operators

    def __getattr__(self, name: str):
        operator = getattr(self.operators, name)

        def call(*arguments):
            result = operator(*(moved(x, self.device) for x in arguments))
            return result.cpu() if torch.is_tensor(result) else tuple(x.cpu() for x in result)

        def out(*arguments, **outputs):
            there = {key: moved(value, self.device) for key, value in outputs.items()}
            operator.out(*(moved(x, self.device) for x in arguments), **there)
            for key, value in outputs.items():
                if torch.is_tensor(value):
                    value.copy_(there[key])

        call.out = out
        return call


@contextlib.contextmanager
def operators_replaced(operators):
    real = [module._ops for module in _CALLERS]
    for module in _CALLERS:
        module._ops = operators
    try:
        yield
    finally:
        for module, own in zip(_CALLERS, real):
            module._ops = own


@contextlib.contextmanager
def running(backend: str):
    if backend == "cpu":
        yield
    elif backend == "simt":
        folder = str(pathlib.Path(__file__).parent / "simt")
        if folder not in sys.path:
            sys.path.insert(0, folder)
        import emulated

        with emulated.operators():
            yield
    else:
        with operators_replaced(MovedOperators(backend)):
            yield
