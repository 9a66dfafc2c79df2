"""The expert layer on the GPU: every bit of the CPU backend, also captured and replayed."""

import expert_sweep as sweep
import pytest
import torch
from backends import moved
from gpukit import GPU, capture
from kit import FLOATS, bits_equal, name

from dspark_ext import moe

OPS = torch.ops.dspark_ext


def agree(operator, arguments) -> None:
    there = [moved(x, GPU) if torch.is_tensor(x) else x for x in arguments]
    assert bits_equal(operator(*there).cpu(), operator(*arguments))


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("kind", sweep.KINDS)
def test_grouped_gemm(kind, dtype):
    sizes = [(1, 1, 1, 64, 64), (33, 3, 8, 70, 200), (300, 8, 64, 128, 512), (640, 3, 128, 100, 72)]
    for seed, (tokens, k, experts, rows, columns) in enumerate(sizes):
        weights = sweep.make_weights(kind, (experts, rows, columns), seed)
        plan = sweep.make_plan(tokens, k, experts, seed, (16, 64, 5)[seed % 3], (1, 8)[seed % 2])
        x = sweep.make_rows(tokens, columns, dtype, seed)
        agree(OPS.grouped_gemm, sweep.operator_arguments(x, weights, plan))
        agree(OPS.grouped_gemm, sweep.operator_arguments(x, weights, plan, dtype=torch.float32))
        permuted = moe.permute(x, plan)
        agree(OPS.grouped_gemm, sweep.operator_arguments(permuted, weights, plan, False))


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_swiglu(dtype):
    for width in (1, 37, 2304):
        gate_up = sweep.make_rows(100, 2 * width, dtype) * 6
        for limit in (None, 10.0):
            agree(OPS.swiglu, (gate_up, limit, False))
            agree(OPS.swiglu, (gate_up, limit, True))


def layer(x, ids, weights, w13, w2, s13, s2):
    return moe.fused_moe(
        x, w13, w2, ids, weights, w13_scales=s13, w2_scales=s2, format="mxfp4", swiglu_limit=10.0,
        residual=x, exact=True,
    )  # fmt: skip


def layer_inputs(tokens: int, seed: int) -> list:
    w13, w2 = (sweep.make_weights("mxfp4", shape) for shape in ((32, 128, 256), (32, 256, 64)))
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-1, 32, (tokens, 4), generator=generator)
    x = sweep.make_rows(tokens, 256, torch.bfloat16, seed)
    weights = torch.rand(tokens, 4, generator=generator)
    return [x, ids, weights, w13.weight, w2.weight, w13.scales, w2.scales]


@pytest.mark.parametrize("tokens", [1, 48, 1000])
def test_br049_replay_with_other_tokens(tokens):
    static = [x.to(GPU) for x in layer_inputs(tokens, 0)]
    graph, out = capture(lambda: layer(*static))
    for seed in range(4):
        inputs = layer_inputs(tokens, seed)
        if seed == 3:
            inputs[1].fill_(-1)
        for old, new in zip(static[:3], inputs[:3], strict=True):
            old.copy_(new)
        out.fill_(77)
        graph.replay()
        assert bits_equal(out.cpu(), layer(*inputs))


def test_a_layer_does_not_synchronise():
    given = [x.to(GPU) for x in layer_inputs(100, 0)]
    first = layer(*given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = layer(*given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bits_equal(first.cpu(), again.cpu())


def test_tensors_on_two_devices_are_refused():
    x, ids, weights, *matrices = (x.to(GPU) for x in layer_inputs(5, 0))
    matrices[0] = matrices[0].cpu()
    with pytest.raises(RuntimeError, match=r"dspark_ext\.grouped_gemm: weight: expected device"):
        layer(x, ids, weights, *matrices)
