"""Launches of every operator, as the model of larger machines (bench/counts.py) has them."""

import pathlib
import sys

import draft_sweep
import emulated
import pytest
import sampling_traffic as traffic
import torch

from dspark_ext import moe, sampling, verify

sys.path.append(str(pathlib.Path(__file__).parents[2] / "bench"))

from counts import LAUNCHES, plan_launches, schedule_launches  # noqa: E402


def launches(call) -> int:
    kernels = emulated.counters(call)["kernels"]
    return sum(kernel["launches"] for kernel in kernels.values())


@pytest.mark.parametrize("method", ["token", "block"])
def test_rejection_sample(method):
    few = traffic.realistic_batch(vocab=300, batch=2)
    assert LAUNCHES["rejection_sample"] == launches(
        lambda: sampling.rejection_sample(**few, method=method)
    )
    assert LAUNCHES["rejection_sample filtered"] == launches(
        lambda: sampling.rejection_sample(**few, method=method, top_p=0.9)
    )


def test_laws_and_draws_of_rows():
    index = torch.arange(3)
    rows = {"logits": torch.randn(3, 5000), "temperature": 0.9}
    assert LAUNCHES["target_probs"] == launches(lambda: sampling.target_probs(**rows))
    assert LAUNCHES["sample"] == launches(
        lambda: sampling.sample(**rows, seeds=index, positions=index)
    )


@pytest.mark.parametrize("drafts", [1, 5])
def test_drafts(drafts):
    case = draft_sweep.markov_case(2, "vanilla", 2, drafts, 300, 64, dtype=torch.bfloat16)
    counted = launches(lambda: torch.ops.dspark_simt.markov_sample(*case.values()))
    assert counted == LAUNCHES["markov_sample"] * drafts + 1


def test_confidence():
    inputs = torch.randn(2, 5, 64).bfloat16(), torch.randn(2, 5, 16).bfloat16(), torch.randn(80)
    assert LAUNCHES["confidence"] == launches(
        lambda: torch.ops.dspark_simt.confidence(*inputs, None, None)
    )


@pytest.mark.parametrize("batch", [2, 900])
def test_a_verification_pass(batch):
    drafts = 5
    confidence = torch.rand(batch, drafts)
    cost = torch.linspace(1, 2, batch * (drafts + 1) + 2, dtype=torch.float64)
    modes = ("early_stop", None, cost, None, None, None, 0.0, drafts, 0, -1, 0)
    assert schedule_launches(batch, drafts) == launches(
        lambda: torch.ops.dspark_simt.schedule(confidence, *modes)
    )
    chosen = verify.schedule(confidence, cost=cost)
    ones, rows = torch.ones(batch, dtype=torch.int64), batch * (drafts + 1)
    ids = torch.ones(batch, drafts, dtype=torch.int64)
    lengths = chosen.verify_lens, chosen.query_start_loc
    assert LAUNCHES["pack"] == launches(
        lambda: torch.ops.dspark_simt.pack(ones, ids, ones, *lengths, rows, None, 0, 0)
    )
    assert LAUNCHES["unpack"] == launches(
        lambda: torch.ops.dspark_simt.unpack(
            torch.randn(rows, 7), torch.zeros(()), chosen.query_start_loc, drafts, 0
        )
    )
    assert LAUNCHES["commit"] == launches(
        lambda: torch.ops.dspark_simt.commit(
            ones.int(), ones, ones, chosen.query_start_loc, rows, 0
        )
    )


@pytest.mark.parametrize(("slots", "experts"), [(3 * 900, 16), (3 * 900, 2048), (3 * 3000, 16)])
def test_a_plan(slots, experts):
    ids = torch.randint(0, experts, (slots // 3, 3)).int()
    assert plan_launches(slots, experts) == launches(lambda: moe.plan(ids, experts))


def test_experts():
    tokens, experts, k, width, inner = 5, 16, 3, 64, 32
    ids = torch.rand(tokens, experts).argsort(1)[:, :k].int()
    assert LAUNCHES["route"] == launches(
        lambda: moe.route(torch.randn(tokens, experts), k, scoring="sqrtsoftplus")
    )
    plan, x = moe.plan(ids, experts), torch.randn(tokens, width).bfloat16()
    weights = torch.rand(tokens, k)
    assert LAUNCHES["permute"] == launches(lambda: moe.permute(x, plan))
    y = torch.randn(tokens * k, width).bfloat16()
    assert LAUNCHES["combine"] == launches(lambda: moe.combine(y, plan, weights))
    w13 = torch.randn(experts, 2 * inner, width).bfloat16()
    w2 = torch.randn(experts, width, inner).bfloat16()
    assert LAUNCHES["fused_moe"] + plan_launches(tokens * k, experts) == launches(
        lambda: moe.fused_moe(x, w13, w2, ids, weights)
    )
