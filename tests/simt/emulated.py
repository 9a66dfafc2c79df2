"""The sampling operators on the SIMT emulator, for tests.

    with emulated.operators(warp_size=64, seed=3):
        out = sampling.rejection_sample(...)  # CPU tensors, the device kernels

The library is built on first use, in build/simt_operators: op.cpp's checks and allocation, the
kernels as the emulator compiles them, torch operators in the namespace dspark_simt.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import pathlib
import shutil
import subprocess

import pytest
import torch

from dspark_ext import sampling

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests/simt/operators"
BUILD = ROOT / "build/simt_operators"
OPERATORS = ("target_probs", "sample", "rejection_sample", "block_acceptance")
WARP_SIZES = (4, 32, 64)
BOUNDS, COUNTERS, FULL = 0, 1, 2  # Level of csrc/backends/simt/emulator.h


def _build() -> pathlib.Path:
    for tool in ("cmake", "ninja", os.environ.get("CXX", "c++")):
        if shutil.which(tool) is None:
            pytest.skip(f"the emulator needs {tool} on PATH")
    log = BUILD.with_suffix(".log")
    BUILD.mkdir(parents=True, exist_ok=True)
    torch_dir = pathlib.Path(torch.__file__).parent
    commands = (
        ["cmake", "-G", "Ninja", "-S", SOURCE, "-B", BUILD, f"-DDSPARK_TORCH_DIR={torch_dir}"],
        ["ninja", "-C", BUILD],
    )
    with log.open("w") as file:
        for command in commands:
            if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode != 0:
                pytest.fail(f"the emulator does not build:\n{log.read_text()[-4000:]}")
    return BUILD / "libsimt_operators.so"


@functools.cache
def library() -> ctypes.CDLL:
    """Builds and loads it; torch.ops.dspark_simt is there afterwards."""
    path = _build()
    global _schemas  # the operators live as long as this object
    _schemas = torch.library.Library("dspark_simt", "DEF")
    for name in OPERATORS:
        packet = getattr(torch.ops.dspark_ext, name)
        for overload in packet.overloads():
            schema = str(getattr(packet, overload)._schema)
            _schemas.define(schema.removeprefix("dspark_ext::"))
    torch.ops.load_library(str(path))
    emulator = ctypes.CDLL(str(path))
    emulator.dspark_simt_counters_json.restype = ctypes.c_char_p
    emulator.dspark_simt_last_report.restype = ctypes.c_char_p
    emulator.dspark_simt_set_seed.argtypes = [ctypes.c_uint64]
    emulator.dspark_simt_set_poison.argtypes = [ctypes.c_uint32]
    return emulator


@contextlib.contextmanager
def operators(warp_size: int = 32, seed: int = 0, level: int = BOUNDS):
    """`dspark_ext.sampling` runs the device kernels while this is active.

    Args:
        warp_size: 4, 32 or 64.
        seed: of the order in which threads run; 0 is the plain order.
        level: what is checked and counted, see csrc/backends/simt/emulator.h.
    """
    emulator = library()
    emulator.dspark_simt_set_warp_size(warp_size)
    emulator.dspark_simt_set_seed(seed)
    emulator.dspark_simt_set_level(level)
    real = sampling._ops
    sampling._ops = torch.ops.dspark_simt
    try:
        yield
    finally:
        sampling._ops = real


def counters(call, **settings) -> dict:
    """What `call()` launched and moved: {"kernels": {name: {...}}, "buffers": {name: {...}}}."""
    with operators(level=COUNTERS, **settings):
        library().dspark_simt_reset_counters()
        call()
    return json.loads(library().dspark_simt_counters_json())
