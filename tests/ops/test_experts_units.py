"""Expert products of 16-bit numbers on every pair unit of the CPU: the machine's own, those that
DSPARK_CPU_ISA forces, and AMX in emulation."""

import json
import os
import pathlib
import subprocess
import sys

import expert_sweep as sweep
import pair_units
import pytest
import torch
from kit import bits_equal

from dspark_ext import _C, moe

SCRIPT = pathlib.Path(pair_units.__file__)
UNITS = {
    "baseline": "fma",
    "avx2": "fma",
    "avx512": "fma",
    "avx512_bf16": "avx512_bf16",
    "amx": "amx",
    "amx_emulated": "amx_emulated",
}
HAS_TILES = ("amx", "amx_emulated")
# Relative L2 of float32 sums: chains of up to 1000 products, each rounded; half the digits of
# their scales, times the spread of the rows.
BOUND = 2e-6


def run(isa: str, code: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *code],
        env={**os.environ, "DSPARK_CPU_ISA": isa, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    if "this machine supports at most" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=UNITS)
def forced(request):
    found = json.loads(run(request.param, [str(SCRIPT)]))
    assert found["unit"] == UNITS[request.param]
    return found


@pytest.fixture(scope="module")
def here():
    return pair_units.results()


def test_every_layout_gives_the_same_bits_near_float64(forced):
    assert forced["results"]
    for name, (rows, pairs, error) in forced["results"].items():
        assert rows == pairs, name
        assert error < BOUND, name


def test_units_but_tiles_give_the_same_bits(forced, here):
    """Tiles have an order of their own, of bf16 rows only."""
    if _C.cpu_pair_unit() in HAS_TILES:
        pytest.skip("this process multiplies by tiles; the forced ones are not held to it")
    same = {name: forced["results"][name][0] == here[name][0] for name in here}
    if forced["unit"] not in HAS_TILES:
        assert all(same.values())
    else:
        assert all(same[name] for name in here if "bfloat16" not in name)
        assert not all(same.values())


# ---- the stated sums ----------------------------------------------------------------------------


def chain(x, weight, order) -> torch.Tensor:
    """[N]: acc = fma(x[k], weight[:, k], acc) for k in order; float64 holds product and sum."""
    total = torch.zeros(len(weight))
    for k in order:
        total = (weight[:, k].double() * x[k].double() + total.double()).float()
    return total


