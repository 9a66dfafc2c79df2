"""A loop that asks a DraftGate before each round keeps the target's law. Exact, in fractions."""

import itertools

import pytest
from schedule_models import ONE, RULES
from test_schedule_rounds import After, deep_model, target_probability

from dspark_ext import verify

NUM_DRAFTS = 2
COST = verify.CostTable([1, 2, 3], [1.0, 1.05, 1.1], request_rows=[1], request_seconds=[0.35])


def gate_after(history):
    """The gate's answer after rounds with (verified, accepted) drafts; 0 verified is a plain round.
    Rejections close it at once; what is accepted, and then a probe, opens it."""
    gate = verify.DraftGate(COST, min_blocks=1, min_steps=1, half_life=1.0, probe_share=0.2)
    for verified, accepted in history:
        gate.update(1, verified > 0, verified, accepted)
    return gate.should_draft(1)


def probability(model, text, decide, rule, rounds, prefix=(), history=()):
    """That the text begins with `text`; what is missing after the last round is the target's."""
    if text[: len(prefix)] != prefix[: len(text)]:
        return 0
    if rounds == 0 or len(prefix) >= len(text):
        return target_probability(model, text, len(prefix)) if len(prefix) < len(text) else ONE
    state, total = After(model, prefix), 0
    for path, share, _ in state.paths():
        for tokens, value in outcomes(state, path, decide, rule, history):
            verified = NUM_DRAFTS if decide(history, path) else 0
            past = (*history, (verified, len(tokens) - 1))
            longer = prefix + tokens
            total += (
                share * value * probability(model, text, decide, rule, rounds - 1, longer, past)
            )
    return total


def outcomes(state, path, decide, rule, history):
    length = NUM_DRAFTS if decide(history, path) else 0
    return [(tokens, value) for tokens, value in rule(state, path, length).items() if value]


def by_the_gate(history, path):
    return gate_after(history)


def by_what_was_drawn(history, path):
    return path[0] == 0


@pytest.mark.parametrize("rule", RULES)
def test_three_rounds_behind_a_gate_keep_the_law(rule):
    for seed in range(2):
        model = deep_model(seed, NUM_DRAFTS, 3)
        for text in itertools.product(range(2), repeat=5):
            found = probability(model, text, by_the_gate, RULES[rule], 3)
            assert found == target_probability(model, text)


def test_the_gate_does_depend_on_what_was_accepted():
    """Guards the test above: both answers occur in it, and the past decides."""
    pairs = [(NUM_DRAFTS, accepted) for accepted in range(NUM_DRAFTS + 1)]
    assert [gate_after([pair]) for pair in pairs] == [False, True, True]
    assert gate_after([pairs[0], (0, 0), (0, 0)])  # a probe


def test_a_gate_that_looks_at_the_drafts_does_not():
    model = deep_model(0, NUM_DRAFTS, 3)
    wrong = [
        text
        for text in itertools.product(range(2), repeat=5)
        if probability(model, text, by_what_was_drawn, RULES["token"], 3)
        != target_probability(model, text)
    ]
    assert wrong
