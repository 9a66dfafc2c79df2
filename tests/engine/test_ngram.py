"""Prompt lookup: what is proposed, with which confidence, and that it changes no law."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_law import assert_pair_law

from dspark_ext.demo import tiny
from dspark_ext.engine import (
    DraftBatch,
    DSparkEngine,
    HuggingFaceTarget,
    NGramDrafter,
    SamplingParams,
    SpeculativeConfig,
)
from dspark_ext.engine.own_history import OwnHistory

PROMPT = tiny.encode("import os\nimport os")


def ask(drafter, texts, count, slots=None):
    """Append all but the last token of each text, and draft behind it."""
    slots = list(range(len(texts))) if slots is None else slots
    for slot, text in zip(slots, texts):
        positions = torch.arange(len(text) - 1)
        drafter.append(None, positions, torch.full_like(positions, slot), torch.tensor(text[:-1]))
    batch = DraftBatch(
        torch.tensor([text[-1] for text in texts]),
        torch.tensor([len(text) - 1 for text in texts]),
        torch.tensor(slots),
        torch.ones(len(texts)),
        torch.zeros(len(texts), dtype=torch.int64),
    )
    return drafter.draft(batch, count, "probabilistic")


def looked_up(text, count, low, high):
    """The specification, by search: (match length, proposal)."""
    for length in range(high, low - 1, -1):
        for end in range(len(text) - 2, length - 2, -1):
            if length < len(text) and text[end + 1 - length : end + 1] == text[-length:]:
                longer = list(text)
                for place in range(count):
                    longer.append(longer[end + 1 + place])
                return length, longer[len(text) :]
    return 0, []


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=24), st.integers(1, 3), st.integers(0, 2))
def test_the_longest_match_at_its_latest_place(text, low, more):
    drafter = NGramDrafter(max_requests=1, max_len=64, min_ngram=low, max_ngram=low + more)
    draft = ask(drafter, [text], 4)
    length, proposal = looked_up(text, 4, low, low + more)
    assert draft.token_ids.tolist() == [proposal + [-1] * (4 - len(proposal))]
    assert draft.num_proposed.tolist() == [len(proposal)] and draft.logits is None
    expected = [(length + k) / (length + k + 1) for k in range(len(proposal))]
    assert draft.confidence[0].tolist() == pytest.approx([*expected, *[0.0] * (4 - len(proposal))])
    again = ask(drafter, [text], 4)  # appended from position 0: as if the slot were new
    assert again.token_ids.tolist() == draft.token_ids.tolist()


def test_requests_are_apart_and_a_loop_goes_on():
    drafter = NGramDrafter(max_requests=3, max_len=64)
    draft = ask(drafter, [[1, 2, 3, 1, 2], [7, 7, 7], [5, 6, 8]], 5, slots=[2, 0, 1])
    assert draft.token_ids.tolist() == [[3, 1, 2, 3, 1], [7] * 5, [-1] * 5]
    assert draft.num_proposed.tolist() == [5, 5, 0]
    drafter.release(2)
    assert drafter.token_ids(2) == [] and drafter.token_ids(0) == [7, 7]


def test_what_is_taken_back_is_not_looked_up():
    drafter = NGramDrafter(max_requests=1, max_len=64)
    text = [1, 2, 3, 9, 1, 2, 4, 4]
    ask(drafter, [text], 1)
    position = torch.tensor([4])
    drafter.append(None, position, position * 0, torch.tensor([1]))
    batch = DraftBatch(torch.tensor([2]), position + 1, position * 0, torch.ones(1), position * 0)
    assert drafter.draft(batch, 2, "greedy").token_ids.tolist() == [[3, 9]]


def test_confidences_follow_the_requests_own_past():
    history = OwnHistory(2, torch.tensor([0.5, 0.5]), prior_weight=2.0, decay=1.0)
    slots, kinds = torch.tensor([0, 1]), torch.tensor([[0, 1, 1], [0, 0, -1]])
    assert history.confidence(slots, kinds).tolist() == [[0.5, 0.5, 0.5], [0.5, 0.5, 0.0]]
    # request 0: accepted 1 of 3 verified; request 1: 2 of 2
    history.observe(slots, torch.tensor([3, 2]), torch.tensor([1, 2]))
    found = history.confidence(slots, kinds)
    assert found[0].tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert found[1].tolist() == pytest.approx([3 / 4, 3 / 4, 0])
    history.observe(slots, torch.tensor([0, 0]), torch.tensor([0, 0]))  # nothing was verified
    assert torch.equal(history.confidence(slots, kinds), found)
    history.reset(0)
    assert history.confidence(slots, kinds)[0].tolist() == [0.5, 0.5, 0.5]


@pytest.fixture(scope="module")
def target(tiny_pair):
    return HuggingFaceTarget(tiny_pair[0], [], max_requests=64, max_len=96)


SCHEDULES = {
    "fixed": {},
    "two blocks": {"num_speculative_tokens": 2, "blocks_per_step": 2, "continue_threshold": 0.3},
    "threshold": {"schedule": "threshold", "confidence_threshold": 0.7},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_greedy_is_plain_and_a_seed_gives_its_tokens_in_any_batch(target, prompts, schedule):
    config = SpeculativeConfig(**SCHEDULES[schedule], prefill_chunk=7)
    texts = [*prompts, PROMPT, prompts[0] * 2]

    def engine():
        return DSparkEngine(target, NGramDrafter.for_target(target), config)

    greedy = SamplingParams(temperature=0.0, max_new_tokens=24)
    runs = [engine().generate(texts, greedy, speculative=flag) for flag in (True, False)]
    drafted, plain = ([output.token_ids for output in run.outputs] for run in runs)
    assert drafted == plain
    assert runs[0].stats.acceptance.accepted > 10

    params = [SamplingParams(temperature=0.7, seed=50 + n, max_new_tokens=16) for n in range(6)]
    texts = [PROMPT, *texts[:5]]
    together = engine().generate(texts, params).outputs
    for text, each, output in zip(texts, params, together):
        assert engine().generate([text], each).outputs[0].token_ids == output.token_ids


@pytest.mark.parametrize(("method", "schedule"), [("block", "threshold"), ("token", "two blocks")])
def test_text_follows_the_target(target, method, schedule):
    """First token and pairs, 800 runs; false alarms: lawkit."""
    config = SpeculativeConfig(rejection_sample_method=method, **SCHEDULES[schedule])
    engine = DSparkEngine(target, NGramDrafter.for_target(target), config)
    params = SamplingParams(temperature=1.0, max_new_tokens=3)
    generation = engine.generate([PROMPT] * 800, params)
    drawn = torch.tensor([output.token_ids[:2] for output in generation.outputs])
    accepted = generation.stats.acceptance.accepted
    assert accepted > 50
    assert_pair_law(drawn, engine, PROMPT, params)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"block_size": 0}, "block_size: expected >= 1, got 0"),
        ({"min_ngram": 0}, "min_ngram, max_ngram: expected 1 <= .* got 0 and 4"),
        ({"min_ngram": 5}, "got 5 and 4"),
    ],
)
def test_bad_settings_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        NGramDrafter(max_requests=1, max_len=8, **values)


def test_a_further_block_looks_up_the_end_of_the_one_before():
    drafter = NGramDrafter(max_requests=1, max_len=40, block_size=4)
    zero = torch.tensor([0])
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1]
    for position, token in enumerate(text):
        drafter.append(None, zero + position, zero, zero + token)
    first = drafter.draft(DraftBatch(zero + 2, zero + 9, zero, torch.ones(1), zero), 3, "greedy")
    assert first.token_ids.tolist() == [[3, 4, 5]]
    behind = DraftBatch(zero + 5, zero + 12, zero, torch.ones(1), zero)
    then = drafter.draft(behind, 4, "greedy")
    assert then.token_ids.tolist() == [[6, 7, 8, 1]]
    drafter.observe(zero, zero + 7, zero + 5)  # of both blocks
    counts = drafter.export_slot(0, 9)
    assert float(counts["reached"].sum()) > 5 and float(counts["accepted"].sum()) > 4
    for position, token in enumerate([2, 3, 4, 5, 6, 7], start=9):
        drafter.append(None, zero + position, zero, zero + token)
    with pytest.raises(ValueError, match=r"anchor_positions: expected 15 .*, got 19"):
        drafter.draft(DraftBatch(zero + 1, zero + 19, zero, torch.ones(1), zero), 2, "greedy")


def test_a_gap_is_named():
    drafter = NGramDrafter(max_requests=1, max_len=8)
    zero = torch.tensor([0])
    with pytest.raises(ValueError, match="append: positions: expected at most 0, got 2"):
        drafter.append(None, zero + 2, zero, zero)
    batch = DraftBatch(zero, zero + 3, zero, torch.ones(1), zero)
    with pytest.raises(ValueError, match=r"anchor_positions: expected 0 .*, got 3"):
        drafter.draft(batch, 1, "greedy")
