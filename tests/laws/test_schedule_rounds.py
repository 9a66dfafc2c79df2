"""Several rounds under a schedule that remembers: budgets and lengths found from the confidences of
the round before, of drafts that were not verified too. Exact, in fractions."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from schedule_models import ONE, RULES, random_model

from dspark_ext import verify


@dataclass
class After:
    """What a model says behind a prefix; the interface that the rules of verification use."""

    model: object
    prefix: tuple

    def __post_init__(self):
        suffixes = [
            suffix
            for length in range(self.model.num_drafts + 1)
            for suffix in itertools.product(range(self.model.vocab), repeat=length)
        ]
        start, model = self.prefix, self.model
        self.target = {s: model.target[start + s] for s in suffixes}
        self.draft = {s: model.draft[start + s] for s in suffixes}

    def paths(self):
        for path in itertools.product(range(self.model.vocab), repeat=self.model.num_drafts):
            weight, row = ONE, []
            for k, token in enumerate(path):
                weight *= self.draft[path[:k]][token]
                row.append(self.model.confidence[self.prefix + path[:k]])
            if weight > 0:
                yield path, weight, row


def deep_model(seed, num_drafts, rounds):
    """A model of two tokens that knows every prefix of some rounds."""
    model = random_model(seed, 2, rounds * (num_drafts + 1) - 1)
    model.num_drafts = num_drafts
    return model


def target_probability(model, tokens, start=0):
    value = ONE
    for i in range(start, len(tokens)):
        value *= model.target[tokens[:i]][tokens[i]]
    return value


def probability(models, texts, choose, rule, rounds, prefixes=None, past=None):
    """That the requests' texts begin with `texts`. What is missing after the last round is the
    target's. `choose`: confidences of this round and of the one before -> lengths."""
    prefixes = prefixes or [()] * len(models)
    if rounds == 0:
        value = ONE
        for model, text, prefix in zip(models, texts, prefixes):
            value *= target_probability(model, text, len(prefix))
        return value
    total = 0
    states = [After(model, prefix) for model, prefix in zip(models, prefixes)]
    for paths in itertools.product(*(list(state.paths()) for state in states)):
        confidence = torch.tensor([row for _, _, row in paths], dtype=torch.float32)
        lengths = choose(confidence, past)
        outcomes = []
        for state, text, (path, share, _), length in zip(states, texts, paths, lengths):
            law = rule(state, path, length)
            longer = {state.prefix + tokens: share * value for tokens, value in law.items()}
            outcomes.append([(p, v) for p, v in longer.items() if v and text[: len(p)] == p])
        for outcome in itertools.product(*outcomes):
            value = ONE
            for _, share in outcome:
                value *= share
            reached = [prefix for prefix, _ in outcome]
            total += value * probability(
                models, texts, choose, rule, rounds - 1, reached, confidence
            )
    return total


def cost(*seconds):
    return torch.tensor([seconds[0], *seconds], dtype=torch.float64)


STAIRS = cost(1.0, 1.0, 1.5, 1.5, 1.9, 2.4, 2.4, 2.4)
GENTLE = cost(0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.7, 1.9)


def lagged(confidence, past):
    past = torch.ones_like(confidence) if past is None else past
    return verify.schedule(confidence, mode="lagged", lagged_confidence=past, cost=STAIRS)


def lagged_uniform(confidence, past):
    past = torch.ones_like(confidence) if past is None else past
    return verify.schedule(confidence, mode="uniform", lagged_confidence=past, cost=STAIRS)


def budget_of_last_rows(confidence, past):
    """The rows that an early stop would have verified a round ago."""
    if past is None:
        return verify.schedule(confidence, mode="fixed")
    rows = verify.schedule(past, cost=GENTLE).num_rows
    return verify.schedule(confidence, mode="budget", budget=rows)


RULES_OF_LENGTH = {
    "lagged": lagged,
    "uniform,lagged": lagged_uniform,
    "budget of the last rows": budget_of_last_rows,
}


def choose_by(name):
    return lambda confidence, past: RULES_OF_LENGTH[name](confidence, past).verify_lens.tolist()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", RULES_OF_LENGTH)
def test_two_rounds_of_one_request_keep_the_law(name, rule):
    for seed in range(3):
        model = deep_model(seed, 2, 2)
        for text in itertools.product(range(2), repeat=6):
            found = probability([model], [text], choose_by(name), RULES[rule], 2)
            assert found == target_probability(model, text)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", RULES_OF_LENGTH)
def test_two_rounds_of_two_requests_stay_independent(name, rule):
    models = [deep_model(5, 2, 2), deep_model(6, 2, 2)]
    rng = np.random.default_rng(1)
    for _ in range(2):
        texts = [
            tuple(int(token) for token in rng.integers(0, 2, 6)),
            tuple(int(token) for token in rng.integers(0, 2, 6)),
        ]
        found = probability(models, texts, choose_by(name), RULES[rule], 2)
        expected = [target_probability(model, text) for model, text in zip(models, texts)]
        assert found == expected[0] * expected[1]


def test_the_past_does_change_the_lengths():
    """Guards the tests above."""
    now = torch.tensor([[0.9, 0.9], [0.8, 0.8]])
    for name in RULES_OF_LENGTH:
        chosen = {
            tuple(choose_by(name)(now, torch.tensor(past)))
            for past in ([[1.0, 1.0], [1.0, 1.0]], [[0.9, 0.3], [0.9, 0.1]], [[0.0, 0.0]] * 2)
        }
        assert len(chosen) > 1, name
