"""markov_sample with every head, against the definition to the bit and in float64."""

import math

import pytest
import torch
from draft_inputs import (
    HEADS,
    assert_same,
    check_block,
    for_each_step,
    head,
    reference_head,
    sample,
)
from lawkit import assert_law

from dspark_ext import draft
from dspark_ext.reference import draft as reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
RECURRENT = ("gated", "rnn")


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("weights", DTYPES, ids=lambda d: f"weights={str(d)[6:]}")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: f"logits={str(d)[6:]}")
def test_keeps_what_it_sampled_from(kind, dtype, weights):
    it = head(5, 4, 300, 24, kind=kind, width=70, dtype=dtype, weights=weights)
    output = sample(it)
    assert output.prev_embed.dtype == weights and output.logits.dtype == dtype
    check_block(it, output)


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("width", [1, 15, 16, 255, 256, 257, 700], ids=lambda d: f"d={d}")
@pytest.mark.parametrize("rank", [1, 2, 15, 16, 17, 33], ids=lambda r: f"r={r}")
def test_every_size(kind, rank, width):
    it = head(3, 3, 33, rank, kind=kind, width=width, seed=rank + width)
    check_block(it, sample(it))


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 8, 9, 13], ids=lambda b: f"B={b}")
def test_every_batch_size(kind, batch):
    it = head(batch, 3, 50, 20, kind=kind, width=300, dtype=torch.bfloat16, seed=batch)
    check_block(it, sample(it))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("steps", range(1, 17), ids=lambda k: f"K={k}")
def test_every_block_length(kind, steps):
    it = head(2, steps, 40, 8, kind=kind, seed=steps)
    check_block(it, sample(it))


@pytest.mark.parametrize("kind", RECURRENT)
def test_every_part_has_its_own_type(kind):
    it = head(3, 3, 60, 12, kind=kind, weights=torch.float32)
    types = [torch.bfloat16, torch.float16, torch.float32, torch.float16, torch.bfloat16]
    names = ["w1", "w2", "hidden", "head_weight", "head_bias"]
    for shift in range(3):
        for index, name in enumerate(names):
            setattr(it, name, getattr(it, name).to(types[(index + shift) % len(types)]))
        check_block(it, sample(it))


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_missing_bias_is_zero(kind):
    it = head(4, 3, 60, 12, kind=kind)
    it.head_bias = torch.zeros_like(it.head_bias)
    zeros = sample(it)
    assert_same(sample(it, head_bias=None), zeros)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logits_are_close_to_float64(kind, dtype):
    """Weights as they are stored, everything after in float64, the state too."""
    it = head(6, 6, 200, 64, kind=kind, width=500, dtype=torch.float32, weights=dtype, seed=3)
    output = sample(it)
    worst = 0.0

    def visit(b, k, u):
        nonlocal worst
        exact = reference.step_logits64(it.base_logits[b, k], u, it.w2)
        worst = max(worst, float((output.logits[b, k].double() - exact).abs().max()))

    for_each_step(it, output.token_ids, visit, step=reference.head_step64)
    scale = float(it.w2.float().norm(dim=1).max())
    assert worst < 2e-6 * scale, worst


@pytest.mark.parametrize("kind", RECURRENT)
def test_float64_specification_draws_the_same_ids(kind):
    it = head(30, 5, 200, 32, kind=kind, seed=4)
    output = sample(it)
    expected = reference.markov_sample(
        it.base_logits,
        it.anchor,
        it.w1,
        it.w2,
        uniforms=reference.draft_uniforms(it.seeds, it.positions, 5),
        temperature=it.temperature,
        head=reference_head(it),
        hidden=it.hidden,
    )
    assert_same(output, expected)


def test_functions_of_the_head_are_close_to_float64():
    """A gated head of rank 1 shows sigmoid, an rnn head tanh: error bounds of docs/numerics.md."""
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.linspace(-1e-3, 1e-3, 201)])
    special = torch.tensor([0.0, -0.0, 88.0, -88.0, 1e30, -1e30, math.inf, -math.inf])
    for values in (x, special):
        sigmoid, tanh = reference.sigmoid(values), reference.tanh(values)
        assert float((sigmoid.double() - values.double().sigmoid()).abs().max()) < 1.2e-7
        assert float((tanh.double() - values.double().tanh()).abs().max()) < 1.5e-7
        shape = (len(values), 1, 1)
        common = {
            "temperature": 0.0,
            "seeds": 0,
            "positions": 0,
            "hidden": values.reshape(shape),
        }
        one = torch.ones(1, 1)
        anchor = torch.zeros(len(values), dtype=torch.int64)
        gate = torch.tensor([[1.0, 0.0]])
        got = draft.markov_sample(
            torch.zeros(shape), anchor, one, one, head="gated", head_weight=gate, **common
        )
        assert torch.equal(got.logits.flatten(), sigmoid)
        joint = torch.tensor([[0.0, 0, 0], [0, 0, 0], [0, 0, 1]])
        got = draft.markov_sample(
            torch.zeros(shape), anchor, one, one, head="rnn", head_weight=joint, **common
        )
        assert torch.equal(got.logits.flatten(), tanh)
    assert bool(reference.tanh(torch.tensor([math.nan])).isnan())


