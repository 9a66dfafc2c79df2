"""The bias product by the tile registers of AMX, where there are some and in emulation."""

import json
import os
import pathlib
import subprocess
import sys

import draft_units
import pytest

TILES = ("amx", "amx_emulated")


@pytest.fixture(scope="module", params=[*TILES, "avx512_bf16", "avx2", "baseline"])
def forced(request):
    done = subprocess.run(
        [sys.executable, str(pathlib.Path(draft_units.__file__))],
        env={
            **os.environ,
            "DSPARK_CPU_ISA": request.param,
            "PYTHONPATH": ":".join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
    )
    if "this machine supports at most" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_near_float64(forced):
    assert forced["vanilla"] <= 1


def test_other_heads_are_near_their_exact_path(forced):
    assert forced["heads"] <= 1


def test_tiles_take_bfloat16_rows_and_no_others(forced):
    has_tiles = forced["unit"] in TILES
    assert forced["differs"] == {
        "torch.float32": False,
        "torch.bfloat16": has_tiles,
        "torch.float16": False,
    }


def test_a_request_does_not_depend_on_the_batch(forced):
    assert forced["independent"] == [True, True, True]


def test_an_infinity_stays_in_its_column(forced):
    assert not forced["spreads"]
