"""The device kernels of the router, as the emulator runs them, against the CPU backend."""

import emulated
import pytest
import router_sweep as sweep
import torch
from kit import bits_equal

import dspark_ext  # noqa: F401  (registers the operators)


def agree(arguments: tuple, **settings) -> None:
    want = torch.ops.dspark_ext.route(*arguments)
    with emulated.operators(**settings):
        got = torch.ops.dspark_simt.route(*arguments)
    for mine, theirs in zip(want, got, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert bits_equal(mine, theirs), (arguments[1:8], settings, mine, theirs)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("experts", sweep.EXPERTS)
def test_every_number_of_experts(experts, warp_size):
    """All options and kinds of rows; races, bounds and uninitialised memory are checked."""
    tokens, cases = (17, 10) if experts < 512 else (6, 4)
    for seed in range(cases):
        arguments = sweep.case(seed, experts, tokens)
        agree(arguments, warp_size=warp_size, seed=seed % 4, level=emulated.FULL)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("k", [*range(1, 17), 32])
def test_every_number_of_slots(k, warp_size):
    for seed, experts in enumerate((k, 33 + k, 256)):
        arguments = sweep.case(seed, experts, 9, k)
        agree(arguments, warp_size=warp_size, seed=seed, level=emulated.FULL)


@pytest.mark.parametrize("tokens", [0, 1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257])
def test_every_number_of_tokens(tokens):
    for seed, warp_size in enumerate(emulated.WARP_SIZES):
        agree(sweep.case(seed, 64, tokens, 6), warp_size=warp_size, seed=seed)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("experts", [31, 129, 512, 1025])
def test_every_expert_wins(experts, warp_size):
    """BR-047 on the device kernels: one-hot rows, in ties of all others."""
    logits = torch.eye(experts) * 3
    for scoring in sweep.SCORINGS:
        arguments = (logits, 1, scoring, None, 0, 0, True, 1.0, None, None, None)
        with emulated.operators(warp_size=warp_size):
            ids = torch.ops.dspark_simt.route(*arguments)[0]
        assert torch.equal(ids[:, 0], torch.arange(experts, dtype=torch.int32))


@pytest.mark.parametrize("dtype", sweep.DTYPES, ids=str)
def test_strided_rows(dtype):
    """Columns of a wider tensor, at any alignment; gaps are not read."""
    wide = torch.full((9, 300), torch.nan, dtype=dtype)
    for begin in (0, 1, 3):
        wide[:, begin : begin + 128] = torch.randn(9, 128).to(dtype)
        rows = wide[:, begin : begin + 128]
        agree((rows, 8, "sigmoid", None, 0, 0, True, 1.0, None, None, None), level=emulated.FULL)
        wide.fill_(torch.nan)


def test_one_launch():
    for experts in (8, 128, 256, 512, 1024, 4096):
        arguments = sweep.case(0, experts, 5, 4)
        for warp_size in emulated.WARP_SIZES:
            counted = emulated.counters(
                lambda arguments=arguments: torch.ops.dspark_simt.route(*arguments), warp_size
            )
            launches = {name: kernel["launches"] for name, kernel in counted["kernels"].items()}
            assert launches == {"route": 1}


def test_bytes_moved():
    """Logits and bias are read once per token, ids, weights and status written once."""
    logits, bias = torch.randn(640, 128).bfloat16(), torch.randn(128)
    arguments = (logits, 3, "sqrtsoftplus", bias, 0, 0, True, 1.5, None, None, None)
    counted = emulated.counters(lambda: torch.ops.dspark_simt.route(*arguments))
    moved = {
        name: sum(buffer[key] for key in ("bytes_loaded", "bytes_stored"))
        for name, buffer in counted["buffers"].items()
    }
    assert moved["logits"] == 640 * 128 * 2
    assert moved["ids"] == moved["weights"] == 640 * 3 * 4
    assert moved["status"] == 640 * 4
