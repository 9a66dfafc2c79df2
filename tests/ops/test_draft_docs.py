"""The examples of docs/drafting.md run as they are printed, and do what is said of them."""

import pathlib
import re

import torch

from dspark_ext import verify

PAGE = pathlib.Path(__file__).parents[2] / "docs/drafting.md"
BATCH, DRAFTS, VOCAB, WIDTH, RANK = 3, 5, 60, 16, 8


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def given() -> dict:
    """What the examples take as given."""
    generator = torch.Generator().manual_seed(4)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    seq_lens = torch.tensor([5, 6, 7])
    return {
        "torch": torch,
        "hidden": random(BATCH, DRAFTS, WIDTH),
        "base_logits": random(BATCH, DRAFTS, VOCAB),
        "anchor": torch.tensor([1, 2, 3]),
        "w1": random(VOCAB, RANK),
        "w2": random(VOCAB, RANK),
        "weight": random(WIDTH + RANK),
        "bias": 0.1,
        "temperatures": torch.ones(DRAFTS),
        "temperature": torch.full((BATCH,), 0.8),
        "top_k": torch.full((BATCH,), 7, dtype=torch.int32),
        "top_p": torch.full((BATCH,), 0.9),
        "seeds": torch.arange(BATCH),
        "seq_lens": seq_lens,
        "positions": seq_lens + 1,
        "num_drafts": DRAFTS,
        "table": verify.CostTable([1, 8, 32], [1.0, 1.1, 1.2]),
    }


def test_the_loop_runs():
    names = given()
    before, after = examples()[0].split("...", 1)
    exec(before, names)
    rows = int(names["schedule"].num_rows)
    names["target_logits"] = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(5))
    exec("#" + after, names)
    output, verified = names["output"], names["schedule"].verify_lens
    assert bool((output.num_accepted <= verified).all()) and output.status.tolist() == [0] * BATCH


def test_the_recipe_for_filters_drafts_inside_them():
    names = given()
    loop, filtered, _ = examples()
    exec(loop.split("...", 1)[0], names)
    exec(filtered, names)
    ids, logits = names["draft_token_ids"], names["draft_logits"]
    kept = logits > -torch.inf
    assert ids.shape == (BATCH, DRAFTS) and logits.shape == (BATCH, DRAFTS, VOCAB)
    assert bool((kept.sum(-1) <= 7).all()) and bool(kept.gather(-1, ids[..., None]).all())
