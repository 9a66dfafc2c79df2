"""Schedules keep the law of the target: exact enumeration of drafting, scheduling and verifying.

A toy target and a toy drafter with rational probabilities, and confidences c_{k+1} that depend on
the drafts x_1 .. x_k, as those of a Markov head do. Every draft path is enumerated, `schedule`
chooses the length of each, the verification rule is applied in fractions, and the law of everything
emitted (continued by the target up to K + 1 tokens) has to be the target's, exactly.
"""

import itertools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch

from dspark_ext import sampling, verify

ONE = Fraction(1)


@dataclass
class Model:
    """`target`, `draft`: prefix -> probabilities; `confidence`: prefix -> c of the next draft."""

    vocab: int
    num_drafts: int
    target: dict
    draft: dict
    confidence: dict

    def paths(self):
        """(drafts, probability, confidences [K]) of every block the drafter can propose."""
        for path in itertools.product(range(self.vocab), repeat=self.num_drafts):
            weight, row = ONE, []
            for k, token in enumerate(path):
                weight *= self.draft[path[:k]][token]
                row.append(self.confidence[path[:k]])
            if weight > 0:
                yield path, weight, row

    def target_law(self):
        return self.continued({(): ONE})

    def continued(self, law):
        """Extends every prefix to K + 1 tokens by the target."""
        full = {}
        for prefix, weight in law.items():
            if weight == 0:
                continue
            if len(prefix) > self.num_drafts:
                full[prefix] = full.get(prefix, 0) + weight
                continue
            longer = {(*prefix, x): weight * p for x, p in enumerate(self.target[prefix])}
            for key, value in self.continued(longer).items():
                full[key] = full.get(key, 0) + value
        return full


def random_model(seed, vocab, num_drafts):
    rng = np.random.default_rng(seed)

    def probabilities():
        weights = rng.integers(0, 8, vocab)
        weights[rng.integers(vocab)] += 1
        return [Fraction(int(w), int(weights.sum())) for w in weights]

    prefixes = [
        prefix
        for length in range(num_drafts + 1)
        for prefix in itertools.product(range(vocab), repeat=length)
    ]
    return Model(
        vocab,
        num_drafts,
        {prefix: probabilities() for prefix in prefixes},
        {prefix: probabilities() for prefix in prefixes},
        {prefix: float(rng.choice([0.0, 0.3, 0.6, 0.9, 1.0])) for prefix in prefixes},
    )


# --- the two verification rules, in fractions -----------------------------------------------------


def normalised(weights):
    total = sum(weights)
    return [w / total for w in weights]


def token_rule(model, path, length):
    """Law of what the token rule emits for the first `length` drafts of `path`."""
    law, alive = {}, ONE
    for i in range(length):
        p, q = model.target[path[:i]], model.draft[path[:i]]
        accept = min(ONE, p[path[i]] / q[path[i]])
        if accept < 1:
            rest = normalised([max(a - b, Fraction(0)) for a, b in zip(p, q)])
            for x, share in enumerate(rest):
                law[(*path[:i], x)] = law.get((*path[:i], x), 0) + alive * (1 - accept) * share
        alive *= accept
    for x, share in enumerate(model.target[path[:length]]):
        law[(*path[:length], x)] = law.get((*path[:length], x), 0) + alive * share
    return law


def block_rule(model, path, length):
    """The same for the block rule: the longest prefix whose draw passes."""
    prefix, accepts = [ONE], []
    for i in range(1, length + 1):
        p, q = model.target[path[: i - 1]][path[i - 1]], model.draft[path[: i - 1]][path[i - 1]]
        prefix.append(min(ONE, prefix[-1] * p / q))
        if i < length:
            mass = sum(block_residual(model, path, i, prefix[i]))
            bottom = mass + 1 - prefix[i]
            accepts.append(mass / bottom if bottom else ONE)
        else:
            accepts.append(prefix[i])
    law, above = {}, ONE
    for tau in range(length, -1, -1):
        here = above * (accepts[tau - 1] if tau else ONE)
        above -= here
        if here == 0:
            continue
        if tau == length:
            last = model.target[path[:tau]]
        else:
            last = normalised(block_residual(model, path, tau, prefix[tau]))
        for x, share in enumerate(last):
            law[(*path[:tau], x)] = law.get((*path[:tau], x), 0) + here * share
    return law


