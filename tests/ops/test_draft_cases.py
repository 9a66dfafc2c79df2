"""Failures from the field, as far as drafts come from markov_sample: tests/CASES.md."""

import pytest
import torch
from draft_inputs import HEADS, assert_same, bits, head, part, sample
from draft_rounds import VOCAB, draft_many, first_pair, pair_law, toy, verify
from lawkit import assert_law

from dspark_ext import draft, sampling

METHODS = ["block", "token"]
DRAFTS = pytest.mark.parametrize("drafts", range(1, 17), ids=lambda k: f"K={k}")


def kind_of(drafts):
    return HEADS[drafts % len(HEADS)]


# --- BR-010: drafts drawn from one softmax, judged with another ----------------------------------


@DRAFTS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_br010_q_is_the_softmax_of_the_logits_kept(dtype, drafts):
    """The law sampled from, the law that verification forms, and float64: one and the same."""
    it = head(3, drafts, 32, 8, kind=kind_of(drafts), dtype=dtype, seed=drafts)
    output = sample(it, temperature=0.7)
    rows = output.logits.flatten(0, 1)
    judged = sampling.target_probs(rows, temperature=0.7).double()
    exact = (rows.double() / 0.7).softmax(-1)
    torch.testing.assert_close(judged, exact, atol=1e-6, rtol=1e-5)
    for k in range(drafts):
        ids, _ = sampling.sample(
            output.logits[:, k].contiguous(),
            temperature=0.7,
            seeds=it.seeds,
            positions=it.positions + k,
            stream="draft",
            slots=k,
        )
        assert torch.equal(ids, output.token_ids[:, k])


@pytest.mark.parametrize("method", METHODS)
def test_br010_law_with_bf16_logits(method):
    """200,000 rounds at temperature 0.7 over 32 ids: what is emitted follows the target."""
    it = toy(1, vocab=32, dtype=torch.bfloat16, seed=3)
    drawn = draft_many(it, 200_000, temperature=0.7)
    output = verify(it, drawn.token_ids, drawn.logits, temperature=0.7, method=method)
    assert_law(output.token_ids[:, 0], (it.target[int(it.anchor)].double() / 0.7).softmax(-1))
    drafted = (drawn.logits[0, 0].double() / 0.7).softmax(-1)
    assert_law(drawn.token_ids[:, 0], drafted)


@DRAFTS
@pytest.mark.parametrize("method", METHODS)
def test_br010_law_at_every_block_length(method, drafts):
    it = toy(drafts, kind=kind_of(drafts), dtype=torch.bfloat16, seed=drafts)
    drawn = draft_many(it, 5_000, temperature=0.8)
    output = verify(it, drawn.token_ids, drawn.logits, temperature=0.8, method=method)
    first, second = first_pair(it, output, temperature=0.8)
    assert_law(first * VOCAB + second, pair_law(it, temperature=0.8))
    assert int(output.num_accepted.max()) > 0


# --- BR-026: wrong at one draft depth only -------------------------------------------------------


@pytest.mark.parametrize(
    ("vocab", "batch"),
    [
        pytest.param(v, b, marks=[pytest.mark.slow] if v * b > 10**6 else [])
        for v in (8, 4097, 129280)
        for b in (1, 3, 12)
    ],
    ids=lambda n: str(n),
)
def test_br026_every_depth_stops_at_the_planted_mismatch(vocab, batch):
    """Greedy drafts of every K; the target agrees with the rows kept but for one position, every
    position once."""
    it = head(batch, 16, vocab, 3, dtype=torch.bfloat16, seed=vocab)
    for drafts in range(1, 17):
        drawn = sample(it, method="greedy", num_drafts=drafts)
        argmax = drawn.logits.float().argmax(-1)
        assert torch.equal(drawn.token_ids, argmax), drafts
        target = torch.cat([drawn.logits, drawn.logits[:, :1]], 1)
        for first in range(0, drafts + 1, batch):
            planted = (first + torch.arange(batch)) % (drafts + 1)  # drafts: none
            rows = target.clone()
            for b in range(batch):
                at = int(planted[b])
                if at < drafts:
                    rows[b, at, (argmax[b, at] + 1) % vocab] = 3e4
            output = sampling.rejection_sample(
                rows.flatten(0, 1),
                drawn.token_ids,
                query_start_loc=torch.arange(batch + 1, dtype=torch.int32) * (drafts + 1),
                temperature=torch.zeros(batch),
                seeds=it.seeds,
                positions=it.positions,
            )
            assert output.num_accepted.tolist() == planted.tolist(), drafts


@pytest.mark.parametrize("kind", HEADS)
def test_br026_no_depth_is_special(kind):
    """Whatever K, draft k is the same: of the first K rows, or of the first K drafts of 16 rows."""
    it = head(5, 16, 300, 12, kind=kind, dtype=torch.bfloat16)
    longest = sample(it)
    for drafts in range(17):
        expected = part(longest, (slice(None), slice(drafts)))
        assert_same(sample(it, num_drafts=drafts), expected)
        hidden = None if it.hidden is None else it.hidden[:, :drafts]
        shorter = draft.markov_sample(
            it.base_logits[:, :drafts],
            it.anchor,
            it.w1,
            it.w2,
            head=kind,
            hidden=hidden,
            head_weight=it.head_weight,
            head_bias=it.head_bias,
            temperature=it.temperature,
            seeds=it.seeds,
            positions=it.positions,
        )
        assert_same(shorter, expected)


