"""Named ranges in profiles: which operator and which phase of the engine a stretch of time is.

    DSPARK_RANGES=1 nsys profile ...        or  dspark_ext.ranges.enable()

    with ranges.range("my phase"):          and own ranges beside the package's
        ...

Each range is shown by what is looking: torch's profiler (as `record_function`), Nsight Systems and
Nsight Compute (NVTX) and rocprof (ROCTX); the last two where torch has a GPU. The names are
`dspark_ext::<operator>`, those of torch.ops, and `dspark.<phase>`; docs/profiling.md lists them and
has the command lines.

Off, which is the default, a range is one object that does nothing and operators are called without
a wrapper. Inside torch.compile a range is nothing at all, so that it breaks no graph.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import torch

from . import _operators

__all__ = ["disable", "enable", "enabled", "range", "ranged"]

_enabled = False


class _Nothing:
    """The range that nobody asked for. A new one each time, which torch.compile can follow."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error) -> None:
        pass


class _Range:
    """A range for all profilers: `record_function` for torch's, NVTX or ROCTX for a GPU's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._marked = _marks_itself()
        if self._marked:
            torch.cuda.nvtx.range_push(self._name)
        self._record = torch.profiler.record_function(self._name)
        self._record.__enter__()

    def __exit__(self, *error) -> None:
        self._record.__exit__(*error)
        if self._marked:
            torch.cuda.nvtx.range_pop()


def _marks_itself() -> bool:
    """Whether NVTX ranges have to be made here: there is a GPU, and `emit_nvtx`, which makes one of
    every `record_function` and every operator, is not active."""
    return _has_gpu() and not _emits_nvtx()


def _has_gpu() -> bool:
    return torch.cuda.is_available()


def _emits_nvtx() -> bool:
    state = torch._C._autograd
    return state._profiler_type() == torch._C._profiler.ActiveProfilerType.NVTX


def range(name: str) -> _Range | _Nothing:
    """A context manager that marks what happens in it; nothing while ranges are off."""
    if not _enabled or torch.compiler.is_compiling():
        return _Nothing()
    return _Range(name)


def ranged(name: str) -> Callable:
    """Decorator: every call of the function is a range."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def call(*args, **kwargs):
            if not _enabled:
                return function(*args, **kwargs)
            with range(name):
                return function(*args, **kwargs)

        return call

    return decorate


def enabled() -> bool:
    return _enabled


def enable() -> None:
    """Mark phases and operators from now on, in all threads.

    torch's profiler shows every operator by itself, and so does `torch.autograd.profiler.emit_nvtx`
    for Nsight. Only for a GPU's profiler without the latter are operators marked here.
    """
    global _enabled
    _enabled = True
    if _has_gpu():
        _operators.wrap(_marked)


def disable() -> None:
    """Ranges off, operators without a wrapper."""
    global _enabled
    _enabled = False
    _operators.unwrap()


def _marked(name: str, operator: Callable) -> Callable:
    """`operator` as an NVTX range of torch's name for it."""

    def call(*args, **kwargs):
        if torch.compiler.is_compiling() or _emits_nvtx():
            return operator(*args, **kwargs)
        torch.cuda.nvtx.range_push(f"dspark_ext::{name}")
        try:
            return operator(*args, **kwargs)
        finally:
            torch.cuda.nvtx.range_pop()

    return call


def _asked_for(value: str | None) -> bool:
    return value not in (None, "", "0")


if _asked_for(os.environ.get("DSPARK_RANGES")):
    enable()
