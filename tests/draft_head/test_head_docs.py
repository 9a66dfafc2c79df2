"""The example of docs/draft-head.md runs and is right about what it prints."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parents[2] / "docs/draft-head.md"


def test_the_first_example_runs():
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    names = {}
    exec(code, names)
    block, config = names["block"], names["config"]
    assert block.token_ids.shape == block.confidence.shape == (1, 7)
    assert block.logits.shape == (1, 7, config.vocab_size)
    assert names["head"].context.lengths.tolist() == [0, 0, 0, 20, 0, 0, 0, 0]


def test_links_resolve():
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", PAGE.read_text())
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
