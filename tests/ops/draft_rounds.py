"""Rounds of markov_sample and rejection_sample over a toy target, whose law is known."""

import torch
from draft_inputs import head

from dspark_ext import draft, sampling

VOCAB = 4


def toy(steps, *, kind="vanilla", vocab=VOCAB, dtype=torch.float32, seed=0):
    """A drafter of one request, and `target` [V, V]: logits of the next token by the last one."""
    it = head(1, steps, vocab, 5, kind=kind, width=9, dtype=dtype, weights=torch.float32, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1000)
    it.target = torch.randn(vocab, vocab, generator=generator) * 1.5
    return it


def draft_many(it, rounds, *, temperature=1.0, num_drafts=None):
    """The same request `rounds` times, under seeds 0, 1, ..."""

    def many(tensor):
        return tensor.expand(rounds, *tensor.shape[1:]).contiguous()

    return draft.markov_sample(
        many(it.base_logits),
        many(it.anchor),
        it.w1,
        it.w2,
        head=it.head,
        hidden=None if it.hidden is None else many(it.hidden),
        head_weight=it.head_weight,
        head_bias=it.head_bias,
        temperature=temperature,
        seeds=torch.arange(rounds),
        positions=1,
        num_drafts=num_drafts,
    )


def target_rows(it, token_ids):
    """[rounds * (n + 1), V]: the target's rows after the anchor and after every draft."""
    anchor = it.anchor.expand(len(token_ids))[:, None]
    return it.target[torch.cat([anchor, token_ids], 1)].flatten(0, 1)


def verify(it, token_ids, draft_logits, *, temperature=1.0, method="block", **filters):
    rounds, drafts = token_ids.shape
    return sampling.rejection_sample(
        target_rows(it, token_ids),
        token_ids,
        draft_logits,
        query_start_loc=torch.arange(rounds + 1, dtype=torch.int32) * (drafts + 1),
        method=method,
        temperature=torch.full((rounds,), float(temperature)),
        seeds=torch.arange(rounds),
        positions=torch.ones(rounds, dtype=torch.int64),
        **filters,
    )


def first_pair(it, output, *, temperature=1.0, **filters):
    """The first two tokens of every round; where only one came, the second is drawn from the
    target as the next round would draw its first."""
    first = output.token_ids[:, 0]
    rounds = len(first)
    drawn, _ = sampling.sample(
        it.target[first],
        temperature=temperature,
        seeds=torch.arange(rounds) + 10**6,
        positions=2,
        **{name: value.expand(rounds).contiguous() for name, value in filters.items()},
    )
    if output.token_ids.shape[1] == 1:
        return first, drawn
    return first, torch.where(output.num_emitted > 1, output.token_ids[:, 1], drawn)


def pair_law(it, *, temperature=1.0):
    """[V * V] of the target's first two tokens after the anchor."""
    chain = (it.target.double() / temperature).softmax(-1)
    return (chain[int(it.anchor)][:, None] * chain).flatten()
