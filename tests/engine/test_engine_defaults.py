"""What an engine makes on the host, and on its device, does not follow torch's default device and
dtype: a program that puts new tensors on a GPU by default has engines on a CPU too."""

import pytest
import torch
from kit import default_dtype
from random_models import served_model
from table_models import TableDrafter, TableTarget, table

from dspark_ext.engine import (
    CausalLMTarget,
    DSparkDrafter,
    DSparkEngine,
    HuggingFaceTarget,
    NGramDrafter,
    SamplingParams,
    SmallModelDrafter,
    SpeculativeConfig,
)
from dspark_ext.verify import CostTable

LAW = table([[6, 2, 1], [1, 5, 3], [2, 1, 4]])
CONFIDENCE = torch.tensor([0.9, 0.4, 0.7])
COST = CostTable([1, 8], [1.0, 1.5])
SIZES = dict(max_requests=3, max_len=40)
PARAMS = [
    SamplingParams(temperature=0.0, max_new_tokens=12, stop_token_ids=(2,), min_new_tokens=9),
    SamplingParams(temperature=0.7, top_k=2, max_new_tokens=12, logit_bias=((1, 0.5),), seed=1),
    SamplingParams(top_p=0.9, max_new_tokens=12, repetition_penalty=1.2, logprobs=2, seed=2),
    SamplingParams(allowed_token_ids=(0, 1), max_new_tokens=5, frequency_penalty=0.1, seed=3),
]


def elsewhere(what: str):
    return torch.device("meta") if what == "device" else default_dtype(torch.float64)


def tables(config):
    drafter = TableDrafter(LAW, CONFIDENCE, 2, **SIZES)
    return TableTarget(LAW, **SIZES), drafter, config


def ngrams(model, **cache):
    target = HuggingFaceTarget(model, [], **SIZES, **cache)
    return target, NGramDrafter.for_target(target, min_ngram=1), {}


def small_model(model):
    target = HuggingFaceTarget(model, [], **SIZES)
    return target, SmallModelDrafter(HuggingFaceTarget(model, [], **SIZES), block_size=3), {}


def any_model(model):
    target = CausalLMTarget(model, [], **SIZES, block_size=4)
    return target, NGramDrafter.for_target(target, min_ngram=1), {}


def compact_head(tiny_pair):
    model, head = tiny_pair
    target = HuggingFaceTarget(model, head.config.dspark_target_layer_ids, **SIZES)
    return target, DSparkDrafter.for_target(head, target), {}


MAKE = {
    "fixed": lambda model, pair: tables({}),
    "lagged": lambda model, pair: tables({"schedule": "lagged", "cost_table": COST}),
    "thresholds": lambda model, pair: tables(
        {"schedule": "threshold", "confidence_threshold": [0.5, 0.6]}
    ),
    "blocks": lambda model, pair: tables({"blocks_per_step": 2, "continue_threshold": 0.3}),
    "synthetic": lambda model, pair: tables(
        {
            "rejection_sample_method": "synthetic",
            "allow_lossy": True,
            "synthetic_acceptance_rates": [0.9, 0.5],
        }
    ),
    "ngrams": lambda model, pair: ngrams(model),
    "ngrams, paged": lambda model, pair: ngrams(model, block_size=4),
    "small model": lambda model, pair: small_model(model),
    "any model": lambda model, pair: any_model(model),
    "compact head": lambda model, pair: compact_head(pair),
}


MODEL = served_model("llama")  # where its owner made it


def run(make, tiny_pair):
    target, drafter, config = make(MODEL, tiny_pair)
    engine = DSparkEngine(target, drafter, SpeculativeConfig(**config))
    prompts = [[1, 2, 0], [0] * 5, [1, 0, 1, 0, 1], [2]]
    outputs = engine.generate(prompts, PARAMS).outputs
    return [each.token_ids for each in outputs], engine.stats.acceptance.histogram.tolist()


@pytest.fixture(scope="module")
def wanted():
    return {}


@pytest.mark.filterwarnings("ignore:.*the table is flat")
@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("other", ["device", "dtype"])
def test_an_engine_emits_the_same(name, other, tiny_pair, wanted):
    if name not in wanted:
        wanted[name] = run(MAKE[name], tiny_pair)
    with elsewhere(other):
        assert run(MAKE[name], tiny_pair) == wanted[name]
