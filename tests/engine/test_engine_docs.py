"""The examples of the engine's pages run as they are printed."""

import collections
import pathlib
import queue
import re

import torch
from random_models import served_model

from dspark_ext.demo import tiny
from dspark_ext.engine import CausalLMTarget, DSparkEngine, NGramDrafter, SamplingParams

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def run(page: str, names: dict) -> dict:
    for example in examples(page):
        exec(example, names)
    return names


def test_targets_and_drafters():
    models = {"model": served_model("qwen2"), "small_model": served_model("gpt2")}
    names = run("targets-and-drafters.md", models)
    assert names["target"].num_features == 0 and len(names["run"].outputs) == 2
    assert names["paged"].pool.num_blocks == 8


def test_the_engine(tiny_pair, prompts, tmp_path, monkeypatch):
    """`drafter.safetensors` is the tiny drafter, `model` its target."""
    fixture = DOCS.parent / "tests/fixtures/tiny_drafter.safetensors"
    (tmp_path / "drafter.safetensors").write_bytes(fixture.read_bytes())
    monkeypatch.chdir(tmp_path)
    names = {
        "torch": torch,
        "model": tiny_pair[0],
        "tokenizer": tiny,
        "prompts": prompts,
        "params": SamplingParams(max_new_tokens=8),
        "grammar": lambda emitted: range(256),
        "queues": collections.defaultdict(queue.SimpleQueue),
    }
    run("engine.md", names)
    assert names["result"].outputs[0].text
    assert names["handle"].output.finish_reason in ("stop", "length", "cancelled")
    assert not names["engine"].has_work


def test_handover(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engines = []
    for _ in range(2):
        target = CausalLMTarget(served_model("qwen2"), max_requests=2, max_len=64)
        engines.append(DSparkEngine(target, NGramDrafter.for_target(target)))
    given = {"engine": engines[0], "other_engine": engines[1], "prompt": [4, 5, 6, 4, 5]}
    names = run("handover.md", given)
    assert names["output"].token_ids[:5] == names["handle"].token_ids[:5]
    assert len(names["output"].token_ids) == 12
