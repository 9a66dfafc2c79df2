"""The device kernels of the exact expert layer, as the emulator runs them, against the CPU backend,
bit by bit."""

import functools

import emulated
import expert_sweep as sweep
import pytest
import torch
from kit import FLOATS, bits_equal, name

import dspark_ext  # noqa: F401  (registers the operators)
from dspark_ext import moe

OPS = torch.ops.dspark_ext
WIDTHS = (1, 8, 16, 40, 100, 257)  # K


def agree(operator: str, arguments: tuple, **settings) -> None:
    want = getattr(OPS, operator)(*arguments)
    with emulated.operators(**settings):
        got = getattr(torch.ops.dspark_simt, operator)(*arguments)
    assert got.dtype == want.dtype and bits_equal(got, want), settings


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("kind", sweep.KINDS)
def test_grouped_gemm(kind, warp_size):
    """Sizes and alignments of every kind; races, bounds and uninitialised memory are checked."""
    for seed, width in enumerate(WIDTHS):
        width += width % 2 if kind == "mxfp4" else 0
        weights = sweep.make_weights(kind, (3, (66, 5, 17)[seed % 3], width), seed)
        tokens, k = ((5, 3), (1, 1), (20, 2))[seed % 3]
        plan = sweep.make_plan(tokens, k, 3, seed, (16, 8, 3)[seed % 3], (1, 4, 1)[seed % 3])
        x = sweep.make_rows(tokens, width + seed % 2, FLOATS[seed % 3], seed)[:, :width]
        gather = seed % 4 != 3
        x = x if gather else moe.permute(x, plan)
        arguments = sweep.operator_arguments(x, weights, plan, gather, FLOATS[seed // 2 % 3])
        agree(
            "grouped_gemm", arguments,
            warp_size=warp_size, seed=seed % 4, level=emulated.FULL,
        )  # fmt: skip


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("kind", sweep.KINDS)
def test_activation(kind, warp_size):
    """Gates and ups apart and in turns; ranges of columns that end anywhere."""
    for seed, width in enumerate((2, 62, 66, 130)):
        weights = sweep.make_weights(kind, (3, width, 40), seed)
        plan = sweep.make_plan(5, 3, 3, seed, (16, 3)[seed % 2], (1, 4)[seed % 2])
        x = sweep.make_rows(5, 40, FLOATS[seed % 3], seed)
        arguments = sweep.operator_arguments(
            x, weights, plan, dtype=FLOATS[seed // 2 % 3], limit=(None, 0.5)[seed % 2],
            activation=("swiglu", "swiglu_interleaved")[seed // 2],
        )  # fmt: skip
        agree(
            "grouped_gemm", arguments,
            warp_size=warp_size, seed=seed % 4, level=emulated.FULL,
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_schedules_do_not_matter(seed):
    weights, plan = sweep.make_weights("fp8-32", (4, 70, 160)), sweep.make_plan(12, 2, 4)
    arguments = sweep.operator_arguments(sweep.make_rows(12, 160, torch.bfloat16), weights, plan)
    for warp_size in emulated.WARP_SIZES:
        agree("grouped_gemm", arguments, warp_size=warp_size, seed=seed)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_swiglu(dtype, warp_size):
    for seed, width in enumerate((1, 16, 300, 513)):
        gate_up = sweep.make_rows(5, 2 * width + seed, dtype, seed)[:, : 2 * width] * 5
        arguments = (gate_up, (None, 10.0, 0.5)[seed % 3], bool(seed % 2))
        agree("swiglu", arguments, warp_size=warp_size, seed=seed, level=emulated.FULL)


def test_tiles_that_a_plan_cannot_have_are_left_out():
    """What a CPU refuses; a device cannot."""
    plan = moe.plan(torch.tensor([[0], [1], [2], [1]]), 3, tile_rows=4)
    weights = sweep.make_weights("fp32", (3, 4, 8))
    x = sweep.make_rows(4, 8, torch.float32)
    want = moe.grouped_gemm(x, weights.weight, plan, exact=True)
    for change in ({"tile_expert": [7, 1, 2]}, {"tile_row": [9, 1, 3]}):
        bad = {key: torch.tensor(v).to(getattr(plan, key).dtype) for key, v in change.items()}
        arguments = sweep.operator_arguments(x, weights, plan._replace(**bad))
        with emulated.operators(level=emulated.FULL):
            got = torch.ops.dspark_simt.grouped_gemm(*arguments)
        assert bits_equal(got[1:], want[1:])


# ---- launches and bytes -------------------------------------------------------------------------


def test_one_launch_and_the_bytes_of_the_touched_experts():
    """Weights of an expert are read once per tile, 16 bytes at a time; of others not at all."""
    for kind, bytes_per_weight in (("bf16", 2), ("fp8-128", 1), ("mxfp4", 0.5)):
        weights = sweep.make_weights(kind, (8, 128, 256))
        plan = moe.plan(torch.tensor([[1, 5], [5, 6], [1, 5]]), 8, tile_rows=8)
        x = sweep.make_rows(3, 256, torch.bfloat16)
        arguments = sweep.operator_arguments(x, weights, plan)
        call = functools.partial(torch.ops.dspark_simt.grouped_gemm, *arguments)
        counted = emulated.counters(call)
        kernel = counted["kernels"]["grouped_gemm"]
        assert list(counted["kernels"]) == ["grouped_gemm"] and kernel["launches"] == 1
        loaded = 3 * 128 * 256 * bytes_per_weight
        assert counted["buffers"]["weight"]["bytes_loaded"] == loaded
        assert 16 * kernel["accesses_16"] == loaded


def test_no_tokens_no_launch():
    plan = moe.plan(torch.zeros(0, 2, dtype=torch.int32), 8, tile_rows=8)
    weights = sweep.make_weights("bf16", (8, 4, 16))
    arguments = sweep.operator_arguments(torch.zeros(0, 16), weights, plan)
    gate_up = torch.zeros(0, 8)

    def step():
        torch.ops.dspark_simt.grouped_gemm(*arguments)
        torch.ops.dspark_simt.swiglu(gate_up, None, False)

    assert emulated.counters(step)["kernels"] == {}
