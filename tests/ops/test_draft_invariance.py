"""dspark_ext.draft.markov_sample: a request's draft depends on nothing but the request; errors."""

import pytest
import torch
from draft_inputs import HEADS, assert_same, bits, head, joined, part, sample

from dspark_ext import draft


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_request_does_not_depend_on_the_batch(dtype, kind):
    """64 requests: permuted, split, alone; every tensor to the bit."""
    it = head(64, 4, 700, 24, kind=kind, dtype=dtype, seed=6)
    it.temperature[::5] = 0
    whole = sample(it)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    assert_same(sample(it, order), part(whole, order))
    for parts in ([17, 47], [1] * 64, [3, 5, 8, 48]):
        pieces = [sample(it, rows) for rows in torch.arange(64).split(parts)]
        assert_same(whole, joined(pieces))


@pytest.mark.parametrize("kind", HEADS)
def test_a_prefix_of_the_block_is_a_shorter_block(kind):
    it = head(6, 5, 80, 8, kind=kind)
    whole = sample(it)
    for count in range(6):
        short = sample(it, num_drafts=count)
        assert_same(short, part(whole, (slice(None), slice(count))))


@pytest.mark.parametrize("kind", HEADS)
def test_thread_count_changes_nothing(kind):
    it = head(9, 3, 6000, 32, kind=kind, width=600, dtype=torch.bfloat16)
    threads, outputs = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            outputs.append(sample(it))
    finally:
        torch.set_num_threads(threads)
    for other in outputs[1:]:
        assert_same(outputs[0], other)


def test_float32_weights_have_one_order_on_a_cpu():
    it = head(4, 3, 300, 24)
    assert_same(sample(it, exact=False), sample(it))


def test_strided_logits_and_weights():
    it = head(4, 3, 60, 8, dtype=torch.bfloat16)
    whole = sample(it)
    wide = torch.zeros(4, 6, 64, dtype=torch.bfloat16)
    wide[:, ::2, :60] = it.base_logits
    it.base_logits = wide[:, ::2, :60]
    assert_same(sample(it), whole)
    it.w1, it.w2 = it.w1.T.contiguous().T, it.w2.T.contiguous().T
    assert_same(sample(it), whole)


def test_inputs_stay_as_they_are():
    it = head(4, 3, 60, 8, target=90, kind="rnn")
    tensors = {name: value for name, value in vars(it).items() if isinstance(value, torch.Tensor)}
    before = {name: value.clone() for name, value in tensors.items()}
    sample(it)
    assert len(tensors) == 11
    for name, value in tensors.items():
        assert torch.equal(bits(value), bits(before[name])), name


def test_numbers_stand_for_every_request():
    it = head(3, 2, 40, 8)
    one = sample(it, temperature=0.7, seeds=11, positions=5)
    two = sample(
        it,
        temperature=torch.full((3,), 0.7),
        seeds=torch.full((3,), 11),
        positions=torch.full((3,), 5),
    )
    assert_same(one, two)


def test_seed_and_position_decide():
    batch = 200
    flat = torch.zeros(batch, 1, 1000)
    arguments = (flat, torch.zeros(batch, dtype=torch.int64), torch.zeros(1000, 1))
    arguments = (*arguments, torch.zeros(1000, 1))
    seeds, positions = torch.arange(batch), torch.full((batch,), 9)

    def ids(**changes):
        options = {"temperature": 1.0, "seeds": seeds, "positions": positions, **changes}
        return draft.markov_sample(*arguments, **options).token_ids[:, 0]

    assert torch.equal(ids(), ids())
    for changes in ({"seeds": seeds + 1000}, {"positions": positions + 1}):
        assert int((ids() == ids(**changes)).sum()) < 10
    assert ids().unique().numel() > 150


def hostile(**changes):
    it = head(2, 3, 20, 4)
    arguments = {
        "base_logits": it.base_logits,
        "anchor": it.anchor,
        "w1": it.w1,
        "w2": it.w2,
        "temperature": 1.0,
        "seeds": it.seeds,
        "positions": it.positions,
    }
    return {**arguments, **changes}


def gated(**changes):
    """d = 8, r = 4"""
    options = {"head": "gated", "hidden": torch.zeros(2, 3, 8), "head_weight": torch.zeros(4, 12)}
    return {**options, **changes}


