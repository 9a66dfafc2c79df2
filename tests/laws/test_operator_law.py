"""The law `rejection_sample` emits, by bisection of its uniforms, on random hostile worlds.

A world is a table of target and draft rows for every prefix over a tiny vocabulary, with ties,
masks, one-hot, empty and NaN rows, infinities, drafts equal to the target or apart from it, filters
and temperatures, a smaller draft vocabulary, blocks cut and slots left open by what was known
before. Every draft is enumerated with its chance; the operator's share of each outcome is found to
2^-40. Two checks: every chance is the definition's, and the text has the target's law.
"""

import itertools

import numpy as np
import pytest
import torch
from law_oracle import BorderlineError, Case, Operator, plain_law, rule, target_law, text_law

KINDS = ["random", "tied", "masked", "onehot", "dead", "nan", "inf", "wide"]
RULE_MARGIN = 3e-6  # relative errors of p / q included
LAW_MARGIN = 1e-6
UNLIKELY = 1e-25  # drafts of which q is rounded to 0


def random_row(rng, vocab, kind):
    row = rng.normal(size=vocab).astype(np.float32)
    chosen = rng.random(vocab) < 0.5
    one = rng.integers(vocab)
    if kind == "tied":
        row = rng.integers(-1, 2, vocab).astype(np.float32)
    elif kind == "wide":
        row *= 30
    elif kind == "masked":
        chosen[one] = False
        row[chosen] = -np.inf
    elif kind == "onehot":
        row[np.arange(vocab) != one] = -np.inf
    elif kind == "dead":
        row[:] = -np.inf
    elif kind == "nan":
        row[one] = np.nan
    elif kind == "inf":
        row[chosen] = np.inf
    return row


def is_dead(row) -> bool:
    return bool(np.isnan(row).any() or not (row > -np.inf).any())


class World:
    """Everything a request can meet, by prefix."""

    def __init__(self, rng):
        self.rng = rng
        self.vocab = int(rng.integers(2, 6))
        self.num_drafts = int(rng.integers(0, 4 if self.vocab > 3 else 5))
        partial = rng.random() < 0.4
        self.width = int(rng.integers(1, self.vocab + 1)) if partial else self.vocab
        self.form = rng.choice(["logits", "logits", "probs", "hidden", "argmax"])
        self.method = str(rng.choice(["block", "block", "token", "greedy", "synthetic"]))
        self.temperature = float(rng.choice([1.0, 0.5, 2.0, 0.7, 0.0, 0.01, 100.0]))
        self.filters = {}
        for name, values in (
            ("top_k", [0, 1, 2, 3, self.vocab, self.vocab + 1]),
            ("top_p", [0.0, 0.3, 0.6, 0.9, 0.999, 1.0]),
            ("min_p", [0.0, 0.1, 0.4, 0.9, 1.0]),
        ):
            if rng.random() < 0.4:
                self.filters[name] = rng.choice(values).item()
        self.draft_temperature = self.temperature
        self.own_draft_temperature = self.form == "logits" and rng.random() < 0.5
        if self.own_draft_temperature:
            self.draft_temperature = float(rng.choice([0.0, 0.5, 1.0, 3.0]))
        self.greedy = self.temperature == 0 or self.method == "greedy"
        self._fill()

    def _fill(self):
        rng, vocab = self.rng, self.vocab
        kinds = rng.choice(KINDS, size=3) if rng.random() < 0.7 else ["random", "masked"]
        self.target, self.draft, self.p, self.q, self.probs = {}, {}, {}, {}, {}
        for depth in range(self.num_drafts + 1):
            for prefix in itertools.product(range(vocab), repeat=depth):
                target = random_row(rng, vocab, rng.choice(kinds))
                draft = random_row(rng, self.width, rng.choice(kinds))
                relation = rng.random()
                if relation < 0.15:
                    draft = target[: self.width].copy()
                elif relation < 0.3:  # apart
                    chosen = rng.random(vocab) < 0.5
                    target[chosen] = -np.inf
                    draft[~chosen[: self.width]] = -np.inf
                self.target[prefix], self.draft[prefix] = target, draft
                temperature = 0.0 if self.method == "greedy" else self.temperature
                self.p[prefix] = target_law(target, temperature, **self.filters)
                self.q[prefix] = self._proposal(prefix)
        self.stops = {prefix: rng.random() < 0.15 for prefix in self.draft}
        self.holes = {prefix: rng.random() < 0.05 for prefix in self.draft}

    def _proposal(self, prefix):
        temperature = {"logits": self.draft_temperature, "argmax": 0.0}.get(self.form, 1.0)
        law = target_law(self.draft[prefix], temperature)
        if self.form == "probs":  # what is handed over is what was drawn from, in float32
            self.probs[prefix] = law.astype(np.float32)
            law = self.probs[prefix].astype(np.float64)
        return np.concatenate([law, np.zeros(self.vocab - self.width)])

    def cases(self):
        """[(case, chance of its drafts)]"""
        found = []
        for x in itertools.product(range(self.vocab), repeat=self.num_drafts):
            prefixes = [x[:i] for i in range(self.num_drafts)]
            chance = np.prod([self.q[at][y] for at, y in zip(prefixes, x, strict=True)])
            if chance > 0:
                found.append((self._case(x, prefixes), float(chance)))
        return found

    def _case(self, x, prefixes):
        stops = [i for i, at in enumerate(prefixes) if self.stops[at]]
        count = stops[0] if stops else self.num_drafts
        ids, prefixes = list(x[:count]), [x[:i] for i in range(count + 1)]
        for i, at in enumerate(prefixes[:-1]):
            if self.holes[at]:
                ids[i] = int(self.rng.choice([-1, -5, self.vocab, 2**40]))
                break
        rows = [self.target[at] for at in prefixes]
        case = Case(
            tuple(ids),
            np.stack(rows),
            np.stack([self.p[at] for at in prefixes]),
            [is_dead(row) for row in rows],
        )
        if self.form in ("logits", "probs"):
            given = self.draft if self.form == "logits" else self.probs
            case.draft = np.array([given[at] for at in prefixes[:-1]], dtype=np.float32)
            case.draft = case.draft.reshape(count, self.width)
            if self.form == "probs" or self.draft_temperature > 0:
                case.q = np.array([self.q[at] for at in prefixes[:-1]]).reshape(count, self.vocab)
            unread = self.greedy or self.form == "probs"
            case.bad = [not unread and is_dead(self.draft[at]) for at in prefixes[:-1]]
        return case

    def parameters(self, num_drafts):
        given = {"temperature": self.temperature, **self.filters}
        if self.form == "probs":
            given["probabilities"] = True
        if self.own_draft_temperature:
            given["draft_temperature"] = self.draft_temperature
        self.rates = None
        if self.method == "synthetic":
            self.rates = self.rng.choice([0, 0.25, 0.5, 1.0], num_drafts).astype(np.float32)
            given["synthetic_acceptance_rates"] = torch.from_numpy(self.rates)
        return given


