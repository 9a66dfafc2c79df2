"""Laws of many draws, where the CPU tests have fewer."""

import pytest
import torch
from gpukit import GPU
from kit import METHODS, log_rows
from lawkit import assert_law

from dspark_ext import sampling

DRAWS = 100_000


def test_br009_tail_of_a_large_vocabulary():
    """262144 ids share 3.3e-4: as many draws as that, spread over them evenly."""
    vocab, middle = 262_145, 131_072
    row = torch.full((1, vocab), -20.5)
    row[0, middle] = 0
    tail = 262_144 * torch.tensor(-20.5, dtype=torch.float64).exp().item()
    share = tail / (1 + tail)
    index = torch.arange(DRAWS, device=GPU)
    ids = sampling.sample(row.to(GPU).expand(DRAWS, vocab), seeds=index, positions=index).ids.cpu()
    below, above = int((ids < middle).sum()), int((ids > middle).sum())
    assert_law(
        torch.tensor([below, above, DRAWS - below - above], dtype=torch.float64),
        [share / 2, share / 2, 1 - share],
    )
    drawn = ids[ids != middle]
    assert len(drawn.unique()) == len(drawn), "tail ids repeat"


@pytest.mark.parametrize("vocab", [7, 5000], ids=lambda v: f"V={v}")
def test_law_of_a_draw(vocab):
    generator = torch.Generator().manual_seed(vocab)
    row = 2 * torch.randn(1, vocab, generator=generator)
    index = torch.arange(DRAWS, device=GPU)
    for filters in ({}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}):
        law = sampling.target_probs(row, **filters)[0]
        drawn = sampling.sample(
            row.to(GPU).expand(DRAWS, vocab), seeds=index, positions=0, **filters
        )
        assert_law(drawn.ids.cpu(), law.double() / law.double().sum(), f"{filters}")


@pytest.mark.parametrize("method", METHODS)
def test_law_of_a_verified_token(method):
    """Drafts drawn from q, verified against p: the first token follows p."""
    p, q = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]
    index = torch.arange(DRAWS, device=GPU)
    draft = log_rows([q]).to(GPU)
    options = {"seeds": index, "positions": torch.zeros_like(index)}
    ids = sampling.sample(draft.expand(DRAWS, 4), stream="draft", **options).ids[:, None]
    out = sampling.rejection_sample(
        log_rows([p]).to(GPU).expand(2 * DRAWS, 4), ids, draft.expand(DRAWS, 1, 4),
        query_start_loc=2 * torch.arange(DRAWS + 1, device=GPU, dtype=torch.int32),
        temperature=torch.ones(DRAWS, device=GPU), method=method, **options,
    )  # fmt: skip
    assert_law(out.token_ids[:, 0].cpu(), p)
    accepted = out.num_accepted == 1
    assert_law(out.token_ids[accepted, 1].cpu(), p)
    assert abs(float(accepted.double().mean()) - 0.6) < 0.01