def block_residual(model, path, i, prefix):
    p, q = model.target[path[:i]], model.draft[path[:i]]
    return [max(prefix * a - b, Fraction(0)) for a, b in zip(p, q)]


RULES = {"token": token_rule, "block": block_rule}


def emitted_law(models, choose, rule):
    """Joint law of K + 1 tokens of every request. `choose`: confidences [R, K] -> lengths [R]."""
    joint = {}
    for paths in itertools.product(*(list(model.paths()) for model in models)):
        confidence = torch.tensor([row for _, _, row in paths], dtype=torch.float32)
        confidence = confidence.reshape(len(models), models[0].num_drafts)
        lengths = choose(confidence)
        weight = ONE
        laws = []
        for model, (path, share, _), length in zip(models, paths, lengths):
            weight *= share
            laws.append(model.continued(rule(model, path, length)))
        for outcome in itertools.product(*(law.items() for law in laws)):
            key = tuple(tokens for tokens, _ in outcome)
            value = weight
            for _, share in outcome:
                value *= share
            joint[key] = joint.get(key, 0) + value
    return {key: value for key, value in joint.items() if value}


def independent_targets(models):
    joint = {}
    for outcome in itertools.product(*(model.target_law().items() for model in models)):
        value = ONE
        for _, share in outcome:
            value *= share
        if value:
            joint[tuple(tokens for tokens, _ in outcome)] = value
    return joint


def choose_with(**arguments):
    return lambda confidence: verify.schedule(confidence, **arguments).verify_lens.tolist()


def cost(*seconds):
    return torch.tensor([seconds[0], *seconds], dtype=torch.float64)


# Rows 1, 2, ...: a smooth cost, a staircase, and one that makes the first step dear.
SMOOTH = cost(1.0, 1.3, 1.7, 2.2, 2.8, 3.5, 4.3, 5.2)
STAIRS = cost(1.0, 1.0, 1.6, 1.6, 1.6, 2.4, 2.4, 2.4)
DEAR = cost(1.0, 1.7, 1.8, 1.9, 2.0, 2.1, 2.2, 2.3)

