"""Lookup drafts for vLLM's classic runner, and how long they get."""

import doctest
import types

import numpy as np
import pytest

from dspark_ext.integrations import vllm_drafter
from dspark_ext.integrations.vllm_drafter import AcceptanceByMatch, LookupDrafter, find_continuation

DRAFTS, MAX_LEN = 4, 64


def test_the_example_of_the_docstring():
    assert doctest.testmod(vllm_drafter, extraglobs={"np": np}) == (0, 1)


def by_search(context, shortest, longest, num_drafts):
    for size in range(longest, shortest - 1, -1):
        for start in range(len(context) - size - 1, -1, -1):
            if context[start : start + size] == context[len(context) - size :]:
                return size, context[start + size : start + size + num_drafts]
    return 0, []


@pytest.mark.parametrize("shortest, longest", [(1, 1), (1, 3), (2, 4), (3, 3)])
def test_continuations_are_those_of_a_search(rng, shortest, longest):
    for length in range(12):
        for _ in range(20):
            context = rng.integers(0, 3, length)
            size, found = find_continuation(context, shortest, longest, 3)
            want = by_search(context.tolist(), shortest, min(longest, max(length - 1, 0)), 3)
            assert (size, found.tolist()) == want


def drafter(kind=LookupDrafter):
    return kind(
        types.SimpleNamespace(
            speculative_config=types.SimpleNamespace(num_speculative_tokens=DRAFTS),
            model_config=types.SimpleNamespace(max_model_len=MAX_LEN),
        )
    )


def step(drafts_of, rows, sampled=None):
    """One call for rows of tokens, each of which has just emitted its last token (or `sampled`)."""
    tokens = np.zeros((len(rows), MAX_LEN), dtype=np.int32)
    for row, values in enumerate(rows):
        tokens[row, : len(values)] = values
    sampled = [[values[-1]] for values in rows] if sampled is None else sampled
    return drafts_of.propose(sampled, np.array([len(values) for values in rows]), tokens)


def test_a_row_that_sampled_nothing_gets_no_drafts():
    assert step(drafter(), [[1, 2, 1], [1, 2, 1]], sampled=[[], [1]]) == [[], [2, 1]]


def test_no_draft_passes_the_end_of_the_context():
    assert step(drafter(), [[1, 2] * (MAX_LEN // 2)]) == [[]]
    assert step(drafter(), [[1, 2] * (MAX_LEN // 2 - 1)]) == [[1]]


class TestLengths:
    def test_all_drafts_are_proposed_while_they_stand(self):
        acceptance = AcceptanceByMatch(3, DRAFTS)
        for _ in range(50):
            assert acceptance.length(2, 0.25) == DRAFTS
            acceptance.observe(2, DRAFTS, failed=False)

    def test_drafts_that_never_stand_are_given_up_and_probed(self):
        acceptance = AcceptanceByMatch(3, DRAFTS, probe=16)
        lengths = []
        for _ in range(160):
            lengths.append(acceptance.length(1, 0.25))
            if lengths[-1]:
                acceptance.observe(1, 0, failed=True)
        assert lengths[0] == DRAFTS and 0 in lengths[:20]
        assert lengths[95:] == [DRAFTS, *[0] * 15] * 4 + [DRAFTS]

    def test_what_is_given_up_comes_back_when_it_stands_again(self):
        acceptance = AcceptanceByMatch(3, DRAFTS, probe=4)
        for _ in range(50):
            if acceptance.length(1, 0.5):
                acceptance.observe(1, 0, failed=True)
        assert acceptance.length(1, 0.5) == 0
        for _ in range(400):
            if acceptance.length(1, 0.5):
                acceptance.observe(1, DRAFTS, failed=False)
        lengths = [acceptance.length(1, 0.5) for _ in range(8)]
        assert min(lengths) == DRAFTS

    def test_a_block_ends_where_drafts_stop_to_stand(self):
        acceptance = AcceptanceByMatch(3, DRAFTS, probe=10**9)
        for _ in range(100):
            acceptance.observe(3, 2, failed=True)
        assert acceptance.length(3, 0.25) == 2
        assert acceptance.length(3, 0.0) == DRAFTS
        assert acceptance.length(2, 0.25) == DRAFTS, "another length of match learnt from it"

    def test_certain_failures_do_not_count_what_was_not_judged(self):
        acceptance = AcceptanceByMatch(1, DRAFTS)
        before = acceptance.tried[1, 2:].copy()
        acceptance.observe(1, 1, failed=True)
        assert (acceptance.tried[1, 2:] == before).all()
        acceptance.observe(1, 1, failed=False)
        assert acceptance.tried[1, 1] == pytest.approx(2 * 0.98 + 1)


@pytest.fixture
def watched(monkeypatch):
    made = drafter()
    seen = []
    monkeypatch.setattr(
        made.acceptance, "observe", lambda *args, **named: seen.append((args, named))
    )
    return made, seen


START = [1, 2, 3, 4, 5, 9, 1]  # its drafts: 2 3 4 5


@pytest.mark.parametrize(
    "emitted, stood, failed",
    [
        ([2, 3, 4, 5, 7], 4, False),  # all stand, one more token
        ([2, 3, 7], 2, True),
        ([7], 0, True),
        ([2, 3, 4], 3, False),  # cut by the scheduler, the bonus token agrees
    ],
)
def test_what_became_of_a_block_is_read_from_the_tokens(watched, emitted, stood, failed):
    made, seen = watched
    assert step(made, [START]) == [[2, 3, 4, 5]]
    step(made, [[*START, *emitted]], [emitted])
    assert seen == [((1, stood), {"failed": failed})]


@pytest.mark.parametrize(
    "rows, sampled",
    [
        ([[8, 8, 8, 8, 8, 8, 8, 2]], [[2]]),  # another request in the row
        ([[*START, 2, 3, 4]], [[4]]),  # steps in between
        ([[*START]], [[]]),  # it sampled nothing
        ([], []),
    ],
)
def test_a_row_of_another_request_is_no_evidence(watched, rows, sampled):
    made, seen = watched
    step(made, [START])
    step(made, rows, sampled)
    assert seen == []


def test_min_survival_is_set_by_a_subclass():
    class Cautious(LookupDrafter):
        min_survival = 0.95

    assert step(drafter(), [START]) == [[2, 3, 4, 5]]
    assert step(drafter(Cautious), [START]) == [[]]
