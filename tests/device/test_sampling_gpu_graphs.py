"""Captured once, replayed with other lengths, parameters and padding."""

import pytest
import torch
from gpukit import GPU, capture, on_cpu
from graph_steps import STEPS, V, live_part, step_inputs
from kit import METHODS, same

from dspark_ext import sampling


@pytest.mark.parametrize("filters", [False, True])
@pytest.mark.parametrize("method", [*METHODS, "greedy"])
def test_br024_replay_with_other_lengths(method, filters):
    static = {key: value.to(GPU) for key, value in step_inputs(0, STEPS[0], filters).items()}
    graph, out = capture(
        lambda: sampling.rejection_sample(**static, method=method, return_logprobs=True)
    )
    for seed, counts in enumerate(STEPS):
        inputs = step_inputs(seed, counts, filters)
        for key, value in inputs.items():
            static[key].copy_(value)
        for x in out:
            x.view(torch.uint8).fill_(0x7F)
        graph.replay()
        got, live = on_cpu(out), len(counts)
        want = sampling.rejection_sample(
            **live_part(inputs, live), method=method, return_logprobs=True
        )
        assert same([x[:live] for x in got], want), counts
        assert (got[2][live:] == 0).all() and (got[4][live:] == 0).all()
        assert (got[0][live:] == -1).all() and (got[3][live:] == -1).all()


def test_br022_replay_without_drafts():
    """Captured with drafts, replayed without, and the other way round."""
    for first, second in ([STEPS[0], STEPS[1]], [STEPS[1], STEPS[0]]):
        static = {key: value.to(GPU) for key, value in step_inputs(1, first, False).items()}
        graph, out = capture(lambda s=static: sampling.rejection_sample(**s))
        inputs = step_inputs(2, second, False)
        for key, value in inputs.items():
            static[key].copy_(value)
        graph.replay()
        assert same(on_cpu(out)[:5], sampling.rejection_sample(**inputs)[:5])


def test_replay_of_row_operators():
    logits, index = torch.randn(9, V, device=GPU), torch.arange(9, device=GPU)
    temperature = torch.ones(9, device=GPU)
    options = {"temperature": temperature, "top_k": torch.full((9,), 40, device=GPU)}
    graph, out = capture(
        lambda: (
            *sampling.sample(logits, **options, seeds=index, positions=index),
            sampling.target_probs(logits, **options),
        )
    )
    for value in (0.5, 0.0, 1.3):
        logits.normal_()
        temperature.fill_(value)
        index.add_(1)
        graph.replay()
        there = {key: x.cpu() for key, x in options.items()}
        draws = sampling.sample(logits.cpu(), **there, seeds=index.cpu(), positions=index.cpu())
        assert same(on_cpu(out), (*draws, sampling.target_probs(logits.cpu(), **there)))


def test_out_variant_in_a_graph():
    inputs = {key: value.to(GPU) for key, value in step_inputs(3, STEPS[0], False).items()}
    out = sampling.rejection_sample(**inputs, return_logprobs=True)
    want = on_cpu(out)
    graph, _ = capture(lambda: sampling.rejection_sample(**inputs, out=out))
    for x in out:
        x.view(torch.uint8).fill_(0x7F)
    graph.replay()
    assert same(on_cpu(out), want)
