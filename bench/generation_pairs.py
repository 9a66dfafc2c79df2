"""The pair of models that generation benchmarks serve: the demo's, or the tests' tiny one."""

import dataclasses
import pathlib

import torch

from dspark_ext import engine

TINY = pathlib.Path(__file__).parents[1] / "tests" / "fixtures"
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclasses.dataclass
class Pair:
    """prompts: token ids, none of which the drafter saw in training."""

    name: str
    target: engine.HuggingFaceTarget
    drafter: engine.DSparkDrafter
    prompts: list[list[int]]


def held_out_prompts(tokenizer, count: int | None = None) -> list[list[int]]:
    from dspark_ext.demo import prompts, smollm2

    return [smollm2.encode_chat(tokenizer, text) for _, text in prompts.HELD_OUT[:count]]


def demo_pair(weights: str, max_requests: int, max_len: int) -> Pair:
    """SmolLM2-135M-Instruct (fetched once, `make demo`) and the drafter of this package."""
    from dspark_ext.demo import loading, smollm2
    from dspark_ext.draft_head.compact import CompactDraftHead

    model, tokenizer = smollm2.load()
    head = CompactDraftHead.load(loading.DRAFTER)
    prompts = held_out_prompts(tokenizer)
    return _pair(smollm2.NAME, model, head, prompts, weights, max_requests, max_len)


def tiny_pair(weights: str, max_requests: int, max_len: int) -> Pair:
    """A byte-level llama and its drafter, for a run that only shows that all works."""
    from dspark_ext.demo import tiny

    files = TINY / "tiny_target.safetensors", TINY / "tiny_drafter.safetensors"
    model, head = tiny.load_pair(*files)
    prompts = [tiny.encode(text) for text in tiny.PROMPTS]
    return _pair("tiny", model, head, prompts, weights, max_requests, max_len)


def _pair(name, model, head, prompts, weights, max_requests, max_len) -> Pair:
    target = engine.HuggingFaceTarget(
        model,
        head.config.dspark_target_layer_ids,
        max_requests=max_requests,
        max_len=max_len,
        weight_dtype=DTYPES[weights],
    )
    drafter = engine.DSparkDrafter.for_target(head, target, DTYPES[weights])
    return Pair(name, target, drafter, prompts)
