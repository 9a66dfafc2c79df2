"""dspark_ext.draft.markov_sample: the logits kept are what was sampled from, to the bit."""

from types import SimpleNamespace

import pytest
import torch
from draft_inputs import assert_same, check_block, head, part, sample
from lawkit import assert_law

from dspark_ext import draft, sampling
from dspark_ext.reference import draft as reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("weights", DTYPES, ids=lambda d: f"weights={str(d)[6:]}")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: f"logits={str(d)[6:]}")
def test_keeps_what_it_sampled_from(dtype, weights):
    it = head(5, 4, 300, 24, dtype=dtype, weights=weights)
    output = sample(it)
    assert output.token_ids.dtype == torch.int64 and output.logits.dtype == dtype
    assert output.prev_embed.dtype == weights and output.prev_embed.shape == (5, 4, 24)
    check_block(it, output)


@pytest.mark.parametrize("rank", [1, 2, 15, 16, 17, 64, 100], ids=lambda r: f"rank={r}")
def test_every_rank(rank):
    it = head(3, 3, 33, rank)
    check_block(it, sample(it))


@pytest.mark.parametrize("vocab", [1, 2, 7, 255, 4095, 4096, 4097, 9000], ids=lambda v: f"V={v}")
def test_every_vocabulary(vocab):
    it = head(2, 3, vocab, 8, seed=vocab)
    check_block(it, sample(it))


@pytest.mark.parametrize("steps", [1, 2, 7, 16], ids=lambda k: f"K={k}")
def test_every_block_length(steps):
    it = head(3, steps, 50, 16)
    check_block(it, sample(it))


def test_float64_specification_draws_the_same_ids():
    it = head(40, 5, 200, 32, seed=4)
    output = sample(it)
    uniforms = reference.draft_uniforms(it.seeds, it.positions, 5)
    expected = reference.markov_sample(
        it.base_logits, it.anchor, it.w1, it.w2, uniforms=uniforms, temperature=it.temperature
    )
    assert_same(output, expected)


def test_every_draft_is_a_plain_sample():
    """A slot of a block is `sampling.sample` on the DRAFT stream, or on that slot's uniform."""
    it = head(30, 3, 500, 16, dtype=torch.bfloat16)
    output = sample(it)
    options = {"temperature": it.temperature, "seeds": it.seeds}
    ids, _ = sampling.sample(
        output.logits[:, 0].contiguous(), positions=it.positions, stream="draft", **options
    )
    assert torch.equal(ids, output.token_ids[:, 0])
    for k in range(3):
        row = {"positions": it.positions + k, "stream": "draft", "slots": k, **options}
        ids, _ = sampling.sample(output.logits[:, k].contiguous(), **row)
        assert torch.equal(ids, output.token_ids[:, k])
    with pytest.raises(RuntimeError, match="slots"):
        sampling.sample(output.logits[:, 0].contiguous(), positions=0, slots=1, **options)
    uniforms = reference.draft_uniforms(it.seeds, it.positions, 3)
    for k in range(3):
        ids, _ = sampling.sample(
            output.logits[:, k].contiguous(),
            positions=it.positions + k,
            uniforms=uniforms[:, k].contiguous(),
            **options,
        )
        assert torch.equal(ids, output.token_ids[:, k])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_law_of_two_drafts(temperature):
    """30,000 seeds: (x_1, x_2) follows q(x_1) q(x_2 | x_1); false alarm rate 1e-6 each."""
    batch, vocab = 30000, 5
    it = head(1, 2, vocab, 4, seed=2)
    many = SimpleNamespace(**vars(it))
    many.base_logits = it.base_logits.expand(batch, -1, -1).contiguous()
    many.anchor = it.anchor.expand(batch).contiguous()
    many.seeds, many.positions = torch.arange(batch), torch.zeros(batch, dtype=torch.int64)
    output = sample(many, temperature=temperature)
    law = torch.empty(vocab, vocab, dtype=torch.float64)
    bias = it.w2.double() @ it.w1.double().T  # [V, previous]
    base = it.base_logits[0].double()
    first = torch.softmax((base[0] + bias[:, int(it.anchor)]) / temperature, 0)
    for x in range(vocab):
        law[x] = first[x] * torch.softmax((base[1] + bias[:, x]) / temperature, 0)
    assert_law(output.token_ids[:, 0] * vocab + output.token_ids[:, 1], law.flatten())


def test_consecutive_drafts_use_independent_draws():
    """With a flat law the ids of neighbouring slots are independent (false alarm rate 1e-6)."""
    batch, vocab = 20000, 4
    zeros = torch.zeros(batch, 2, vocab)
    output = draft.markov_sample(
        zeros,
        torch.zeros(batch, dtype=torch.int64),
        torch.zeros(vocab, 2),
        torch.zeros(vocab, 2),
        temperature=1.0,
        seeds=torch.arange(batch),
        positions=3,
    )
    pair = output.token_ids[:, 0] * vocab + output.token_ids[:, 1]
    assert_law(pair, torch.full((vocab * vocab,), 1 / vocab**2))


