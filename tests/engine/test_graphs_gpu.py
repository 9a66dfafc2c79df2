"""Graphs of a real GPU: the tokens of an engine that captures are those of one that does not.

Without a GPU only the pieces are tried, with the CPU's stand-in for a graph.
"""

import copy

import backends
import draft_heads
import pytest
import torch
from random_models import VOCAB, served_model
from replayed_graphs import ReplayedCapture

from dspark_ext.engine import (
    CausalLMTarget,
    DSparkDrafter,
    DSparkEngine,
    HeadDrafter,
    NGramDrafter,
    SamplingParams,
    SmallModelDrafter,
    output_taps,
)

SIZES = dict(max_requests=3, max_len=64)
GPU = pytest.param(
    "cuda",
    marks=pytest.mark.skipif(
        not backends.gpu_available(), reason="needs a GPU that this build serves"
    ),
)
PARAMS = [
    SamplingParams(temperature=temperature, seed=5, max_new_tokens=length)
    for temperature, length in ((0.0, 20), (0.8, 7), (0.0, 11), (1.0, 16), (0.0, 9))
]
HEAD = draft_heads.dense("qwen3", hidden_size=48, vocab_size=VOCAB)


def prompts(vocab: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocab, (n,), generator=generator).tolist() * 2 for n in (3, 8, 2, 5, 11)]


def random_target(name, taps, device, **cache):
    return CausalLMTarget(served_model(name).to(device), taps, **SIZES, **cache)


def with_head(tiny_pair, device):
    target = random_target("llama", output_taps(HEAD), device, block_size=4)
    head = draft_heads.make(HEAD).to(device)
    return target, HeadDrafter.for_target(head, target)


def with_compact_head(tiny_pair, device):
    model, head = tiny_pair
    model = copy.deepcopy(model).to(device)
    target = CausalLMTarget(model, head.config.dspark_target_layer_ids, **SIZES)
    return target, DSparkDrafter.for_target(head, target)


def with_small_model(tiny_pair, device):
    target = random_target("mistral, window of 5", [], device)
    draft_model = CausalLMTarget(served_model("mistral, window of 5").to(device), **SIZES)
    return target, SmallModelDrafter(draft_model, block_size=3)


def with_ngrams(tiny_pair, device):
    target = random_target("gemma3, windows of 6", [], device, block_size=16, num_blocks=9)
    return target, NGramDrafter.for_target(target, min_ngram=1)


PAIRS = [with_head, with_compact_head, with_small_model, with_ngrams]


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
def test_an_engine_on_graphs_emits_the_same(tiny_pair, pair, device):
    target, drafter = pair(tiny_pair, device)
    texts = prompts(target.vocab_size)
    plain = DSparkEngine(target, drafter, graphs=False)
    assert plain.target_graphs is None
    wanted = [each.token_ids for each in plain.generate(texts, PARAMS).outputs]
    engine = DSparkEngine(target, drafter)
    if device == "cpu":
        engine.use_graphs(ReplayedCapture, drafts=drafter.capturable)
    else:
        reason = None if drafter.capturable else drafter.capture_obstacle
        assert engine.not_captured == {"target": None, "drafter": reason}
    for _ in range(2):
        assert [each.token_ids for each in engine.generate(texts, PARAMS).outputs] == wanted
    runners = list(engine.target_graphs.runners.values())
    if engine.draft_graphs is not None:
        runners += engine.draft_graphs.runners.values()
    assert all(runner.failure is None for runner in runners)
    assert sum(len(runner.captured) for runner in runners) >= 2
