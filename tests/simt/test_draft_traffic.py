"""Bytes that drafting moves, at the size of a large vocabulary; docs/kernels.md has the table."""

import draft_traffic as traffic
import emulated
import pytest
import torch


def check(batch: int, drafts: int, warp_size: int) -> dict:
    measured = traffic.measure(traffic.case(batch, drafts), warp_size)
    assert measured["launches"] == drafts + 1
    assert measured["w2"] == 1.0  # once for the whole batch
    assert measured["streams"] == 1.0
    assert measured["wide_w2"] >= 1.0  # in 16-byte loads throughout
    assert measured["row_reads"] <= 1.05  # once, and one tile of it again
    assert measured["memory"] <= 1.01  # which the cache has kept
    return measured


def test_one_request():
    measured = check(1, 2, 32)
    assert measured["ratio"] <= 1.02
    assert measured["sectors"] <= 1.05


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES[1:])
def test_eight_requests(warp_size):
    measured = check(8, 1, warp_size)
    assert measured["ratio"] - measured["row"] <= 1.03
    assert measured["sectors"] <= 1.05


@pytest.mark.slow
def test_sixty_four_requests():
    """What is over the floor comes from the second-level cache."""
    measured = check(64, 1, 32)
    assert measured["inputs"] <= 0.05
    assert measured["ratio"] - measured["row"] - measured["inputs"] <= 1.06


def test_a_cache_without_room_reads_rows_again():
    """The model of the cache is no formality."""
    it = traffic.case(64, 1, vocab=20000) | {"exact": False}
    measured = traffic.measure(it, cache=1 << 20)
    assert 1.05 < measured["memory"] <= measured["sectors"]


def test_inputs_of_32_bits_halve_the_groups():
    """A gated head's u is not exact in 16 bits: 32 requests at a time."""
    it = traffic.case(64, 1, vocab=2000, kind="gated")
    assert traffic.measure(it)["w2"] == 2.0
    assert traffic.measure(traffic.case(64, 1, vocab=2000))["w2"] == 1.0
    assert traffic.measure(traffic.case(70, 1, vocab=2000))["w2"] == 2.0


@pytest.mark.parametrize("warp_size", (32, 64))
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_matrix_units(batch, warp_size):
    """Of any head 64 requests share a pass over w2; u is kept in 16 bits."""
    drafts = 1 if batch == 64 else 2
    it = traffic.case(batch, drafts) | {"exact": False}
    measured = traffic.measure(it, warp_size)
    assert measured["launches"] == drafts + 1
    assert measured["sectors"] <= measured["ratio"]  # inputs that were just written, too
    assert measured["memory"] <= 1.01
    assert measured["w2"] == measured["streams"] == 1.0
    assert measured["wide_w2"] >= 1.0
    # With warps of 64 lanes twice as many blocks bring in inputs and their anchors.
    assert measured["inputs"] <= (0.05 if warp_size == 32 else 0.09)
    rest = measured["ratio"] - measured["row"] - measured["inputs"]
    assert rest <= (1.06 if warp_size == 32 else 1.08)


def test_rows_that_are_not_aligned_are_read_once_too():
    it = traffic.case(3, 1, vocab=1001)
    w2 = it["w2"]
    memory = torch.empty(w2.numel() + 1, dtype=w2.dtype)
    memory[1:] = w2.flatten()
    it["w2"] = memory[1:].view(w2.shape)
    measured = traffic.measure(it)
    assert measured["w2"] == 1.0 and measured["streams"] == 1.0
