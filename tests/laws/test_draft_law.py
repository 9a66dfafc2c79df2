"""The law of a drafted block, exactly: the share of the uniforms that leads to each id.

A draw is a step function of its uniform, and its steps are where the definition puts them: between
two neighbouring integers k of docs/numerics.md section 6. So the law of markov_sample is found by
enumeration: from the logits kept along every prefix, the exact rational share of every id, and the
product of the conditionals along every block. Nothing random is involved but the check that the
operator draws what the enumeration says.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from lawkit import assert_law

from dspark_ext import draft
from dspark_ext.reference import draft as reference
from dspark_ext.reference import numerics

VOCAB, DRAFTS, RANK, WIDTH = 3, 3, 5, 9


def toy(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = {"vanilla": None, "gated": (RANK, WIDTH + RANK), "rnn": (3 * RANK, 2 * RANK + WIDTH)}
    options = {"head": kind}
    if shape[kind]:
        options["hidden"] = torch.randn(1, DRAFTS, WIDTH, generator=generator)
        options["head_weight"] = torch.randn(shape[kind], generator=generator) / 3
        options["head_bias"] = torch.randn(shape[kind][0], generator=generator)
    base = torch.randn(1, DRAFTS, VOCAB, generator=generator) / 2
    w1 = torch.randn(VOCAB, RANK, generator=generator)
    w2 = torch.randn(VOCAB, RANK, generator=generator) / 2
    return base, torch.tensor([1]), w1, w2, options


def kept_logits(model, prefix):
    """The rows that markov_sample keeps when it drafts `prefix` and one more: by its definition."""
    base, anchor, w1, w2, options = model
    model_head = reference.Head(
        options["head"], options.get("head_weight"), options.get("head_bias")
    )
    state, rows, previous = torch.zeros(RANK), [], int(anchor)
    for k, token in enumerate((*prefix, None)):
        hidden = options["hidden"][0, k] if "hidden" in options else None
        u, state = reference.head_step(model_head, w1[previous], hidden, state)
        rows.append(reference.step_logits(base[0, k], u, w2))
        previous = token
    return rows


def exact_share(logits, temperature):
    """Rational chance of every id, over u uniform in (0, 1): its integers over their sum."""
    law = numerics.row_statistics(logits.float().numpy(), temperature)
    if temperature == 0:
        return [Fraction(int(i == int(np.argmax(law.weight)))) for i in range(VOCAB)]
    largest = float(law.weight.max())
    scale = 2.0 ** (50 - np.frexp(largest)[1])
    q = [int(np.floor(float(w) * scale)) for w in law.weight]
    return [Fraction(x, sum(q)) for x in q]


def exact_law(model, temperature):
    """The product of the conditionals along every block."""
    law = {}
    for block in itertools.product(range(VOCAB), repeat=DRAFTS):
        chance = Fraction(1)
        for k, token in enumerate(block):
            chance *= exact_share(kept_logits(model, block[:k])[-1], temperature)[token]
        law[block] = chance
    return law


@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.7])
def test_shares_are_the_softmax_of_the_float64_model(kind, temperature):
    """The exact law of a block against the model as it is defined, all in float64."""
    model = toy(kind, 4)
    law = exact_law(model, temperature)
    assert sum(law.values()) == 1
    base, anchor, w1, w2, options = model
    model_head = reference.Head(
        options["head"], options.get("head_weight"), options.get("head_bias")
    )

    def walk(block, chance, state, previous):
        if len(block) == DRAFTS:
            assert abs(float(law[block]) - chance) < 2e-6
            return
        k = len(block)
        hidden = options["hidden"][0, k] if "hidden" in options else None
        u, state = reference.head_step64(model_head, w1[previous], hidden, state)
        row = reference.step_logits64(base[0, k], u, w2)
        if temperature:
            shares = torch.softmax(row / temperature, 0).tolist()
        else:
            shares = torch.nn.functional.one_hot(row.argmax(), VOCAB).tolist()
        for token, share in enumerate(shares):
            walk((*block, token), chance * share, state, token)

    walk((), 1.0, torch.zeros(RANK), int(anchor))


@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_the_operator_draws_from_the_rows_of_the_enumeration(kind, temperature):
    """20,000 seeds: along every block that occurs the rows kept are those of the definition, to
    the bit, each id is the one its uniform points at, and the blocks follow the exact law (false
    alarm rate 1e-6)."""
    model, rounds = toy(kind, 4), 20_000
    base, anchor, w1, w2, options = model
    if "hidden" in options:
        options = {**options, "hidden": options["hidden"].expand(rounds, -1, -1).contiguous()}
    output = draft.markov_sample(
        base.expand(rounds, -1, -1).contiguous(),
        anchor.expand(rounds),
        w1,
        w2,
        temperature=temperature,
        seeds=torch.arange(rounds),
        positions=9,
        **options,
    )
    law = exact_law(model, temperature)
    code = (output.token_ids * torch.tensor([VOCAB**2, VOCAB, 1])).sum(1)
    assert_law(code, [float(law[block]) for block in sorted(law)])
    blocks = output.token_ids.unique(dim=0)
    likely = sum(chance > Fraction(1, 1000) for chance in law.values())
    assert len(blocks) >= likely > 5
    for block in blocks:
        rows = torch.stack(kept_logits(toy(kind, 4), tuple(block[:-1].tolist())))
        mine = (output.token_ids == block).all(1)
        assert bool((output.logits[mine] == rows).all())
    uniforms = reference.draft_uniforms(torch.arange(500), torch.full((500,), 9), DRAFTS)
    for b in range(500):
        for k in range(DRAFTS):
            shares = exact_share(output.logits[b, k], temperature)
            below = sum(shares[: int(output.token_ids[b, k])], Fraction(0))
            above = below + shares[int(output.token_ids[b, k])]
            u = Fraction(float(uniforms[b, k]))
            slack = Fraction(1, 2**45)  # the quotient of section 6 is taken in double
            assert below - slack <= u <= above + slack