# --- BR-064: fewer, or more, drafts than the trained block ----------------------------------------


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("drafts", range(17), ids=lambda n: f"n={n}")
def test_br064_any_number_of_drafts_is_lossless(drafts, kind):
    """A block of 7 was trained, say: n = 0..7 takes the first rows of it, n up to 16 rows beyond.
    The law of the first two tokens is the target's each time."""
    method = METHODS[drafts % 2]
    it = toy(16 if drafts > 7 else 7, kind=kind, seed=7)
    drawn = draft_many(it, 5_000, num_drafts=drafts)
    assert drawn.token_ids.shape == (5_000, drafts)
    output = verify(it, drawn.token_ids, drawn.logits, method=method)
    first, second = first_pair(it, output)
    assert_law(first * VOCAB + second, pair_law(it))
    assert bool((output.num_accepted <= drafts).all())


# --- BR-066: the draft filtered like the target --------------------------------------------------


def draft_filtered(it, rounds, drafts, temperature, top_k, top_p):
    """The recipe of docs/drafting.md: one draft at a time, its row cut to the request's filters."""
    filters = {
        "top_k": torch.full((rounds,), top_k, dtype=torch.int32),
        "top_p": torch.full((rounds,), top_p),
    }
    seeds = torch.arange(rounds)
    previous = it.anchor.expand(rounds).contiguous()
    ids, rows = [], []
    for k in range(drafts):
        base = it.base_logits[:, k : k + 1].expand(rounds, -1, -1)
        step = draft.markov_sample(
            base, previous, it.w1, it.w2, temperature=temperature, seeds=seeds, positions=1 + k
        )
        logits = step.logits[:, 0]
        kept = sampling.target_probs(logits, temperature=temperature, **filters) > 0
        logits = logits.masked_fill(~kept, -torch.inf)
        previous, _ = sampling.sample(
            logits, temperature=temperature, seeds=seeds, positions=1 + k, stream="draft", slots=k
        )
        ids.append(previous)
        rows.append(logits)
    return torch.stack(ids, 1), torch.stack(rows, 1), filters


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drafts", [1, 2, 3, 7, 16], ids=lambda k: f"K={k}")
def test_br066_a_filtered_draft_keeps_the_law(method, drafts):
    """q cut to top-k 3 and top-p 0.8, or not, p cut: the same law with either q."""
    rounds, temperature = 8_000, 0.9
    it = toy(drafts, seed=drafts)
    ids, rows, filters = draft_filtered(it, rounds, drafts, temperature, 3, 0.8)
    tight = verify(it, ids, rows, temperature=temperature, method=method, **filters)
    plain = draft_many(it, rounds, temperature=temperature)
    loose = verify(
        it, plain.token_ids, plain.logits, temperature=temperature, method=method, **filters
    )
    chain = sampling.target_probs(
        it.target,
        temperature=temperature,
        top_k=torch.full((VOCAB,), 3, dtype=torch.int32),
        top_p=torch.full((VOCAB,), 0.8),
    ).double()
    law = (chain[int(it.anchor)][:, None] * chain).flatten()
    one = {name: value[:1] for name, value in filters.items()}
    for output in (tight, loose):
        first, second = first_pair(it, output, temperature=temperature, **one)
        assert_law(first * VOCAB + second, law)
    assert bool((rows == -torch.inf).any()) and bool((plain.logits > -torch.inf).all())


def test_br066_a_draft_inside_a_point_target_is_always_accepted():
    """top_k = 1 for both: the draft is the argmax of its row; where that is the target's, it
    stays for sure, and with the loose q it stays as often as q says."""
    rounds = 4_000
    it = toy(1, seed=12)
    it.target[int(it.anchor)] = it.base_logits[0, 0] + it.w2 @ it.w1[int(it.anchor)]
    ids, rows, filters = draft_filtered(it, rounds, 1, 1.0, 1, 1.0)
    assert bool((verify(it, ids, rows, **filters).num_accepted == 1).all())
    plain = draft_many(it, rounds)
    loose = verify(it, plain.token_ids, plain.logits, **filters)
    q = float(plain.logits[0, 0].double().softmax(-1).max())
    rate = float(loose.num_accepted.double().mean())
    assert abs(rate - q) < 5 * (q * (1 - q) / rounds) ** 0.5


def test_br066_masking_before_the_block_filters_every_row():
    """A mask known beforehand (a grammar, a fixed set) goes into base_logits: -inf stays -inf, and
    rows kept and q are those of the masked drafter, with any head."""
    for kind in HEADS:
        it = head(20, 4, 40, 8, kind=kind)
        allowed = torch.rand(20, 4, 40, generator=torch.Generator().manual_seed(1)) < 0.3
        allowed[..., 5] = True
        it.base_logits = it.base_logits.masked_fill(~allowed, -torch.inf)
        output = sample(it)
        assert torch.equal(output.logits == -torch.inf, ~allowed)
        assert bool(allowed.gather(-1, output.token_ids[..., None]).all())
        again = sample(it, exact=True)
        assert torch.equal(bits(output.logits), bits(again.logits))