def is_told(case, i, greedy) -> bool:
    """Whether the law after i accepted drafts is more than rounding.

    A lossless rule rejects about as often as there is residual mass, which hides the rounding of a
    small one. Synthetic rates reject where nothing is left of p - q too.
    """
    if i == len(case.ids) or greedy or not 0 <= case.ids[i] < case.rows.shape[1]:
        return True
    if case.q is None:
        return 1 - case.laws[i][case.ids[i]] > 1e-9
    return np.maximum(case.laws[i] - case.q[i], 0).sum() > 0.1


def check_world(seed):
    rng = np.random.default_rng(seed)
    try:
        world = World(rng)
    except BorderlineError:
        return
    cases, weights = zip(*world.cases(), strict=True)
    given = world.parameters(max(len(case.ids) for case in cases))
    chances, finals = Operator(list(cases), world.method, **given).laws(rng)
    what = (seed, world.method, world.form, world.filters)
    for case, weight, chance, final in zip(cases, weights, chances, finals, strict=True):
        if weight < UNLIKELY:
            continue
        exact, exact_finals = rule(case, world.method, world.greedy, world.rates)
        count = len(case.ids) + 1
        np.testing.assert_allclose(chance[:count], exact, atol=RULE_MARGIN, err_msg=what)
        joint, expected = chance[:count, None] * final[:count], exact[:, None] * exact_finals
        if world.method == "synthetic":
            told = [is_told(case, i, world.greedy) for i in range(count)]
            joint, expected = joint[told], expected[told]
        np.testing.assert_allclose(joint, expected, atol=RULE_MARGIN, err_msg=what)
    if world.method == "synthetic":
        return
    length = world.num_drafts + 1
    law = text_law(cases, weights, chances, finals, world.p.__getitem__, length)
    target = plain_law(world.p.__getitem__, length, world.vocab)
    np.testing.assert_allclose(law, target, atol=LAW_MARGIN, rtol=0, err_msg=what)


@pytest.mark.parametrize("part", range(4))
def test_worlds_have_the_target_law(part):
    for seed in range(part, 160, 4):
        check_world(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_thousands_of_worlds_have_the_target_law(part):
    for seed in range(1000 + 250 * part, 1250 + 250 * part):
        check_world(seed)


def test_another_q_than_was_drawn_from_is_seen():
    """Negative control: drafts at temperature 1, judged as if at 2."""
    rows = {(): np.float32([0, 1, 2])} | {(y,): np.float32([1, 0, 1]) for y in range(3)}
    laws = {prefix: target_law(row) for prefix, row in rows.items()}
    draft = np.float32([[2, 1, 0]])
    cases = [
        Case((x,), np.stack([rows[()], rows[x,]]), np.stack([laws[()], laws[x,]]), [False] * 2)
        for x in range(3)
    ]
    for case in cases:
        case.draft = draft
    operator = Operator(cases, "block", temperature=1.0, draft_temperature=2.0)
    chances, finals = operator.laws(np.random.default_rng(0))
    law = text_law(cases, target_law(draft[0]), chances, finals, laws.__getitem__, 2)
    assert np.abs(law - plain_law(laws.__getitem__, 2, 3)).max() > 0.01
