"""grouped_gemm on warpgroups, which hardware with warps of 32 may have, on the emulator: values,
what must not matter, bytes. The checks of values are tests/expert_checks.py."""

import functools

import emulated
import expert_checks as checks
import expert_oracles as oracles
import expert_sweep as sweep
import pytest
import torch
from kit import bits_equal

from dspark_ext import moe

PANELS = checks.WAYS["panels"]
device = emulated.warpgroups
# Bytes of a row of weights and its scales, of a multiple of 256 columns.
ROW_BYTES = {
    "bf16": lambda columns: 2 * columns,
    "fp8-128": lambda columns: columns,
    "mxfp4": lambda columns: columns // 2 + columns // 32,
}


def x_dtype(kind):
    return torch.float16 if kind == "fp16" else torch.bfloat16


def counted(call, **settings):
    """Counters of the kernel, and of buffers, for one call on warpgroups."""
    with device(level=emulated.COUNTERS, **settings) as emulator:
        emulator.reset_counters()
        call()
        found = emulator.counters()
    return found["kernels"]["grouped_gemm"], found["buffers"]


@pytest.mark.parametrize(("check", "kind"), checks.cases())
def test_products(check, kind):
    """Memory, races, barriers, and products that read what has not come are checked, too."""
    with device(level=emulated.FULL):
        checks.CHECKS[check](PANELS, kind)


@pytest.mark.parametrize("check", ["powers", "edges", "float64"])
@pytest.mark.parametrize("kind", oracles.MATRIX_KINDS)
@pytest.mark.parametrize("seed", [5, 6])
def test_products_whenever_copies_land(check, kind, seed):
    with device(level=emulated.FULL, seed=seed):
        checks.CHECKS[check](PANELS, kind)


@pytest.mark.parametrize("kind", oracles.MATRIX_KINDS)
def test_grids_and_schedules_do_not_matter(kind):
    """Rings that wrap around within an item and between items; one block, few, one to an item."""
    weights = sweep.make_weights(kind, (3, 200, 900), 5)
    plan = sweep.make_plan(90, 2, 3, tile_rows=64)
    x = sweep.make_rows(90, 900, x_dtype(kind))
    results = []
    for seed, multiprocessors in ((0, 1), (0, 100), (2, 3), (5, 2), (6, 2)):
        with device(seed=seed, multiprocessors=multiprocessors):
            results.append(PANELS(x, weights, plan, dtype=torch.float32))
    assert all(bits_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("kind", oracles.MATRIX_KINDS)
def test_other_hardware_agrees(kind):
    """Within the rounding of sums; on devices of one kind the path is one and the same."""
    weights = sweep.make_weights(kind, (3, 70, 320), 6)
    plan = sweep.make_plan(40, 2, 3, tile_rows=64)
    x = sweep.make_rows(40, 320, x_dtype(kind))
    with device():
        ours = PANELS(x, weights, plan, dtype=torch.float32)
    with emulated.operators(warp_size=32):
        others = PANELS(x, weights, plan, dtype=torch.float32)
    assert sweep.relative_error(ours, others) < checks.SUM_BOUND


def test_rows_of_x_that_are_not_aligned():
    weights = sweep.make_weights("bf16", (2, 64, 128))
    plan = sweep.make_plan(20, 1, 2)
    wide = sweep.make_rows(20, 137, torch.bfloat16)
    with device(level=emulated.FULL):
        got = PANELS(wide[:, 3:131], weights, plan)
        want = PANELS(wide[:, 3:131].contiguous(), weights, plan)
    assert bits_equal(got, want)


def test_who_takes_it():
    """Weights in rows, and exact products, are not for warpgroups."""
    weights = sweep.make_weights("bf16", (2, 64, 128))
    plan = sweep.make_plan(8, 1, 2)
    x = sweep.make_rows(8, 128, torch.bfloat16)
    for way, products in (("panels", True), ("rows", False), ("exact", False)):
        kernel, _ = counted(functools.partial(checks.WAYS[way], x, weights, plan))
        assert (kernel["warpgroup_products"] > 0) == products, way
    found = emulated.counters(functools.partial(PANELS, x, weights, plan))
    assert found["kernels"]["grouped_gemm"]["warpgroup_products"] == 0


@pytest.mark.parametrize("kind", ROW_BYTES)
@pytest.mark.parametrize("tokens", [5, 40, 160, 640])
def test_weights_of_touched_experts_are_read_once(kind, tokens):
    """128 experts, 3 for each token; bytes do not depend on the number of rows or columns but by
    the padding of panels, of which there is none here."""
    experts, rows, columns = 128, 128, 256
    weights = sweep.make_weights(kind, (experts, rows, columns))
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :3]
    plan = moe.plan(ids, experts, tile_rows=64)
    x = sweep.make_rows(tokens, columns, torch.bfloat16)
    kernel, buffers = counted(functools.partial(PANELS, x, weights, plan), multiprocessors=8)
    touched = int((plan.counts > 0).sum())
    floor = touched * rows * ROW_BYTES[kind](columns)
    read = buffers["weight"]["bytes_loaded"]
    if kind == "mxfp4":  # its scales come by copies, too
        read += buffers["scales"]["bytes_loaded"]
    assert read == kernel["bulk_bytes"] == floor
    assert kernel["launches"] == 1


@pytest.mark.parametrize(("kind", "columns"), [("bf16", 64), ("fp8-128", 128), ("mxfp4", 256)])
def test_products_and_banks(kind, columns):
    """One step of one panel and 20 rows of x. Lanes meet in a bank only where results leave: their
    pairs of sums stand 20 words apart."""
    weights = sweep.make_weights(kind, (1, 64, columns))
    plan = moe.plan(torch.zeros(20, 1, dtype=torch.int32), 1, tile_rows=64)
    x = sweep.make_rows(20, columns, torch.bfloat16)
    kernel, _ = counted(functools.partial(PANELS, x, weights, plan))
    assert kernel["warpgroup_products"] == columns // 16
    assert kernel["bulk_copies"] == (2 if kind == "mxfp4" else 1)
    reads_of_sums = 4 * (20 * 8 // 32) * 2  # warps, iterations, words of a pair
    assert kernel["bank_conflicts"] <= 2 * reads_of_sums and kernel["worst_bank_ways"] <= 3
