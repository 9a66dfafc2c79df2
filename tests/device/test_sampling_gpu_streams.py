"""Streams, devices, synchronisation and memory of a call."""

import pytest
import torch
from gpukit import on_cpu, to_gpu
from kit import random_batch, same, starts

from dspark_ext import sampling

COUNTS, V, K = [3, 0, 2, 3], 4200, 3
B, N = len(COUNTS), sum(COUNTS) + len(COUNTS)


def inputs(seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    target, ids, draft = random_batch(generator, COUNTS, V, K)
    return {
        "target_logits": target,
        "draft_token_ids": ids,
        "draft_logits": draft,
        "query_start_loc": starts(COUNTS),
        "temperature": torch.full((B,), 0.8),
        "top_p": torch.full((B,), 0.9),
        "seeds": torch.arange(B),
        "positions": torch.arange(B) * 7,
    }


def rows(seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {
        "logits": torch.randn(N, V, generator=generator), "temperature": torch.full((N,), 0.8),
        "top_k": torch.full((N,), 30),
    }  # fmt: skip


def draws(seed: int = 0) -> dict:
    return {**rows(seed), "seeds": torch.arange(N), "positions": torch.arange(N)}


def masses(seed: int = 0) -> dict:
    return {k: v for k, v in inputs(seed).items() if k not in ("seeds", "positions")}


OPERATORS = [
    pytest.param(sampling.rejection_sample, inputs, id="rejection_sample"),
    pytest.param(sampling.block_acceptance, masses, id="block_acceptance"),
    pytest.param(sampling.sample, draws, id="sample"),
    pytest.param(sampling.target_probs, rows, id="target_probs"),
]


def result(out) -> tuple:
    return tuple(x for x in on_cpu(out) if x is not None)


@pytest.mark.parametrize(("operator", "make"), OPERATORS)
def test_br058_current_stream(operator, make):
    """What the stream writes just before the call is what the call reads."""
    steps = [make(seed) for seed in range(4)]
    wanted = [result(operator(**step)) for step in steps]
    static = to_gpu(steps[0])
    sources = [to_gpu(step) for step in steps]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for repeat in range(100):
            torch.cuda._sleep(200_000)
            for key, value in sources[repeat % 4].items():
                static[key].copy_(value)
            out = operator(**static)
            copies = tuple(
                x.clone() for x in (out if isinstance(out, tuple) else (out,)) if x is not None
            )
            assert same(result(copies), wanted[repeat % 4]), repeat


@pytest.mark.parametrize(("operator", "make"), OPERATORS)
def test_br057_other_device(operator, make):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    want = result(operator(**make()))
    torch.cuda.set_device(0)
    out = operator(**to_gpu(make(), "cuda:1"))
    assert torch.cuda.current_device() == 0
    values = [x for x in (out if isinstance(out, tuple) else (out,)) if x is not None]
    assert {x.device for x in values} == {torch.device("cuda:1")}
    assert same(result(out), want)


@pytest.mark.parametrize(("operator", "make"), OPERATORS)
def test_no_synchronisation(operator, make):
    values = to_gpu(make())
    operator(**values)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(2_000_000_000)  # about a second
        done = torch.cuda.Event()
        operator(**values)
        done.record()
        assert not done.query(), "the call waited for the device"
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("operator", "make", "outputs"),
    [
        pytest.param(sampling.rejection_sample, inputs, 5, id="rejection_sample"),
        pytest.param(sampling.block_acceptance, masses, 3, id="block_acceptance"),
        pytest.param(sampling.sample, draws, 2, id="sample"),
        pytest.param(sampling.target_probs, rows, 1, id="target_probs"),
    ],
)
def test_allocations(operator, make, outputs):
    """The outputs and one workspace, which is free again afterwards."""
    values = to_gpu(make())
    operator(**values)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    out = operator(**values)
    after = torch.cuda.memory_stats()

    def change(name: str) -> int:
        return after[name] - before[name]

    assert change("allocation.all.allocated") == outputs + 1
    assert change("allocation.all.current") == outputs
    values = [x for x in (out if isinstance(out, tuple) else (out,)) if x is not None]
    payload = sum(x.numel() * x.element_size() for x in values)
    assert change("allocated_bytes.all.current") <= payload + 512 * outputs
    workspace = after["allocated_bytes.all.peak"] - after["allocated_bytes.all.current"]
    rows_with_lists = B * (K + 1)
    assert workspace <= rows_with_lists * (8 * (V // 16 + 1024) + 2000) + 16384
