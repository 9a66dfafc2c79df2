"""Laws: small exact models, exact enumeration of what verification emits, chi-square.

Every chi-square test fails by chance with probability FALSE_ALARM at most (seeds are fixed, so it
does so always or never); the suite has fewer than 200, so a correct build fails with 2e-4 at most.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from fractions import Fraction

import numpy as np
import torch

FALSE_ALARM = 1e-6


def chi_square_p(counts, law) -> float:
    """Survival probability of Pearson's statistic; cells that expect less than 5 are pooled."""
    counts = torch.as_tensor(counts, dtype=torch.float64).flatten()
    expected = torch.as_tensor(law, dtype=torch.float64).flatten() * counts.sum()
    if (counts[expected == 0] > 0).any():
        return 0.0
    order = expected.argsort()
    counts, expected = counts[order], expected[order]
    small = int(((expected < 5) | (expected.cumsum(0) < 5)).sum())
    if small:
        counts = torch.cat([counts[:small].sum()[None], counts[small:]])
        expected = torch.cat([expected[:small].sum()[None], expected[small:]])
    used = expected > 0
    counts, expected = counts[used], expected[used]
    if len(counts) < 2:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    degrees = torch.tensor(len(counts) - 1.0, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees / 2, statistic / 2))


def assert_law(ids, law, what: str = "") -> None:
    """`ids`: cell indices, or a [cells] histogram of float dtype."""
    law = torch.as_tensor(law, dtype=torch.float64).flatten()
    counts = ids if ids.is_floating_point() else torch.bincount(ids.flatten(), minlength=len(law))
    assert len(counts) == len(law), what
    p = chi_square_p(counts, law)
    assert p > FALSE_ALARM, f"{what}: p = {p:.3g}\ncounts {counts.tolist()}\nlaw {law.tolist()}"


class Chain:
    """A target and a draft model over a tiny vocabulary, conditional on the whole prefix, exact.

    `p(prefix)`, `q(prefix)`: lists of fractions; with draft="onehot" every q is one at one id.
    """

    def __init__(self, vocab: int, num_drafts: int, draft: str = "dense", seed: int = 0):
        self.vocab, self.num_drafts, self.draft = vocab, num_drafts, draft
        rng = np.random.default_rng(seed)
        self.target, self.proposal = {}, {}
        for depth in range(num_drafts + 1):
            for prefix in itertools.product(range(vocab), repeat=depth):
                self.target[prefix] = random_law(rng, vocab)
                self.proposal[prefix] = random_law(rng, vocab)
                if draft == "onehot":
                    guess = int(rng.integers(vocab))
                    self.proposal[prefix] = [Fraction(int(x == guess)) for x in range(vocab)]

    def p(self, prefix) -> list[Fraction]:
        return self.target[tuple(prefix)]

    def q(self, prefix) -> list[Fraction]:
        return self.proposal[tuple(prefix)]

    def paths(self):
        """Every draft with positive chance and that chance."""
        for x in itertools.product(range(self.vocab), repeat=self.num_drafts):
            weight = Fraction(1)
            for i in range(self.num_drafts):
                weight *= self.q(x[:i])[x[i]]
            if weight > 0:
                yield x, weight

    def target_law(self, length: int) -> dict:
        law = {}
        for y in itertools.product(range(self.vocab), repeat=length):
            law[y] = Fraction(1)
            for i in range(length):
                law[y] *= self.p(y[:i])[y[i]]
        return law


def random_law(rng, vocab: int) -> list[Fraction]:
    """Small denominators; one entry in six is zero."""
    while True:
        weights = rng.integers(1, 8, vocab) * (rng.random(vocab) > 1 / 6)
        if weights.sum() > 0:
            return [Fraction(int(w), int(weights.sum())) for w in weights]


# --- the rules in rational arithmetic -------------------------------------------------------------


def positive_part(p, q, a=Fraction(1)) -> list[Fraction]:
    return [max(a * pi - qi, Fraction(0)) for pi, qi in zip(p, q, strict=True)]


def token_thresholds(chain: Chain, x) -> tuple[list, list]:
    """Per slot: min(1, p/q), and the weight `a` of the residual."""
    steps = [(chain.p(x[:i])[x[i]], chain.q(x[:i])[x[i]]) for i in range(len(x))]
    return [min(Fraction(1), p / q) for p, q in steps], [Fraction(1)] * (len(x) + 1)


def block_thresholds(chain: Chain, x) -> tuple[list, list]:
    """Per slot h_i; the residual weights p_0 .. p_n."""
    prefixes, thresholds = [Fraction(1)], []
    for i in range(1, len(x) + 1):
        ratio = chain.p(x[: i - 1])[x[i - 1]] / chain.q(x[: i - 1])[x[i - 1]]
        prefix = min(Fraction(1), prefixes[-1] * ratio)
        prefixes.append(prefix)
        if i == len(x):
            thresholds.append(prefix)
            continue
        mass = sum(positive_part(chain.p(x[:i]), chain.q(x[:i]), prefix))
        rest = mass + 1 - prefix
        thresholds.append(mass / rest if rest else Fraction(1))
    return thresholds, prefixes


def accepted_law(method: str, thresholds) -> list:
    """P(tau = 0 .. n) for one draft path."""
    n = len(thresholds)
    law = []
    for tau in range(n + 1):
        if method == "block":  # the largest i with u_i < h_i
            chance = thresholds[tau - 1] if tau else 1
            for h in thresholds[tau:]:
                chance *= 1 - h
        else:  # stop at the first rejection
            chance = 1 if tau == n else 1 - thresholds[tau]
            for h in thresholds[:tau]:
                chance *= h
        law.append(chance)
    return law


def normalised(weights) -> list:
    total = sum(weights)
    return [w / total for w in weights]


def final_law(chain: Chain, x, tau: int, prefixes) -> list[Fraction]:
    """Law of the token after `tau` accepted drafts."""
    p = chain.p(x[:tau])
    if tau == len(x):
        return p
    rest = positive_part(p, chain.q(x[:tau]), prefixes[tau])
    return normalised(rest) if sum(rest) else p


def thresholds_of(method: str, chain: Chain, x):
    return (block_thresholds if method == "block" else token_thresholds)(chain, x)


def emitted_law(method: str, chain: Chain, thresholds=thresholds_of) -> dict:
    """Law of the first K+1 tokens when what is missing after a round is drawn from the target."""
    law = defaultdict(Fraction)
    for x, weight in chain.paths():
        accept, prefixes = thresholds(method, chain, x)
        for tau, chance in enumerate(accepted_law(method, accept)):
            if chance == 0:
                continue
            for y, final in enumerate(final_law(chain, x, tau, prefixes)):
                extend(law, chain, (*x[:tau], y), weight * chance * final)
    return law


def extend(law: dict, chain: Chain, tokens: tuple, weight) -> None:
    if weight == 0:
        return
    if len(tokens) == chain.num_drafts + 1:
        law[tokens] += weight
        return
    for y, p in enumerate(chain.p(tokens)):
        extend(law, chain, (*tokens, y), weight * p)


def mean_accepted(method: str, chain: Chain) -> Fraction:
    total = Fraction(0)
    for x, weight in chain.paths():
        accept, _ = thresholds_of(method, chain, x)
        total += weight * sum(tau * c for tau, c in enumerate(accepted_law(method, accept)))
    return total
