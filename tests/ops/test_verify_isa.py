"""The same bits on every instruction set this machine has (all families but sampling)."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from isa_digests import FAMILIES, digests

import dspark_ext

SCRIPT = pathlib.Path(__file__).with_name("isa_digests.py")


@pytest.fixture(scope="module")
def here():
    return digests()


@pytest.fixture(scope="module", params=["baseline", "avx2", "avx512"])
def forced(request):
    isa = request.param
    if isa == dspark_ext._C.cpu_isa():
        pytest.skip(f"{isa} is the instruction set of this process, which the others are held to")
    run = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, "DSPARK_CPU_ISA": isa, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    if "this machine supports at most" in run.stderr:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["isa"] == isa
    return result["digests"]


@pytest.mark.parametrize("family", FAMILIES)
def test_forced_instruction_set_gives_the_same_bits(family, here, forced):
    assert forced[family] == here[family]


def test_digests_are_repeatable_and_differ(here):
    """Guards the test above: another run gives the same, other threads too; no two are equal."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert digests() == here
    finally:
        torch.set_num_threads(threads)
    assert len(set(here.values())) == len(here)