CHOICES = {
    "fixed": {"mode": "fixed"},
    "fixed,max_rows": {"mode": "fixed", "max_rows": 3},
    "threshold": {"mode": "threshold", "threshold": 0.6},
    "threshold,max_rows": {"mode": "threshold", "threshold": 0.3, "max_rows": 4},
    "early_stop,smooth": {"cost": SMOOTH},
    "early_stop,stairs": {"cost": STAIRS},
    "early_stop,dear": {"cost": DEAR, "num_other_rows": 1},
    "early_stop,min_drafts": {"cost": STAIRS, "min_drafts": 1},
    "early_stop,max_rows": {"cost": SMOOTH, "max_rows": 4},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("choice", CHOICES)
def test_one_request_keeps_the_law(choice, rule):
    for seed, (vocab, num_drafts) in enumerate([(2, 1), (2, 2), (2, 3), (3, 2), (2, 3)]):
        models = [random_model(seed, vocab, num_drafts)]
        law = emitted_law(models, choose_with(**CHOICES[choice]), RULES[rule])
        assert law == independent_targets(models)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("choice", CHOICES)
def test_requests_stay_independent(choice, rule):
    """Two requests share the rows of a pass: the joint law is still the product of the targets'."""
    models = [random_model(7, 2, 2), random_model(8, 2, 2)]
    law = emitted_law(models, choose_with(**CHOICES[choice]), RULES[rule])
    assert law == independent_targets(models)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("num_drafts", range(4), ids=lambda n: f"num_drafts={n}")
def test_br064_fewer_drafts_than_trained_are_lossless(num_drafts, rule):
    models = [random_model(21, 2, 3)]
    choose = choose_with(mode="fixed", num_drafts=num_drafts)
    assert emitted_law(models, choose, RULES[rule]) == independent_targets(models)


def test_lengths_do_depend_on_the_drafts():
    """Guards the tests above: the chosen lengths differ between paths."""
    model = random_model(2, 2, 3)
    rows = torch.tensor([row for _, _, row in model.paths()])
    for choice in ("threshold", "early_stop,smooth"):
        chosen = {choose_with(**CHOICES[choice])(row[None])[0] for row in rows}
        assert len(chosen) > 1, choice


# --- the paper's counterexample -------------------------------------------------------------------


def paper_model():
    half = [Fraction(1, 2)] * 2
    target = [Fraction(7, 10), Fraction(3, 10)]
    prefixes = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    return Model(
        vocab=2,
        num_drafts=2,
        target={prefix: target for prefix in prefixes},
        draft={prefix: half for prefix in prefixes},
        confidence={(): 0.8, (0,): 0.9, (1,): 0.0},
    )


PAPER_COST = cost(1 / 1.0, 1 / 0.5, 1 / 0.45)


def global_maximum(confidence):
    """The length with the best tokens per second of all, looking at every confidence of this step:
    what the package refuses to offer."""
    survival = confidence.double().cumprod(1)[0].tolist()
    rates = [
        (1 + sum(survival[:length])) / float(PAPER_COST[1 + length])
        for length in range(len(survival) + 1)
    ]
    return [max(range(len(rates)), key=rates.__getitem__)]


def first_token(law):
    shares = [Fraction(0)] * 2
    for (tokens,), value in law.items():
        shares[tokens[0]] += value
    return shares


@pytest.mark.parametrize("rule", RULES)
def test_global_maximum_is_biased(rule):
    """The negative control: (.85, .15) instead of (.7, .3)."""
    models = [paper_model()]
    law = emitted_law(models, global_maximum, RULES[rule])
    assert law != independent_targets(models)
    assert first_token(law) == [Fraction(85, 100), Fraction(15, 100)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("choice", ["paper", *CHOICES])
def test_paper_counterexample_is_lossless(choice, rule):
    arguments = {"cost": PAPER_COST} if choice == "paper" else CHOICES[choice]
    models = [paper_model()]
    law = emitted_law(models, choose_with(**arguments), RULES[rule])
    assert law == independent_targets(models)
    assert first_token(law) == [Fraction(7, 10), Fraction(3, 10)]


def test_paper_counterexample_has_length_zero():
    for path, _, row in paper_model().paths():
        assert choose_with(cost=PAPER_COST)(torch.tensor([row])) == [0], path


@pytest.mark.parametrize("rule", RULES)
def test_looking_one_draft_ahead_is_biased(rule):
    """A threshold on c_2 that decides about x_1 is caught by the same enumeration."""

    def peek(confidence):
        return [1 if confidence[0, 1] >= 0.5 else 0]

    models = [paper_model()]
    assert emitted_law(models, peek, RULES[rule]) != independent_targets(models)


# --- the kernel's block rule is the one enumerated here -------------------------------------------


def test_block_rule_agrees_with_the_kernel():
    worst = 0.0
    for seed in range(6):
        model = random_model(seed, 3, 3)
        for path, _, _ in model.paths():
            rows = [model.target[path[:i]] for i in range(4)]
            drafts = [model.draft[path[:i]] for i in range(3)]
            found = sampling.block_acceptance(
                torch.tensor(np.log(np.array(rows, float) + 1e-300), dtype=torch.float32),
                torch.tensor([path]),
                draft_probs=torch.tensor(np.array([drafts], float), dtype=torch.float32),
                query_start_loc=torch.tensor([0, 4], dtype=torch.int32),
                temperature=1.0,
            )
            prefix = ONE
            for i in range(1, 4):
                prefix = min(ONE, prefix * rows[i - 1][path[i - 1]] / drafts[i - 1][path[i - 1]])
                worst = max(worst, abs(float(found.prefix_prob[0, i - 1]) - float(prefix)))
                if i < 3:
                    mass = sum(block_residual(model, path, i, prefix))
                    worst = max(worst, abs(float(found.residual_mass[0, i - 1]) - float(mass)))
    assert worst < 2e-6
