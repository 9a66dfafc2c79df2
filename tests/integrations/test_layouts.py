"""Conversions between engines' layouts and ours, against plain loops."""

import doctest

import pytest
import torch

from dspark_ext.integrations import flashinfer, layouts

LENGTHS = [[], [0], [3], [2, 0, 3], [0, 0], [1, 1, 1], [4, 2, 0, 4, 1]]


def ends_of(lengths, dtype=torch.int32):
    return torch.tensor(lengths, dtype=torch.int64).cumsum(0).to(dtype)


@pytest.mark.parametrize("module", [layouts, flashinfer])
def test_the_examples_of_the_docstrings(module):
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_row_starts_count_one_row_more_than_drafts(lengths, dtype):
    starts = layouts.query_start_loc_from_ends(ends_of(lengths, dtype))
    expected = [0]
    for n in lengths:
        expected.append(expected[-1] + n + 1)
    assert starts.tolist() == expected and starts.dtype == dtype


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_flat_drafts_and_rows_are_padded(lengths):
    ends, total, vocab = ends_of(lengths), sum(lengths), 3
    slots = max([*lengths, 1])
    ids = torch.arange(10, 10 + total, dtype=torch.int32)
    rows = torch.arange(float(total * vocab)).view(total, vocab)
    padded, padded_rows = layouts.pad_ids(ids, ends, slots), layouts.pad_rows(rows, ends, slots)
    assert padded.shape == (len(lengths), slots) and padded.dtype == torch.int64
    assert padded_rows.shape == (len(lengths), slots, vocab) and padded_rows.isfinite().all()
    at = 0
    for request, n in enumerate(lengths):
        assert padded[request].tolist() == [*range(10 + at, 10 + at + n), *[-1] * (slots - n)]
        assert torch.equal(padded_rows[request, :n], rows[at : at + n])
        at += n


def test_rows_without_gaps_are_not_copied():
    rows = torch.rand(6, 5)
    assert layouts.pad_rows(rows, ends_of([2, 2, 2]), 2).data_ptr() == rows.data_ptr()


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_drafts_know_their_requests(lengths):
    found = layouts.request_of_draft(ends_of(lengths), sum(lengths))
    assert found.tolist() == [b for b, n in enumerate(lengths) for _ in range(n)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_last_row_of_a_request_is_the_point_mass_at_its_bonus(lengths):
    vocab, total = 4, sum(lengths)
    logits = torch.rand(total, vocab)
    bonus = torch.arange(len(lengths)).remainder(vocab)[:, None].int()
    rows = layouts.rows_with_given_bonus(logits, bonus, ends_of(lengths))
    expected, at = [], 0
    for request, n in enumerate(lengths):
        expected += [*logits[at : at + n]]
        at += n
        last = torch.full((vocab,), float("-inf"))
        last[request % vocab] = 0.0
        expected.append(last)
    assert rows.shape == (total + len(lengths), vocab)
    assert all(torch.equal(row, want) for row, want in zip(rows, expected))


@pytest.mark.parametrize("width", [1, 3, 5])
def test_emitted_tokens_take_the_width_of_the_engine(width):
    out = layouts.emitted_as_rows(torch.tensor([[1, 2, -1], [3, -1, -1]]), width)
    assert out.dtype == torch.int32
    assert out.tolist() == [[*row, -1, -1][:width] for row in ([1, 2, -1], [3, -1, -1])]


def test_logits_of_probabilities_have_that_law():
    from dspark_ext.sampling import target_probs

    probs = torch.tensor([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])
    assert torch.allclose(target_probs(layouts.logits_of_probs(probs)), probs, atol=1e-7)
