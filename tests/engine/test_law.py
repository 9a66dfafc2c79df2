"""Sampled output follows the target's filtered law, and depends on the seed alone."""

import pytest
import torch
from lawkit import FALSE_ALARM, assert_law, chi_square_p

from dspark_ext import sampling
from dspark_ext.demo import tiny
from dspark_ext.engine import DraftBatch, SamplingParams, TargetBatch

PROMPT = tiny.encode("self.")
RUNS = 1600


@pytest.fixture(scope="module")
def engine(serve):
    return serve(max_requests=64, max_len=16)


def next_law(engine, prefixes, params):
    """Exact law [len(prefixes), V] of the token after each prefix (all of one length)."""
    rows, length = len(prefixes), len(prefixes[0])
    ids = torch.tensor(prefixes).flatten()
    index = torch.arange(rows * length)
    batch = TargetBatch(ids, index % length, index // length, index.view(rows, length)[:, -1])
    logits = engine.target.forward(batch).logits
    return sampling.target_probs(
        logits, temperature=params.temperature, top_k=params.top_k, top_p=params.top_p
    ).double()


def assert_pair_law(drawn, engine, prompt, params):
    """Of the first two tokens [runs, 2]: the first, and the pairs behind its likeliest four."""
    first = next_law(engine, [prompt], params)[0]
    assert_law(drawn[:, 0], first, "first token")
    frequent = first.topk(4).indices
    second = next_law(engine, [[*prompt, int(token)] for token in frequent], params)
    pairs = (first[frequent, None] * second).flatten()
    cells = torch.full((256,), 4).scatter(0, frequent, torch.arange(4))[drawn[:, 0]]
    cells = torch.where(cells < 4, cells * 256 + drawn[:, 1], 4 * 256)
    assert_law(cells, torch.cat([pairs, 1 - pairs.sum(0, keepdim=True)]), "pairs")


@pytest.mark.parametrize("method", ["block", "token"])
@pytest.mark.parametrize(
    "law",
    [{"temperature": 1.0}, {"temperature": 1.4, "top_k": 12, "top_p": 0.95}],
    ids=["T=1", "T=1.4,top_k=12,top_p=0.95"],
)
def test_first_token_and_pairs_follow_the_target(serve, method, law):
    engine = serve(max_requests=64, max_len=16, rejection_sample_method=method)
    params = SamplingParams(max_new_tokens=6, **law)
    generation = engine.generate([PROMPT] * RUNS, params)
    drawn = torch.tensor([output.token_ids[:2] for output in generation.outputs])
    assert generation.stats.tokens_per_pass > 1.3
    assert_pair_law(drawn, engine, PROMPT, params)


def test_the_law_test_sees_an_unverified_draft(engine):
    """Negative control: the drafter's own first tokens do not follow the target's law."""
    params = SamplingParams(temperature=1.0)
    index = torch.arange(len(PROMPT) - 1)
    out = engine.target.forward(
        TargetBatch(torch.tensor(PROMPT[:-1]), index, torch.zeros_like(index), index)
    )
    engine.drafter.append(out.features, index, torch.zeros_like(index))
    same = torch.zeros(RUNS, dtype=torch.int64)
    batch = DraftBatch(
        same + PROMPT[-1], same + len(PROMPT) - 1, same, torch.ones(RUNS), torch.arange(RUNS)
    )
    drafts = engine.drafter.draft(batch, 1, "probabilistic").token_ids[:, 0]
    law = next_law(engine, [PROMPT], params)[0]
    assert chi_square_p(torch.bincount(drafts, minlength=256), law) < FALSE_ALARM


@pytest.mark.parametrize(
    "config",
    [{}, {"schedule": "threshold", "confidence_threshold": 0.5}],
    ids=["fixed", "threshold"],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_seed_gives_its_tokens_alone_or_in_a_batch(serve, prompts, dtype, config):
    params = [
        SamplingParams(temperature=0.6 + 0.1 * n, top_p=0.9, seed=1000 + n, max_new_tokens=24)
        for n in range(8)
    ]
    texts = [prompts[n % len(prompts)] for n in range(8)]
    batch = serve(dtype, max_requests=8, **config).generate(texts, params)
    alone = serve(dtype, max_requests=1, prefill_chunk=3, **config)
    for text, each, output in zip(texts, params, batch.outputs):
        assert alone.generate([text], each).outputs[0].token_ids == output.token_ids
    assert len({tuple(output.token_ids) for output in batch.outputs}) == 8


def test_derived_seeds_differ_by_request_and_engine_seed(serve, prompts):
    params = SamplingParams(temperature=1.0, max_new_tokens=16)
    runs = [
        serve(max_requests=4, seed=seed).generate([prompts[0]] * 4, params) for seed in (1, 1, 2)
    ]
    first, again, other = (
        [tuple(output.token_ids) for output in generation.outputs] for generation in runs
    )
    assert first == again
    assert len({*first, *other}) == 8
