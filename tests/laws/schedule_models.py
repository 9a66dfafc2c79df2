"""Toy targets and drafters with rational probabilities, and the exact law of what one verification
round emits for them under a schedule.

The confidences c_{k+1} depend on the drafts x_1 .. x_k, as those of a Markov head do.
"""

import itertools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

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
