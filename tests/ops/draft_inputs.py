"""Random inputs of markov_sample, and comparison to the bit."""

from types import SimpleNamespace

import torch

from dspark_ext import draft


def head(batch, steps, vocab, rank, *, dtype=torch.float32, weights=None, target=None, seed=0):
    """Random inputs; with `target` the drafter's vocabulary is `vocab` ids out of `target`."""
    generator = torch.Generator().manual_seed(seed)
    weights = dtype if weights is None else weights
    embeddings = vocab if target is None else target
    it = SimpleNamespace(
        base_logits=(torch.randn(batch, steps, vocab, generator=generator) * 2).to(dtype),
        anchor=torch.randint(0, embeddings, (batch,), generator=generator),
        w1=torch.randn(embeddings, rank, generator=generator).to(weights),
        w2=torch.randn(vocab, rank, generator=generator).to(weights),
        seeds=torch.randint(-(2**63), 2**63 - 1, (batch,), generator=generator),
        positions=torch.randint(0, 2**40, (batch,), generator=generator),
        temperature=torch.rand(batch, generator=generator) + 0.3,
        d2t=None,
    )
    if target is not None:
        ids = torch.randperm(target, generator=generator)[:vocab].sort().values
        it.d2t = ids - torch.arange(vocab)
    return it


def sample(it, rows=None, **changes):
    rows = slice(None) if rows is None else rows
    arguments = {
        "temperature": it.temperature[rows],
        "seeds": it.seeds[rows],
        "positions": it.positions[rows],
        "d2t": it.d2t,
        **changes,
    }
    return draft.markov_sample(it.base_logits[rows], it.anchor[rows], it.w1, it.w2, **arguments)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_same(one, two):
    for name, a, b in zip(one._fields, one, two):
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b)), name
