"""Default-path logits of markov_logits; as a script, prints how they compare under the
DSPARK_CPU_ISA of its process."""

import json

import torch
from draft_inputs import HEADS, assert_same, bits, head, joined, sample

from dspark_ext import _C, draft

# Requests, vocabulary, rank: one group and several, whole passes of 32 rows and parts of them,
# whole steps of 32 entries and parts of them.
SHAPES = (
    (1, 64, 32),
    (5, 129, 24),
    (16, 70, 40),
    (17, 31, 256),
    (33, 200, 8),
    (64, 97, 100),
    (3, 1, 1),
)


def step(it, exact, rows=slice(None)):
    return draft.markov_logits(
        it.base_logits[rows, 0],
        it.anchor[rows],
        it.w1,
        it.w2,
        head=it.head,
        hidden=None if it.hidden is None else it.hidden[rows, 0],
        head_weight=it.head_weight,
        head_bias=it.head_bias,
        exact=exact,
    ).logits


def error_of_vanilla(shape, dtype):
    """Largest distance from float64, in units of what rounding may do: an ulp of the logits' dtype
    and 2^-24 per product of the sum of magnitudes."""
    batch, vocab, rank = shape
    it = head(batch, 1, vocab, rank, dtype=dtype, weights=torch.bfloat16, seed=rank)
    u, w2 = it.w1[it.anchor].double(), it.w2.double()
    want = it.base_logits[:, 0].double() + u @ w2.T
    bound = (rank + 2) * 2.0**-24 * (u.abs() @ w2.abs().T + want.abs())
    bound += torch.finfo(dtype).eps / 2 * want.abs()
    return float(((step(it, False).double() - want).abs() / bound).max())


def error_of_head(kind, shape):
    """The same against the exact path, with 2^-8 for the rounding of u."""
    batch, vocab, rank = shape
    it = head(batch, 1, vocab, rank, kind=kind, weights=torch.bfloat16, seed=rank)
    bound = 2.0**-8 * it.w2.double().abs().sum(1)  # |u| <= |e| |sigmoid| or 1
    if kind == "gated":
        bound = 2.0**-8 * it.w1[it.anchor].double().abs() @ it.w2.double().abs().T
    difference = (step(it, False) - step(it, True)).double().abs()
    return float((difference / (bound + 1e-5)).max())


def differs_from_exact(dtype):
    it = head(9, 1, 300, 64, weights=dtype, seed=2)
    return not torch.equal(bits(step(it, False)), bits(step(it, True)))


def is_independent_of_the_batch(kind):
    it = head(37, 3, 300, 72, kind=kind, weights=torch.bfloat16, seed=3)
    whole = sample(it, exact=False)
    pieces = [sample(it, rows, exact=False) for rows in torch.arange(37).split([1, 15, 17, 4])]
    assert_same(whole, joined(pieces))
    return True


def spreads_an_infinity():
    """A row of w2 with an infinity spoils its own column and no other; nor do the entries behind
    the last one of a row."""
    it = head(20, 1, 90, 24, weights=torch.bfloat16, seed=4)
    clean = step(it, False)
    it.w2[33] = torch.inf
    it.w2[34] = torch.nan
    found = step(it, False)
    others = [v for v in range(90) if v not in (33, 34)]
    return not torch.equal(bits(found[:, others]), bits(clean[:, others]))


def results():
    return {
        "vanilla": max(
            error_of_vanilla(shape, dtype)
            for shape in SHAPES
            for dtype in (torch.float32, torch.bfloat16, torch.float16)
        ),
        "heads": max(error_of_head(kind, shape) for shape in SHAPES for kind in HEADS[1:]),
        "differs": {
            str(dtype): differs_from_exact(dtype)
            for dtype in (torch.float32, torch.bfloat16, torch.float16)
        },
        "independent": [is_independent_of_the_batch(kind) for kind in HEADS],
        "spreads": spreads_an_infinity(),
    }


if __name__ == "__main__":
    print(json.dumps({"unit": _C.cpu_pair_unit(), **results()}))
