"""Sizes past 2^32 without their memory, and guard words, in a program of the CPU kernels alone."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPILER = shutil.which(os.environ.get("CXX", "c++"))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("sanitize", ["undefined", "address,undefined"])
def test_br033_br037_guards_and_far_rows(tmp_path, sanitize):
    program = tmp_path / "moe_index"
    sources = [ROOT / "tests/ops/moe_index.cpp", ROOT / "csrc/ops/moe/cpu.cpp"]
    subprocess.run(
        [
            *(COMPILER, "-std=c++17", "-O1", "-g", "-ffp-contract=off", "-Wall", "-Wextra"),
            *(f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-DDSPARK_ISA=baseline"),
            *(f"-I{ROOT / 'csrc'}", *sources, "-o", program),
        ],
        check=True,
    )
    done = subprocess.run([program], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "failures: 0\n"