def in_pairs(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return chain(x, weight, [k ^ 1 for k in range(len(x))])


def in_tiles(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(len(weight))
    for first in range(0, len(x), 32):
        even = chain(x, weight, range(first, first + 32, 2))
        odd = chain(x, weight, range(first + 1, first + 32, 2))
        total = total + (even + odd)
    return total


STATED = {"fma": in_pairs, "avx512_bf16": in_pairs, "amx": in_tiles, "amx_emulated": in_tiles}


def check_stated_sums(kind: str) -> None:
    """Scales are powers of two, so that those of a sum can be taken into its weights."""
    experts, rows, columns = 2, 21, 352
    weights = sweep.make_weights(kind, (experts, rows, columns))
    x = sweep.make_rows(9, columns, torch.bfloat16)
    plan = moe.plan(torch.arange(9)[:, None] % 2, experts, tile_rows=4)
    got = moe.grouped_gemm(x, weights.weight, plan, dtype=torch.float32, **weights.options())
    stated = STATED[_C.cpu_pair_unit()]
    block = columns if weights.block is None else weights.block[1]
    for row in range(9):
        token = int(plan.sorted[row])
        total = torch.zeros(rows)
        for first in range(0, columns, block):
            part = slice(first, first + block)
            total = total + stated(x[token, part].float(), weights.exact[token % 2][:, part])
        assert bits_equal(got[row], total), (kind, row)


@pytest.mark.parametrize("isa", UNITS)
def test_is_the_stated_sum(isa):
    lines = (
        f"import sys; sys.path[:0] = {[str(SCRIPT.parent), str(SCRIPT.parents[1])]!r}",
        "import test_experts_units as units",
        "unit = units._C.cpu_pair_unit()",
        "for kind in ('bf16', 'fp8-32', 'mxfp4'): units.check_stated_sums(kind)",
        "print('checked', unit)",
    )
    assert run(isa, ["-c", "\n".join(lines)]).split() == ["checked", UNITS[isa]]


# ---- what must not matter -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", pair_units.KINDS)
@pytest.mark.parametrize("layout", ["rows", "pairs"])
def test_a_row_depends_on_itself_alone(kind, layout):
    """Neither on the tile, nor on the rows beside it, nor on threads."""
    dtype = torch.float16 if kind == "fp16" else torch.bfloat16
    weights = sweep.make_weights(kind, (4, 70, 416))
    given = {"weight": weights.weight, **weights.options()}
    if layout == "pairs":
        given = pair_units.prepared(weights, False)
    x = sweep.make_rows(90, 416, dtype)
    ids = (torch.arange(90) % 3)[:, None]  # expert 3 gets none

    def multiply(tokens, tile_rows):
        plan = moe.plan(ids[tokens], 4, tile_rows=tile_rows)
        return moe.grouped_gemm(x[tokens], plan=plan, **given)[plan.inverse[:, 0]]

    every = torch.arange(90)
    want = multiply(every, 64)
    for tile_rows in (1, 7, 13, 30, 200):
        assert bits_equal(multiply(every, tile_rows), want)
    for tokens in (every[:1], every[5:18], every.flip(0)[::7]):
        assert bits_equal(multiply(tokens, 64), want[tokens])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            assert bits_equal(multiply(every, 16), want)
    finally:
        torch.set_num_threads(threads)


def test_float32_rows_take_prepared_weights():
    """Whose products are then fused multiply-adds of float32."""
    weights = sweep.make_weights("bf16", (3, 38, 74))
    x = sweep.make_rows(11, 74, torch.float32)
    plan = sweep.make_plan(11, 2, 3)
    got = moe.grouped_gemm(x, plan=plan, **pair_units.prepared(weights, False))
    want = pair_units.reference.grouped_gemm(x, weights.exact, plan)
    assert sweep.relative_error(got, want) < BOUND


@pytest.mark.parametrize("kind", ["fp8-128", "fnuz-128", "mxfp4"])
def test_every_code(kind):
    """One-hot rows show the number of each code, NaN too, and each scale of e8m0 but 2^-127."""
    from dspark_ext import formats

    format = sweep.described(kind)[0]
    columns = 32
    if format == "mxfp4":
        codes = torch.arange(256, dtype=torch.uint8).view(16, 16).repeat(1, 1)
        numbers = formats.decode(codes, "fp4_e2m1")
        scales = (torch.arange(16, dtype=torch.uint8) * 16 + 1)[:, None]
        block, factor = (1, 32), formats.decode(scales, "e8m0")
        numbers = numbers * factor.clamp(2.0**-120, 2.0**120)
        scales = scales.clamp(7, 247)
    else:
        codes = torch.arange(256, dtype=torch.uint8).view(8, 32)
        scales, block = torch.full((1, 1), 0.375), (128, 128)
        numbers = formats.decode(codes, format) * 0.375
    plan = moe.plan(torch.zeros(columns, 1, dtype=torch.int32), 1, tile_rows=32)
    for dtype in (torch.bfloat16, torch.float16):
        got = moe.grouped_gemm(
            torch.eye(columns, dtype=dtype), codes[None], plan, scales=scales[None],
            format=format, block=block, dtype=torch.float32,
        )  # fmt: skip
        nan_rows = numbers.isnan().any(1)  # 0 times NaN is NaN
        assert got.T[nan_rows].isnan().all()
        assert torch.equal(got.T[~nan_rows], numbers[~nan_rows])
