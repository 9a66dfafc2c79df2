"""The examples of the engine's pages run as they are printed."""

import pathlib
import re

from random_models import served_model

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def run(page: str, names: dict) -> dict:
    for example in examples(page):
        exec(example, names)
    return names


def test_targets_and_drafters():
    names = run("targets-and-drafters.md", {"model": served_model("qwen2")})
    assert names["target"].num_features == 0
    assert names["paged"].pool.num_blocks == 8
