"""What a call takes beside its arguments and results stays below what docs/api.md states, counted
over every allocation; and does not grow with what it should not grow with."""

import json
import os
import re
import shutil
import subprocess
import sys

import libfuzzer
import pytest

PAGE = libfuzzer.ROOT / "docs/api.md"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))


def stated() -> dict[str, int]:
    """name -> KiB"""
    section = PAGE.read_text().split("## Memory of a call\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (\d+) \|", section, re.MULTILINE)
    return {name: int(limit) for name, limit in rows}


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict[str, int]:
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("malloc") / "counting_malloc.so"
    source = libfuzzer.HERE / "counting_malloc.cpp"
    command = [COMPILER, "-O1", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    script = libfuzzer.HERE / "memory_of_calls.py"
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True,
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_call_stays_below_what_is_stated(measured):
    limits = stated()
    assert sorted(measured) == sorted(limits)
    over = {name: taken for name, taken in measured.items() if taken > limits[name] * 1024}
    assert not over, f"bytes above the limits of docs/api.md: {over}"


def test_what_is_counted_is_real(measured):
    """The rows between the two products of an expert layer: 512 x 2 of 256 floats at least."""
    assert measured["fused_moe"] > 512 * 2 * 256 * 4
    assert all(taken >= 0 for taken in measured.values())
    assert measured["permute"] < 4096
