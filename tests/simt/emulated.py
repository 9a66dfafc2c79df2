"""The operators on the SIMT emulator, for tests.

    with emulated.operators(warp_size=64, seed=3):
        out = sampling.rejection_sample(...)  # CPU tensors, the device kernels; moe.route, too
        out = torch.ops.dspark_simt.schedule(...)  # the same of the verify operators

What runs is built on first use from tests/simt/operators: the checks and the allocation of a GPU
call, the launch sequences and kernels as the emulator compiles them, as torch operators in the
namespace dspark_simt.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib

import pytest
import torch
from backends import operators_replaced
from emulator import BOUNDS, COUNTERS, FULL, Emulator, build, find_program

__all__ = ["BOUNDS", "COUNTERS", "FULL", "WARP_SIZES", "counters", "operators"]

OPERATORS = (
    *("target_probs", "sample", "rejection_sample", "block_acceptance"),
    *("schedule", "pack", "unpack", "commit", "accumulate_stats"),
    *("markov_sample", "confidence", "calibrate"),
    *("markov_logits", "row_statistics", "draw_shard"),
    *("plan", "permute", "combine"),
    *("route", "grouped_gemm", "swiglu"),
)
WARP_SIZES = (4, 32, 64)


@functools.cache
def _built() -> pathlib.Path | Exception:
    """The library; or why it does not build, so that one test run tries once."""
    os.environ.setdefault("DSPARK_TORCH_DIR", str(pathlib.Path(torch.__file__).parent))
    try:
        return build(("operators", "tests/simt/operators")) / "libsimt_operators.so"
    except RuntimeError as error:
        return error


@functools.cache
def _library() -> tuple[Emulator, torch.library.Library]:
    """The emulator, and what the operators live as long as."""
    for program in ("cmake", os.environ.get("CXX", "c++")):
        if find_program(program) is None:
            pytest.skip(f"the emulator needs {program}")
    path = _built()
    if isinstance(path, Exception):
        raise path
    schemas = torch.library.Library("dspark_simt", "DEF")
    for name in OPERATORS:
        packet = getattr(torch.ops.dspark_ext, name)
        for overload in packet.overloads():
            schema = str(getattr(packet, overload)._schema)
            schemas.define(schema.removeprefix("dspark_ext::"))
    torch.ops.load_library(str(path))
    return Emulator(path), schemas


@contextlib.contextmanager
def operators(
    warp_size: int = 32, seed: int = 0, level: int = BOUNDS, multiprocessors: int = 2,
    cache: int = 0,
):  # fmt: skip
    """`dspark_ext.sampling` runs the device kernels while this is active.

    Args:
        warp_size: 4, 32 or 64.
        seed: of the order in which threads run; 0 is the plain order.
        level: what is checked and counted, see csrc/backends/simt/emulator.h.
        multiprocessors: that the device has, as grids of kernels that walk items go by them.
        cache: bytes of the cache before device memory; 0: what passes it is not counted.
    """
    emulator, _ = _library()
    emulator.configure(
        level=level, seed=seed, warp_size=warp_size, multiprocessors=multiprocessors, cache=cache
    )
    with operators_replaced(torch.ops.dspark_simt):
        yield


def counters(
    call, warp_size: int = 32, has_scaled_matrix_unit: bool = False, cache: int = 0
) -> dict:
    """What `call()` launched and moved: {"kernels": {name: {...}}, "buffers": {name: {...}}}."""
    emulator, _ = _library()
    with (
        scaled_matrix_units(level=COUNTERS)
        if has_scaled_matrix_unit
        else operators(warp_size=warp_size, level=COUNTERS, cache=cache)
    ):
        emulator.reset_counters()
        call()
        return emulator.counters()


@contextlib.contextmanager
def scaled_matrix_units(**settings):
    """`operators` of a device with warps of 64 that multiplies narrow codes with scales."""
    emulator, _ = _library()
    with operators(warp_size=64, **settings):
        emulator.set_scaled_matrix_unit(True)
        try:
            yield emulator
        finally:
            emulator.set_scaled_matrix_unit(False)


@contextlib.contextmanager
def warpgroups(**settings):
    """`operators` of a device with warps of 32 that has warpgroups."""
    emulator, _ = _library()
    with operators(warp_size=32, **settings):
        emulator.set_warpgroups(True)
        try:
            yield emulator
        finally:
            emulator.set_warpgroups(False)