REDUCED = head(2, 3, 20, 4, target=30)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"base_logits": torch.zeros(2, 20)}, "base_logits"),
        ({"base_logits": torch.zeros(2, 3, 20, dtype=torch.float64)}, "base_logits"),
        ({"base_logits": torch.zeros(2, 3, 0)}, "base_logits|w2"),
        ({"anchor": torch.tensor([0])}, "anchor"),
        ({"anchor": torch.tensor([0, 20])}, "anchor"),
        ({"anchor": torch.tensor([0, -1])}, "anchor"),
        ({"w1": torch.zeros(20)}, "w1"),
        ({"w1": torch.zeros(20, 5)}, "w1|w2"),
        ({"w1": torch.zeros(20, 4, dtype=torch.float64)}, "w1"),
        ({"w2": torch.zeros(19, 4)}, "w2"),
        ({"w2": torch.zeros(20, 4, dtype=torch.int32)}, "w2"),
        ({"temperature": torch.ones(3)}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"seeds": torch.zeros(3, dtype=torch.int64)}, "seeds"),
        ({"positions": torch.zeros(1, dtype=torch.int64)}, "positions"),
        ({"num_drafts": 4}, "num_drafts"),
        ({"num_drafts": -1}, "num_drafts"),
        ({"vocab_size": 19}, "vocab_size"),
        ({"method": "gumbel"}, "method"),
        ({"head": "lstm"}, "head"),
        ({"head": "gated"}, "hidden"),
        ({"head": "gated", "hidden": torch.zeros(2, 3, 8)}, "head_weight"),
        (gated(hidden=torch.zeros(2, 2, 8)), "hidden"),
        (gated(hidden=torch.zeros(2, 3, 8, dtype=torch.int64)), "hidden"),
        (gated(head_weight=torch.zeros(4, 11)), "head_weight"),
        (gated(head_weight=torch.zeros(12, 12)), "head_weight"),
        (gated(head_bias=torch.zeros(5)), "head_bias"),
        (gated(head="rnn"), "head_weight"),
        (gated(head="rnn", head_weight=torch.zeros(12, 16), head_bias=torch.zeros(4)), "head_bias"),
        ({"head_weight": torch.zeros(4, 12)}, "head_weight"),
        ({"head_bias": torch.zeros(4)}, "head_bias"),
        ({"hidden": torch.zeros(2, 3, 8)}, "hidden"),
        ({"d2t": torch.zeros(19, dtype=torch.int64)}, "d2t"),
        ({"d2t": torch.ones(20, dtype=torch.int64)}, "d2t"),
        ({"d2t": -torch.ones(20, dtype=torch.int64)}, "d2t"),
        ({"d2t": -torch.arange(20)}, "d2t"),
        ({"d2t": torch.tensor([0] + 19 * [2**63 - 1])}, "d2t: expected offsets to distinct"),
        ({"d2t": torch.full((20,), 0.5)}, "d2t: expected integers, got float32"),
        ({"anchor": torch.tensor([0.5, 1.0])}, "anchor: expected integers, got float32"),
        ({"seeds": torch.tensor([0.5, 1.0])}, "seeds: expected integers, got float32"),
        ({"seeds": 0.5}, "seeds: expected a tensor or an integer from -2^63 to 2^63 - 1, got 0.5"),
        ({"positions": torch.tensor([True, False])}, "positions: expected integers, got bool"),
        ({"vocab_size": 2**40}, "at most 2147479551, got 1099511627776"),
    ],
)
def test_errors_name_operator_and_argument(changes, word):
    arguments = hostile(**changes)
    positional = [arguments.pop(name) for name in ("base_logits", "anchor", "w1", "w2")]
    with pytest.raises(RuntimeError) as error:
        draft.markov_sample(*positional, **arguments)
    message = str(error.value)
    assert "dspark_ext.markov_sample: " in message
    assert "expected" in message and "got" in message, message
    assert any(part in message for part in word.split("|")), message


@pytest.mark.parametrize("reduced", [False, True], ids=["full", "d2t"])
def test_opcheck(reduced):
    it = REDUCED if reduced else head(2, 3, 20, 4)
    vocab = 30 if reduced else 20
    torch.library.opcheck(
        torch.ops.dspark_ext.markov_sample.default,
        (it.base_logits, it.anchor, it.w1, it.w2, "vanilla", None, None, None, "probabilistic")
        + (it.temperature, it.seeds, it.positions, it.d2t, 3, vocab, False),
    )


def test_compiles_in_one_graph():
    compiled = torch.compile(draft.markov_sample, fullgraph=True, backend="aot_eager")
    arguments = hostile()
    positional = [arguments.pop(name) for name in ("base_logits", "anchor", "w1", "w2")]
    eager = draft.markov_sample(*positional, **arguments)
    assert_same(compiled(*positional, **arguments), eager)