def test_the_state_carries_over_the_block():
    """The third draft of an rnn head depends on the first row of hidden, a gated one does not."""
    for kind, remembers in (("gated", False), ("rnn", True)):
        it = head(8, 3, 50, 16, kind=kind, seed=5)
        first = sample(it, method="greedy")
        it.hidden = it.hidden.clone()
        it.hidden[:, 0] += 1
        second = sample(it, method="greedy")
        same = (first.token_ids == second.token_ids)[:, :2].all(1)
        assert int(same.sum()) > 0
        differs = (first.logits[same, 2] != second.logits[same, 2]).any()
        assert bool(differs) == remembers


@pytest.mark.parametrize("kind", RECURRENT)
def test_no_request_sees_the_state_of_another(kind):
    it = head(6, 4, 50, 16, kind=kind)
    clean = sample(it)
    it.hidden = it.hidden.clone()
    it.hidden[2] = float("nan")
    it.hidden[4] = float("inf")
    spoiled = sample(it)
    for name in ("token_ids", "logits", "prev_embed"):
        a, b = getattr(clean, name), getattr(spoiled, name)
        assert torch.equal(a[[0, 1, 3, 5]], b[[0, 1, 3, 5]])
    assert bool(spoiled.statistics.tile_nan[2].all()) and spoiled.token_ids[2].tolist() == [0] * 4


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_law_of_three_drafts(kind, temperature):
    """30,000 seeds: the block follows the product of its conditionals, which for these heads
    depend on the whole prefix; false alarm rate 1e-6 each."""
    batch, vocab = 30000, 4
    it = head(1, 3, vocab, 5, kind=kind, width=9, seed=2)
    output = draft.markov_sample(
        it.base_logits.expand(batch, -1, -1).contiguous(),
        it.anchor.expand(batch),
        it.w1,
        it.w2,
        head=kind,
        hidden=it.hidden.expand(batch, -1, -1).contiguous(),
        head_weight=it.head_weight,
        head_bias=it.head_bias,
        temperature=temperature,
        seeds=torch.arange(batch),
        positions=0,
    )
    law = torch.zeros(vocab, vocab, vocab, dtype=torch.float64)

    def walk(prefix, previous, state, chance):
        if len(prefix) == 3:
            law[prefix] = chance
            return
        k = len(prefix)
        u, state = reference.head_step64(
            reference_head(it), it.w1[previous], it.hidden[0, k], state
        )
        row = reference.step_logits64(it.base_logits[0, k], u, it.w2) / temperature
        for x, share in enumerate(torch.softmax(row, 0)):
            walk((*prefix, x), x, state, chance * share)

    walk((), int(it.anchor), torch.zeros(5), torch.tensor(1.0, dtype=torch.float64))
    assert abs(float(law.sum()) - 1) < 1e-12
    ids = output.token_ids
    assert_law((ids[:, 0] * vocab + ids[:, 1]) * vocab + ids[:, 2], law.flatten())


@pytest.mark.parametrize("kind", RECURRENT)
def test_opcheck(kind):
    it = head(2, 3, 20, 4, kind=kind, target=30)
    torch.library.opcheck(
        torch.ops.dspark_ext.markov_sample.default,
        (it.base_logits, it.anchor, it.w1, it.w2, kind, it.hidden, it.head_weight, it.head_bias)
        + ("probabilistic", it.temperature, it.seeds, it.positions, it.d2t, 3, 30, False),
    )


@pytest.mark.parametrize("kind", HEADS)
def test_compiles_in_one_graph(kind):
    it = head(2, 3, 20, 4, kind=kind)
    compiled = torch.compile(draft.markov_sample, fullgraph=True, backend="aot_eager")
    options = {
        "head": kind,
        "hidden": it.hidden,
        "head_weight": it.head_weight,
        "head_bias": it.head_bias,
        "temperature": 0.8,
        "seeds": it.seeds,
        "positions": it.positions,
    }
    arguments = (it.base_logits, it.anchor, it.w1, it.w2)
    assert_same(
        compiled(*arguments, **options),
        draft.markov_sample(*arguments, **options),
    )
