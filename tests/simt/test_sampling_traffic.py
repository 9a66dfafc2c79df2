"""Launches of a call and bytes it moves; bench/NOTES.md has the table and what was predicted."""

import emulated
import pytest
import sampling_traffic as traffic
import torch
from kit import METHODS

from dspark_ext import sampling


@pytest.fixture(scope="module")
def inputs() -> dict:
    return traffic.realistic_batch()


def test_the_batch_is_realistic(inputs):
    assert 0.7 <= traffic.acceptance(inputs) <= 0.8


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES[1:])
@pytest.mark.parametrize("method", METHODS)
def test_bytes_over_the_floor(inputs, method, warp_size):
    measured = traffic.measure(inputs, method, warp_size)
    assert measured["launches"] <= 4
    assert measured["ratio"] <= 1.15


@pytest.mark.parametrize("filters", [name for name in traffic.FILTERS if name != "none"])
@pytest.mark.parametrize("method", METHODS)
def test_bytes_over_the_floor_with_filters(inputs, method, filters):
    measured = traffic.measure({**inputs, **traffic.FILTERS[filters]}, method)
    assert measured["launches"] <= 6
    assert measured["logits_ratio"] <= 1.6
    assert measured["ratio"] <= 1.6


def test_every_row_is_read_once_for_its_statistics(inputs):
    counted = emulated.counters(lambda: sampling.rejection_sample(**inputs, method="block"))
    statistics = counted["kernels"]["row_statistics"]
    logits = inputs["target_logits"].nbytes + inputs["draft_logits"].nbytes
    assert statistics["accesses_16"] * 16 == logits  # in 16-byte loads throughout
    assert statistics["bytes_loaded"] <= 1.01 * logits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_unaligned_rows_cost_little(dtype):
    """An odd vocabulary: fewer than 16 bytes at each end of a tile go one by one."""
    small = traffic.realistic_batch(dtype, vocab=40_001, batch=2)
    counted = emulated.counters(lambda: sampling.rejection_sample(**small, method="token"))
    statistics = counted["kernels"]["row_statistics"]
    logits = small["target_logits"].nbytes + small["draft_logits"].nbytes
    assert statistics["accesses_16"] * 16 >= 0.99 * logits
    assert statistics["bytes_loaded"] <= 1.02 * logits


@pytest.mark.parametrize("proposal", ["logits", "probs", "none"])
@pytest.mark.parametrize("method", [*METHODS, "greedy", "synthetic"])
def test_launches(method, proposal):
    few = traffic.realistic_batch(vocab=300, batch=2)
    draft = few.pop("draft_logits")
    if proposal != "none":
        few |= (
            {"draft_logits": draft} if proposal == "logits" else {"draft_probs": draft.softmax(-1)}
        )
    if method == "synthetic":
        few["synthetic_acceptance_rates"] = torch.full((traffic.DRAFTS,), 0.5)
    for filters, most in (({}, 4), ({"top_p": 0.9, "top_k": 20, "min_p": 0.01}, 6)):
        counted = emulated.counters(
            lambda f=filters: sampling.rejection_sample(**few, method=method, **f)
        )
        assert sum(k["launches"] for k in counted["kernels"].values()) <= most


def test_launches_of_the_other_operators():
    rows = {"logits": torch.randn(3, 5000), "temperature": 0.9}
    index = torch.arange(3)
    calls = [
        lambda f: sampling.target_probs(**rows, **f),
        lambda f: sampling.sample(**rows, **f, seeds=index, positions=index),
    ]
    for call in calls:
        for filters in ({}, {"top_p": 0.9}):
            counted = emulated.counters(lambda c=call, f=filters: c(f))
            assert sum(k["launches"] for k in counted["kernels"].values()) <= 3
