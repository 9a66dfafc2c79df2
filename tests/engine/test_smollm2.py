"""The demo's pair: needs SmolLM2's weights (fetched once) and the committed drafter."""

import pytest
import torch

from dspark_ext.demo import loading, smollm2
from dspark_ext.demo.prompts import DEMO
from dspark_ext.draft_head.compact import CompactDraftHead
from dspark_ext.engine import DSparkDrafter, DSparkEngine, HuggingFaceTarget, SamplingParams

pytestmark = pytest.mark.demo


@pytest.fixture(scope="module")
def model():
    return smollm2.load()


@pytest.mark.parametrize("dtype", loading.DTYPES)
def test_greedy_equals_plain_and_transformers(model, dtype):
    model, tokenizer = model
    head = CompactDraftHead.load(loading.DRAFTER)
    weight_dtype = loading.DTYPES[dtype]
    target = HuggingFaceTarget(
        model,
        head.config.dspark_target_layer_ids,
        max_requests=3,
        max_len=160,
        weight_dtype=weight_dtype,
    )
    engine = DSparkEngine(target, DSparkDrafter.for_target(head, target, weight_dtype))
    prompts = [smollm2.encode_chat(tokenizer, question) for question in DEMO.values()]
    params = SamplingParams(temperature=0.0, max_new_tokens=32)
    drafted, plain = (engine.generate(prompts, params, speculative=flag) for flag in (True, False))
    tokens = [output.token_ids for output in plain.outputs]
    assert [output.token_ids for output in drafted.outputs] == tokens
    assert drafted.stats.tokens_per_pass > 1.2
    if dtype == "fp32":
        with torch.inference_mode():
            for prompt, expected in zip(prompts, tokens):
                answer = model.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)
                assert answer[0, len(prompt) :].tolist() == expected
