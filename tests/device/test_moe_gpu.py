"""The dispatch operators on the GPU: every bit of the CPU backend, also captured and replayed."""

import moe_sweep as sweep
import pytest
import torch
from backends import moved
from gpukit import GPU, capture, on_cpu
from kit import FLOATS, bits_equal, name

from dspark_ext import moe

OPS = torch.ops.dspark_ext


def on_gpu(arguments) -> list:
    return [moved(x, GPU) if torch.is_tensor(x) else x for x in arguments]


@pytest.mark.parametrize("experts", sweep.EXPERTS)
def test_plans(experts):
    for seed, tokens in enumerate(sweep.TOKENS):
        for k in (1, 3, 8, 16):
            case = sweep.plan_case(seed, tokens, k, experts)
            sweep.check_plan(on_cpu(OPS.plan(*on_gpu(case))), case)


@pytest.mark.parametrize("kind", sweep.KINDS)
def test_kinds_of_ids(kind):
    for seed, (tokens, k, experts) in enumerate([(255, 3, 128), (257, 16, 384), (65544, 8, 256)]):
        case = sweep.plan_case(seed, tokens, k, experts, kind)
        sweep.check_plan(on_cpu(OPS.plan(*on_gpu(case))), case)


def test_br043_the_order_never_changes():
    case = sweep.plan_case(43, 65544, 16, 128, "uniform")
    there = on_gpu(case)
    first = OPS.plan(*there)
    for _ in range(100):
        again = OPS.plan(*there)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_rows(dtype):
    sizes = [(0, 2, 4), (1, 1, 1), (33, 4, 7), (640, 3, 128), (3, 70, 5), (4097, 8, 256)]
    for seed, (tokens, k, experts) in enumerate(sizes):
        for width in (1, 24, 129, 2056):
            case = sweep.plan_case(seed, tokens, k, experts, ("holes", "uniform")[seed % 2])
            given = sweep.rows_case(seed, case, width, dtype)
            plan = given["plan"]
            for operator, *arguments in (
                (OPS.permute, given["x"], plan.sorted, plan.inverse),
                (
                    *(OPS.combine, given["y"], plan.inverse, given["weights"]),
                    *(given["shared"], given["residual"]),
                ),
            ):
                assert bits_equal(operator(*on_gpu(arguments)).cpu(), operator(*arguments))


def step_of(ids, x, weights, expert_map):
    plan = moe.plan(ids, 40, alignment=16, expert_map=expert_map, tile_rows=64)
    rows = moe.permute(x, plan)
    return (*plan, rows, moe.combine(rows, plan, weights, shared=x, residual=x))


def step_inputs(seed: int, tokens: int, kind: str) -> tuple:
    generator = torch.Generator().manual_seed(seed)
    ids, *_ = sweep.plan_case(seed, tokens, 4, 60, kind)
    expert_map = torch.randperm(60, generator=generator).int() - 10
    x = torch.randn(tokens, 512, generator=generator).bfloat16()
    return ids.long(), x, torch.rand(tokens, 4, generator=generator), expert_map


@pytest.mark.parametrize("tokens", [48, 5000], ids=["one launch", "two launches"])
def test_br049_replay_with_other_ids(tokens):
    static = on_gpu(step_inputs(0, tokens, "uniform"))
    graph, out = capture(lambda: step_of(*static))
    for seed, kind in enumerate(["uniform", "none", "one", "holes", "skewed"]):
        inputs = step_inputs(seed, tokens, kind)
        for old, new in zip(static, inputs, strict=True):
            old.copy_(new)
        for x in out:
            x.fill_(77)
        graph.replay()
        for got, want in zip(on_cpu(out), step_of(*inputs), strict=True):
            assert bits_equal(got.reshape(-1), want.reshape(-1)), kind


def test_a_step_does_not_synchronise():
    static = on_gpu(step_inputs(0, 5000, "holes"))
    step_of(*static)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step_of(*static)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_tensors_on_two_devices_are_refused():
    ids, x, weights, expert_map = on_gpu(step_inputs(0, 8, "uniform"))
    with pytest.raises(RuntimeError, match=r"dspark_ext\.plan: expert_map: expected device cuda"):
        moe.plan(ids, 40, expert_map=expert_map.cpu())
    plan = moe.plan(ids, 60)
    with pytest.raises(RuntimeError, match=r"dspark_ext\.combine: weights: expected device cuda"):
        moe.combine(moe.permute(x, plan), plan, weights.cpu())
