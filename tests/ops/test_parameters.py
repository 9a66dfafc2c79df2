"""Parameters of requests as people pass them: numbers and tensors of every kind."""

import math

import numpy as np
import pytest
import torch
from kit import bits_equal, same

from dspark_ext import draft, sampling

LOGITS = torch.randn(6, 10, generator=torch.Generator().manual_seed(2))
STARTS = torch.tensor([0, 3, 6])
IDS = torch.tensor([[1, 2], [3, 4]])


def reject(**changes):
    arguments = {"query_start_loc": STARTS, "temperature": 0.8, "seeds": 5, "positions": 9}
    return sampling.rejection_sample(LOGITS, IDS, **{**arguments, **changes})


def draws(**changes):
    return sampling.sample(LOGITS, **{"temperature": 0.8, "seeds": 5, "positions": 9, **changes})


def block(**changes):
    arguments = {"temperature": 0.8, "seeds": 5, "positions": 9, **changes}
    base = LOGITS.view(2, 3, 10)
    return draft.markov_sample(base, IDS[:, 0], torch.ones(10, 4), torch.ones(10, 4), **arguments)


CALLS = {"rejection_sample": reject, "sample": draws, "markov_sample": block}
FLOATS = ("temperature", "draft_temperature", "top_p", "min_p")
INTEGERS = ("top_k", "seeds", "positions")
WRONG_FLOATS = (1e39, -1e300, 1j, "1", [1.0, 1.0], np.ones(2), torch.tensor([1j, 1j]))
WRONG_INTEGERS = (
    1.7, 2.0, 2**63, -(2**63) - 1, np.uint64(2**64 - 1), np.float32(1.5), True, "1", [1, 2],
    math.inf,
    torch.tensor(1.5), torch.tensor([True, False]), torch.tensor([1j, 1j]),
)  # fmt: skip


WRONG = [
    *((name, value) for name in FLOATS for value in WRONG_FLOATS),
    *((name, value) for name in INTEGERS for value in WRONG_INTEGERS),
    *((name, None) for name in ("temperature", "seeds", "positions")),
]
NOT_TAKEN = {
    "rejection_sample": (),
    "sample": ("draft_temperature",),
    "markov_sample": ("draft_temperature", "top_k", "top_p", "min_p"),
}


@pytest.mark.parametrize(
    ("op", "name", "value"),
    [(op, *wrong) for op in CALLS for wrong in WRONG if wrong[0] not in NOT_TAKEN[op]],
    ids=str,
)
def test_what_is_no_such_number_is_refused_by_name(op, name, value):
    with pytest.raises(RuntimeError) as error:
        CALLS[op](**{name: value})
    assert str(error.value).startswith(f"dspark_ext.{op}: {name}: expected "), error.value
    assert ", got " in str(error.value)


@pytest.mark.parametrize("op", CALLS)
def test_numbers_of_other_types_are_numbers(op):
    want = CALLS[op](temperature=0.5, seeds=-(2**63), positions=2**63 - 9)
    for heat, seed in (
        (np.float32(0.5), np.int64(-(2**63))),
        (torch.tensor(0.5, dtype=torch.float64), torch.tensor(-(2**63))),
    ):
        got = CALLS[op](temperature=heat, seeds=seed, positions=2**63 - 9)
        assert bits_equal(want[0], got[0]) and bits_equal(want[1], got[1])


@pytest.mark.parametrize("op", CALLS)
def test_tensors_of_any_stride_and_width(op):
    size = 6 if op == "sample" else 2
    table = torch.linspace(0.5, 1.5, size)
    seeds = torch.arange(size)
    want = CALLS[op](temperature=table, seeds=seeds, positions=torch.full((size,), 3))
    got = CALLS[op](
        temperature=torch.stack([table, -table], 1)[:, 0],
        seeds=torch.stack([seeds, -seeds])[0].to(torch.uint8),
        positions=torch.tensor([3], dtype=torch.int16).expand(size),
    )
    assert bits_equal(want[0], got[0]) and bits_equal(want[1], got[1])


def test_filters_of_any_stride_and_width():
    table = torch.tensor([[3.0, 0.9, 0.1], [2.0, 0.5, 0.0]])
    top_k = table[:, 0].long().contiguous()
    want = reject(top_k=top_k, top_p=table[:, 1].contiguous(), min_p=table[:, 2].contiguous())
    got = reject(top_k=top_k.to(torch.int8), top_p=table[:, 1], min_p=table[:, 2].double())
    assert same(want[:5], got[:5])


def test_log_probabilities_are_not_forgotten():
    """Asked for, and no tensor to write them into."""
    out = reject()
    with pytest.raises(RuntimeError, match="out: expected a tensor for logprobs"):
        reject(return_logprobs=True, out=out)
    assert reject(out=out).logprobs is None


def test_br057_statistics_on_another_device_are_refused():
    """They come as a list of tensors."""
    logits = LOGITS[:4].view(2, 2, 10).contiguous()
    rows = draft.row_statistics(LOGITS[:4], 0.8)
    here = draft.RowStatistics(*(part.unflatten(0, (2, 2)) for part in rows))
    want = reject(draft_logits=logits)
    assert same(reject(draft_logits=logits, draft_statistics=here)[:5], want[:5])
    there = draft.RowStatistics(*(part.to("meta") for part in here))
    with pytest.raises(RuntimeError, match="draft_statistics: expected device cpu, got meta"):
        reject(draft_logits=logits, draft_statistics=there)


# ---- numbers that only a CPU can refuse ---------------------------------------------------------


@pytest.mark.parametrize("wrong", [math.nan, -0.1, 1.5, math.inf, -math.inf])
def test_uniforms_that_are_none_are_refused(wrong):
    """A NaN would draw the first id, whether or not it has mass."""
    uniforms = torch.full((6,), 0.5, dtype=torch.float64)
    uniforms[4] = wrong
    with pytest.raises(RuntimeError, match=r"sample: uniforms: expected numbers in \[0, 1\), got"):
        draws(uniforms=uniforms)
    with pytest.raises(RuntimeError, match=r"rejection_sample: uniforms: .* at index 4"):
        reject(uniforms=uniforms.view(2, 3))


@pytest.mark.parametrize("wrong", [-1, 2**31, 2**32, -(2**63)])
def test_slots_that_would_wrap_are_refused(wrong):
    """2^32 would draw as slot 0 does."""
    with pytest.raises(RuntimeError, match="sample: slots: expected 0 to 2.31 - 1, got"):
        draws(stream="draft", slots=wrong)
    last = draws(stream="draft", slots=2**31 - 1, temperature=9.0)
    assert not torch.equal(last.ids, draws(stream="draft", slots=0, temperature=9.0).ids)


def test_strides_are_told():
    wrong = torch.tensor([[0, 9], [3, 9], [6, 9]])[:, 0]
    with pytest.raises(
        RuntimeError, match=r"query_start_loc: expected a contiguous.* strides \[2\]"
    ):
        reject(query_start_loc=wrong)
