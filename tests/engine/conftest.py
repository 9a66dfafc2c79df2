"""The trained tiny pair, served."""

from pathlib import Path

import pytest
import torch

from dspark_ext.demo import tiny
from dspark_ext.engine import DSparkDrafter, DSparkEngine, HuggingFaceTarget, SpeculativeConfig

FIXTURES = Path(__file__).parents[1] / "fixtures"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.fixture(scope="session")
def tiny_pair():
    """(transformers model, draft head)"""
    return tiny.load_pair(
        FIXTURES / "tiny_target.safetensors", FIXTURES / "tiny_drafter.safetensors"
    )


@pytest.fixture(scope="session")
def serve(tiny_pair):
    """serve(dtype, max_requests, max_len, **config) -> engine; targets and drafters are shared."""
    model, head = tiny_pair
    taps = head.config.dspark_target_layer_ids
    served = {}

    def make(dtype="fp32", max_requests=4, max_len=160, **config):
        key = dtype, max_requests, max_len
        if key not in served:
            target = HuggingFaceTarget(
                model, taps, max_requests=max_requests, max_len=max_len, weight_dtype=DTYPES[dtype]
            )
            served[key] = target, DSparkDrafter.for_target(head, target, DTYPES[dtype])
        return DSparkEngine(*served[key], SpeculativeConfig(**config), tokenizer=tiny)

    return make


@pytest.fixture(scope="session")
def prompts():
    return [tiny.encode(text) for text in tiny.PROMPTS]
