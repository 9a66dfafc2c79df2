"""Drafts from graphs: what an engine emits whose drafts are not; and what is not captured."""

import draft_heads
import pytest
import torch
from random_models import VOCAB, served_model
from replayed_graphs import ReplayedCapture
from test_head_drafter import CONFIGS

from dspark_ext.engine import (
    CausalLMTarget,
    DSparkEngine,
    HeadDrafter,
    HuggingFaceTarget,
    NGramDrafter,
    SamplingParams,
    SmallModelDrafter,
    SpeculativeConfig,
    output_taps,
)
from dspark_ext.engine.graphs import not_captured

PARAMS = [
    SamplingParams(temperature=temperature, seed=7, max_new_tokens=14 - 3 * number)
    for number, temperature in enumerate((0.0, 0.8, 1.1, 0.0))
]


def tokens(engine, prompts) -> list[list[int]]:
    """More requests than slots, so they join when others leave."""
    outputs = engine.generate(prompts[: len(PARAMS)], PARAMS).outputs
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_head_on_graphs(tiny_pair, prompts, name, method):
    model, _ = tiny_pair
    head = draft_heads.make(CONFIGS[name])
    target = HuggingFaceTarget(model, output_taps(head.config), max_requests=3, max_len=64)
    drafter = HeadDrafter.for_target(head, target)
    assert drafter.capturable, drafter.capture_obstacle
    engine = DSparkEngine(target, drafter, SpeculativeConfig(draft_sample_method=method))
    wanted = tokens(engine, prompts)
    engine.use_graphs(ReplayedCapture)
    assert tokens(engine, prompts) == wanted
    (runner,) = engine.draft_graphs.runners.values()
    assert set(runner.captured) >= {2, 3} and runner.capture.replays > 3


def small_pair(**cache):
    sizes = dict(max_requests=3, max_len=48)
    target = CausalLMTarget(served_model("llama"), **sizes, **cache)
    drafter = SmallModelDrafter(
        CausalLMTarget(served_model("llama"), **sizes, **cache), block_size=3
    )
    return target, drafter


def random_prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(VOCAB, (n,), generator=generator).tolist() for n in (3, 9, 5, 12)]


@pytest.mark.parametrize("cache", [{}, {"block_size": 4}], ids=["dense", "blocks of 4"])
def test_a_small_models_passes_run_from_graphs(cache):
    wanted = tokens(DSparkEngine(*small_pair(**cache)), random_prompts())
    target, drafter = small_pair(**cache)
    assert drafter.capturable
    engine = DSparkEngine(target, drafter)
    engine.use_graphs(ReplayedCapture)
    assert tokens(engine, random_prompts()) == wanted
    assert engine.draft_graphs is None
    (runner,) = drafter._graphs.runners.values()
    assert runner.capture.replays > runner.capture.captures > 2


def test_what_drafters_say_of_graphs(serve):
    gpu = torch.device("cuda")
    target, drafter = small_pair()
    drafter.model.capture_obstacle = "it reads"
    assert not_captured(drafter, gpu, None) == "it reads"
    ngram = NGramDrafter.for_target(target, block_size=2)
    assert "looks tokens up on the host" in not_captured(ngram, gpu, True)
    assert serve().drafter.capturable
