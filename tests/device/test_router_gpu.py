"""moe.route on the GPU: every bit of the CPU backend, also captured and replayed."""

import pytest
import router_sweep as sweep
import torch
from backends import moved
from gpukit import GPU, capture, on_cpu
from kit import bits_equal

from dspark_ext import moe


def assert_same(mine, theirs) -> None:
    for a, b in zip(on_cpu(mine), on_cpu(theirs), strict=True):
        assert a.dtype == b.dtype and bits_equal(a, b)


def agree(arguments: tuple) -> None:
    there = [moved(x, GPU) if torch.is_tensor(x) else x for x in arguments]
    assert_same(torch.ops.dspark_ext.route(*there), torch.ops.dspark_ext.route(*arguments))


@pytest.mark.parametrize("experts", sweep.EXPERTS)
def test_every_number_of_experts(experts):
    for seed in range(60):
        agree(sweep.case(seed, experts, 33))


@pytest.mark.parametrize("tokens", [0, 1, 17, 257, 1023, 1025, 4097, 65544])
def test_every_number_of_tokens(tokens):
    for seed in range(6):
        agree(sweep.case(seed, 128, tokens, 6))


@pytest.mark.parametrize("experts", sweep.EXPERTS)
def test_br047_every_expert_wins(experts):
    ids, _ = moe.route(torch.eye(experts, device=GPU) * 3, 1)
    assert torch.equal(ids[:, 0].cpu(), torch.arange(experts, dtype=torch.int32))


def test_br041_dead_rows_in_a_captured_graph():
    logits, bias = torch.randn(64, 256, device=GPU), torch.randn(256, device=GPU) * 0.1
    static = logits.clone()

    def step():
        return moe.route(static, 8, scoring="sigmoid", bias=bias, return_status=True)

    graph, out = capture(step)
    for live in (64, 0, 1, 33):
        static.copy_(logits)
        static[live:] = torch.nan
        for x in out:
            x.fill_(77)
        graph.replay()
        assert_same(out, step())
        assert out.status.tolist() == [0] * live + [moe.NAN_ROW] * (64 - live)
        alone = moe.route(logits[:live], 8, scoring="sigmoid", bias=bias)
        assert_same((out.ids[:live], out.weights[:live]), alone)


def test_it_does_not_synchronise():
    logits = torch.randn(64, 256, device=GPU)
    torch.cuda.set_sync_debug_mode("error")
    try:
        moe.route(logits, 8)
    finally:
        torch.cuda.set_sync_debug_mode("default")