# --- greedy, reduced vocabulary, awkward rows ----------------------------------------------------


@pytest.mark.parametrize("vocab", [5, 64, 4097, 8200], ids=lambda v: f"V={v}")
def test_greedy_ties_take_the_lowest_id(vocab):
    low, high = vocab // 3, vocab - 1
    base = torch.zeros(1, 2, vocab)
    base[..., [low, high]] = 4.0
    zeros = torch.zeros(vocab, 3)
    for options in ({"temperature": 0.0}, {"temperature": -0.0}, {"temperature": 1.0}):
        method = "greedy" if options["temperature"] else "probabilistic"
        output = draft.markov_sample(
            base, torch.tensor([0]), zeros, zeros, method=method, seeds=0, positions=0, **options
        )
        assert output.token_ids.tolist() == [[low, low]]


def test_greedy_rows_among_sampled_ones():
    it = head(12, 4, 100, 8)
    it.temperature[::2] = 0
    mixed = sample(it)
    check_block(it, mixed)
    greedy = sample(it, method="greedy")
    assert torch.equal(mixed.token_ids[::2], greedy.token_ids[::2])
    assert not torch.equal(mixed.token_ids[1::2], greedy.token_ids[1::2])
    argmax = greedy.logits.float().argmax(-1)
    assert torch.equal(greedy.token_ids, argmax)
    check_block(it, greedy, method="greedy")


def test_rounding_decides_greedy_ties():
    """Logits that differ in float32 but not in bf16 are a tie: the draw reads the rounded ones."""
    base = torch.tensor([[[0.0, 1.0, 1.0]]], dtype=torch.bfloat16)
    w2 = torch.tensor([[0.0], [0.0], [0.001]])
    output = draft.markov_sample(
        base, torch.tensor([0]), torch.ones(3, 1), w2, temperature=0.0, seeds=0, positions=0
    )
    assert output.token_ids.tolist() == [[1]] and output.logits[0, 0, 2] == 1.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reduced_vocabulary(dtype):
    it = head(6, 4, 40, 8, target=150, dtype=dtype, seed=8)
    output = sample(it)
    assert output.logits.shape == (6, 4, 150)
    check_block(it, output)
    known = torch.arange(40) + it.d2t
    unknown = torch.ones(150, dtype=torch.bool)
    unknown[known] = False
    assert bool((output.logits[..., unknown] == -torch.inf).all())
    assert bool(torch.isin(output.token_ids, known).all())


def test_reduced_vocabulary_in_another_order():
    """d2t need not rise: target ids are distinct, that is all."""
    it = head(4, 3, 30, 8, target=90, seed=9)
    shuffled = torch.randperm(90, generator=torch.Generator().manual_seed(3))[:30]
    it.d2t = shuffled - torch.arange(30)
    check_block(it, sample(it))


def test_wider_logits_than_the_draft_vocabulary():
    it = head(3, 2, 20, 4)
    output = sample(it, vocab_size=20)
    assert_same(output, sample(it))
    reduced = head(3, 2, 20, 4, target=64)
    assert sample(reduced, vocab_size=64).logits.shape == (3, 2, 64)


def test_excluded_ids_are_never_drawn():
    it = head(500, 2, 16, 4)
    it.base_logits[:, :, 5:] = -torch.inf
    it.base_logits[::3, :, 1] = float("nan")
    output = sample(it)
    assert int(output.token_ids.max()) <= 4
    assert not bool((output.token_ids[::3] == 1).any())


@pytest.mark.parametrize("fill", [float("nan"), -torch.inf], ids=["nan", "-inf"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_without_any_mass_yields_id_zero(fill, temperature):
    """In range, so that the embedding of the next step exists; other requests do not notice."""
    it = head(3, 3, 50, 4)
    clean = sample(it, temperature=temperature)
    it.base_logits[1, 1] = fill
    output = sample(it, temperature=temperature)
    assert int(output.token_ids[1, 1]) == 0
    assert torch.equal(output.prev_embed[1, 2], it.w1[0])
    assert_same(part(output, [0, 2]), part(clean, [0, 2]))


def test_infinite_logits_share_the_mass():
    base = torch.zeros(400, 1, 9)
    base[:, :, [2, 6]] = torch.inf
    zeros = torch.zeros(9, 2)
    output = draft.markov_sample(
        base,
        torch.zeros(400, dtype=torch.int64),
        zeros,
        zeros,
        temperature=1.0,
        seeds=torch.arange(400),
        positions=0,
    )
    counts = torch.bincount(output.token_ids.flatten(), minlength=9)
    assert int(counts[2] + counts[6]) == 400 and int(counts[2]) > 100 < int(counts[6])


@pytest.mark.parametrize(("batch", "steps"), [(0, 3), (2, 0), (0, 0)])
def test_nothing_to_draft(batch, steps):
    it = head(batch, steps, 20, 4)
    output = sample(it)
    assert output.token_ids.shape == (batch, steps)
    assert output.logits.shape == (batch, steps, 20)
    assert output.prev_embed.shape == (batch, steps, 4)
