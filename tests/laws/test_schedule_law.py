"""Schedules keep the law of the target: exact enumeration of drafting, scheduling and verifying.

A toy target and a toy drafter with rational probabilities, and confidences c_{k+1} that depend on
the drafts x_1 .. x_k, as those of a Markov head do. Every draft path is enumerated, `schedule`
chooses the length of each, the verification rule is applied in fractions, and the law of everything
emitted (continued by the target up to K + 1 tokens) has to be the target's, exactly.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from schedule_models import (
    ONE,
    RULES,
    Model,
    block_residual,
    emitted_law,
    independent_targets,
    random_model,
)

from dspark_ext import sampling, verify


def choose_with(lagged=None, **arguments):
    """`lagged`: what an earlier step said, the same of every draft."""

    def choose(confidence):
        if lagged is not None:
            arguments["lagged_confidence"] = torch.full_like(confidence, lagged)
        return verify.schedule(confidence, **arguments).verify_lens.tolist()

    return choose


def cost(*seconds):
    return torch.tensor([seconds[0], *seconds], dtype=torch.float64)


# Rows 1, 2, ...: a smooth cost, a staircase, and one that makes the first step dear.
SMOOTH = cost(1.0, 1.3, 1.7, 2.2, 2.8, 3.5, 4.3, 5.2)
STAIRS = cost(1.0, 1.0, 1.6, 1.6, 1.6, 2.4, 2.4, 2.4)
DEAR = cost(1.0, 1.7, 1.8, 1.9, 2.0, 2.1, 2.2, 2.3)
GENTLE = cost(0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.7, 1.9)

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
    "budget": {"mode": "budget", "budget": 4},
    "budget,wide": {"mode": "budget", "budget": 5},
    "budget,min_drafts": {"mode": "budget", "budget": 5, "min_drafts": 1},
    "lagged,gentle": {"mode": "lagged", "cost": GENTLE, "lagged": 0.5},
    "lagged,stairs": {"mode": "lagged", "cost": STAIRS, "lagged": 0.9},
    "lagged,num_drafts": {"mode": "lagged", "cost": STAIRS, "lagged": 1.0, "num_drafts": 1},
    "uniform,gentle": {"mode": "uniform", "cost": GENTLE},
    "uniform,stairs": {"mode": "uniform", "cost": STAIRS},
    "uniform,lagged": {"mode": "uniform", "cost": STAIRS, "lagged": 0.9},
}


# Of these, the lengths of the pair below do not depend on its drafts.
FIXED_LENGTHS = {
    "fixed",
    "fixed,max_rows",
    "early_stop,stairs",
    "lagged,num_drafts",
    "uniform,stairs",
    "uniform,lagged",
}


def lively_pair():
    """Two requests whose second confidences change who comes first."""
    models = [random_model(7, 2, 2), random_model(8, 2, 2)]
    for model, (first, after_0, after_1) in zip(models, [(0.9, 0.95, 0.2), (0.8, 0.3, 1.0)]):
        model.confidence.update({(): first, (0,): after_0, (1,): after_1})
        for prefix in ((), (0,), (1,)):
            model.draft[prefix] = [Fraction(2, 5), Fraction(3, 5)]
    return models


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
    for models in ([random_model(3, 2, 2), random_model(8, 2, 2)], lively_pair()):
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
    for choice in CHOICES:
        chosen = set()
        for paths in itertools.product(*(model.paths() for model in lively_pair())):
            rows = torch.tensor([row for _, _, row in paths])
            chosen.add(tuple(choose_with(**CHOICES[choice])(rows)))
        assert (len(chosen) == 1) == (choice in FIXED_LENGTHS), choice


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


# --- what a user must not do ----------------------------------------------------------------------


LOSSY = {
    "a budget from the confidences it is spent on": lambda c: verify.schedule(
        c, mode="lagged", lagged_confidence=c.clone(), cost=PAPER_COST
    ),
    "a uniform length from the confidences it cuts": lambda c: verify.schedule(
        c, mode="uniform", lagged_confidence=c.clone(), cost=PAPER_COST
    ),
    "a budget that counts on the second draft": lambda c: verify.schedule(
        c, mode="budget", budget=1 + 2 * (c[0, 1] > 0.5).int()
    ),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("rule_of_length", LOSSY)
def test_current_confidences_passed_as_old_ones_are_biased(rule_of_length, rule):
    def choose(confidence):
        return LOSSY[rule_of_length](confidence).verify_lens.tolist()

    models = [paper_model()]
    law = emitted_law(models, choose, RULES[rule])
    assert first_token(law) == [Fraction(85, 100), Fraction(15, 100)]


@pytest.mark.parametrize("rule", RULES)
def test_unverified_drafts_of_others_tie_requests_together(rule):
    """Each request is cut by what the other's first draft led to, verified or not. Each one alone
    keeps its law, but the two are no longer independent."""

    def choose(confidence):
        return [int(confidence[1, 1] > 0.5), int(confidence[0, 1] > 0.5)]

    models = [paper_model(), paper_model()]
    law = emitted_law(models, choose, RULES[rule])
    assert law != independent_targets(models)
    for request, model in enumerate(models):
        alone = {}
        for tokens, value in law.items():
            alone[tokens[request]] = alone.get(tokens[request], 0) + value
        assert alone == model.target_law()


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
