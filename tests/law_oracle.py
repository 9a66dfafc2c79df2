"""An oracle of emitted laws, and the law of the operator found by bisection of its uniforms.

The oracle knows the definitions of docs/numerics.md only, in float64 over whole rows: no tiles, no
float32, no integer prefix sums. The operator is a function of its uniforms that is constant between
break points; `Operator` finds these, so its law is exact to 2^-40, without one random number.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import torch

from dspark_ext import sampling

HIGH = 1.0 - 2.0**-53
STEPS = 40  # bisections of [0, 1]


class BorderlineError(Exception):
    """A filter whose decision hangs on less than what float32 weights can tell."""


def target_law(row, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, margin=1e-5):
    """The law of one row after all filters; one at id 0 if nothing is above -inf."""
    x = np.array(row, dtype=np.float64)
    x[np.isnan(x)] = -np.inf
    x = np.minimum(x, float(np.finfo(np.float32).max))
    law = np.zeros(len(x))
    order = [i for i in sorted(range(len(x)), key=lambda i: (-x[i], i)) if x[i] > -np.inf]
    if not order or temperature == 0:
        law[order[0] if order else 0] = 1.0
        return law
    weight = np.zeros(len(x))
    weight[order] = np.exp((x[order] - x[order[0]]) / float(np.float32(temperature)))
    if 0 < top_k < len(x):
        order = order[:top_k]
    top_p, min_p = float(np.float32(top_p)), float(np.float32(min_p))
    if top_p < 1:
        mass = np.cumsum(weight[order]) / weight[order].sum()
        if np.abs(mass[:-1] - top_p).min(initial=1.0) < margin:
            raise BorderlineError
        order = order[: int((mass < top_p).sum()) + 1]
    if min_p > 0:
        if np.abs(weight[order[1:]] - min_p).min(initial=1.0) < margin and min_p < 1:
            raise BorderlineError
        order = [i for i in order if weight[i] >= min_p or i == order[0]]
    law[order] = weight[order] / weight[order].sum()
    return law


@dataclass
class Case:
    """One request: its rows as given to the operator, and what the oracle has to know of them."""

    ids: tuple[int, ...]
    rows: np.ndarray  # float32 [n + 1, V]
    laws: np.ndarray  # float64 [n + 1, V]
    dead: list[bool]  # rows that accept nothing (NaN, or nothing above -inf)
    draft: np.ndarray | None = None  # float32 [n, V_draft], logits or probabilities
    q: np.ndarray | None = None  # float64 [n, V]; None: a point mass
    bad: list[bool] = field(default_factory=list)  # draft rows that are no distribution


def slots(case: Case) -> int:
    """Drafts before the first slot without a proposal."""
    for i, x in enumerate(case.ids):
        if not 0 <= x < case.rows.shape[1] or case.dead[i]:
            return i
        if case.q is not None and case.bad[i]:
            return i
    return len(case.ids)


def rule(case: Case, method: str, greedy: bool, rates=None):
    """(chances of 0 .. n accepted drafts, law of the last token for each), by definition."""
    n, vocab = slots(case), case.rows.shape[1]
    point = np.eye(vocab)
    q = point[list(case.ids[:n])] if case.q is None or greedy else case.q
    p, x = case.laws, case.ids
    chances, finals = np.zeros(len(case.ids) + 1), p.copy()

    def residual(a, i):
        rest = np.maximum(a * p[i] - q[i], 0.0)
        if case.q is None or greedy:
            rest = p[i] * (1 - point[x[i]])
        return rest

    if method == "block" and not greedy:
        prefix, heights = [1.0], []
        for i in range(n):
            a, b = prefix[-1] * p[i][x[i]], q[i][x[i]]
            prefix.append(min(1.0, a / b) if b > 0 else float(a > 0))
        for i in range(1, n + 1):
            if i == n:
                heights.append(prefix[n])
                continue
            mass = np.maximum(prefix[i] * p[i] - q[i], 0.0).sum()
            if case.q is None:
                mass = prefix[i] * (1 - p[i][x[i]])
            below = mass + 1 - prefix[i]
            heights.append(mass / below if below > 0 else 1.0)
        left = 1.0
        for i in range(n, 0, -1):
            chances[i] = left * heights[i - 1]
            left *= 1 - heights[i - 1]
        chances[0] = left
    else:
        prefix, left = [1.0] * (n + 1), 1.0
        for i in range(n):
            a, b = p[i][x[i]], q[i][x[i]]
            accept = rates[i] if rates is not None else min(1.0, a / b) if b > 0 else float(a > 0)
            chances[i] = left * (1 - accept)
            left *= accept
        chances[n] = left
    for i in range(n):
        rest = residual(prefix[i], i)
        if rest.sum() > (1e-30 if case.q is None or greedy else 1e-12):
            finals[i] = rest / rest.sum()
        if rates is not None and greedy:
            finals[i] = p[i]
    return chances, finals


class Operator:
    """Laws of `rejection_sample` on many cases at once, from its break points."""

    def __init__(self, cases: list[Case], method: str, **parameters):
        self.cases, self.method, self.parameters = cases, method, parameters
        self.num_drafts = max([len(case.ids) for case in cases], default=0)
        self.vocab = cases[0].rows.shape[1]

    def run(self, which, uniforms):
        """Calls the operator on the cases `which` (indices, repeats allowed)."""
        cases, drafts = [self.cases[i] for i in which], self.num_drafts
        lengths = np.array([len(case.ids) for case in cases])
        ids = np.full((len(cases), drafts), -7, dtype=np.int64)
        width = next((c.draft.shape[1] for c in self.cases if c.draft is not None), None)
        draft = None
        if width is not None:
            draft = np.full((len(cases), drafts, width), np.nan, dtype=np.float32)
        for b, case in enumerate(cases):
            ids[b, : lengths[b]] = case.ids
            if draft is not None and lengths[b]:
                draft[b, : lengths[b]] = case.draft
        given = dict(self.parameters)
        if draft is not None:
            name = "draft_probs" if given.pop("probabilities", False) else "draft_logits"
            given[name] = torch.from_numpy(draft)
        starts = np.concatenate([[0], np.cumsum(lengths + 1)])
        out = sampling.rejection_sample(
            torch.from_numpy(np.concatenate([case.rows for case in cases])),
            torch.from_numpy(ids),
            query_start_loc=torch.from_numpy(starts),
            method=self.method,
            seeds=0,
            positions=0,
            uniforms=torch.from_numpy(uniforms),
            **given,
        )
        return out.num_accepted.numpy(), out.last_token.numpy()

    def bisect(self, which, uniforms, column, below):
        """sup of u in `column` with `below(accepted, last token)`, for each entry of `which`."""
        low, high = np.zeros(len(which)), np.ones(len(which))
        entries = np.arange(len(which))
        for step in range(STEPS + 1):
            # The first probe is the top: a predicate true there has break point 1.
            middle = np.full(len(which), HIGH) if step == 0 else (low + high) / 2
            uniforms[entries, column] = np.where(high - low > 0, np.minimum(middle, HIGH), low)
            true = below(*self.run(which, uniforms))
            low = np.where(true, 1.0 if step == 0 else middle, low)
            high = np.where(true, high, high if step == 0 else middle)
        uniforms[entries, column] = 0.0
        return np.where(below(*self.run(which, uniforms)), low, 0.0)

    def wanted(self, tau: int) -> np.ndarray:
        """Acceptance draws under which exactly `tau` drafts are accepted, if that can be."""
        u = np.full(self.num_drafts + 1, HIGH)
        u[:tau] = 0.0
        return u

    def laws(self, rng):
        """[(chances of each accepted length, law of the last token for each)], like `rule`."""
        total, drafts, vocab = len(self.cases), self.num_drafts, self.vocab
        which = np.repeat(np.arange(total), drafts)
        column = np.tile(np.arange(drafts), total)
        start = np.array([self.wanted(i + 1) for i in column]).reshape(len(which), drafts + 1)
        cuts = np.zeros((total, drafts))
        if len(which):
            block = self.method == "block"
            found = self.bisect(
                which,
                start,
                column,
                lambda tau, _: tau == column + 1 if block else tau > column,
            )
            cuts = found.reshape(total, drafts)
        chances = self._lengths(cuts)
        self._check_lengths(cuts, rng)
        finals = np.zeros((total, drafts + 1, vocab))
        entries = [(c, t) for c in range(total) for t in range(len(self.cases[c].ids) + 1)]
        entries = [(c, t) for c, t in entries if chances[c, t] > 0]
        which = np.repeat([c for c, _ in entries], vocab - 1)
        taus = np.repeat([t for _, t in entries], vocab - 1)
        ids = np.tile(np.arange(vocab - 1), len(entries))
        start = np.array([self.wanted(t) for t in taus])
        reached, _ = self.run(which, start)
        assert (reached == taus).all()
        steps = self.bisect(which, start, np.full(len(which), drafts), lambda _, y: y <= ids)
        for (c, t), cut in zip(entries, steps.reshape(-1, vocab - 1), strict=True):
            finals[c, t] = np.diff(np.concatenate([[0.0], cut, [1.0]]))
        return chances, finals

    def _lengths(self, cuts):
        total, drafts = cuts.shape
        chances, left = np.zeros((total, drafts + 1)), np.ones(total)
        if self.method == "block":
            for i in range(drafts, 0, -1):
                chances[:, i] = left * cuts[:, i - 1]
                left = left * (1 - cuts[:, i - 1])
            chances[:, 0] = left
        else:
            for i in range(drafts):
                chances[:, i] = left * (1 - cuts[:, i])
                left = left * cuts[:, i]
            chances[:, drafts] = left
        return chances

    def _check_lengths(self, cuts, rng, trials=8):
        """The lengths follow from the cuts alone: largest i below its cut, or all up to i."""
        which = np.repeat(np.arange(len(cuts)), trials)
        u = rng.random((len(which), cuts.shape[1] + 1))
        accepted, _ = self.run(which, u)
        below = u[:, :-1] < cuts[which]
        if self.method == "block":
            places = np.arange(1, cuts.shape[1] + 1)
            expected = np.where(below, places, 0).max(axis=1, initial=0)
        else:
            expected = np.cumprod(below, axis=1).sum(axis=1)
        assert (accepted == expected).all()


def text_law(cases, weights, chances, finals, law_of, length):
    """Law of the first `length` tokens: what is emitted, then the target alone."""
    vocab = cases[0].rows.shape[1]
    law = np.zeros([vocab] * length)
    for case, weight, chance, final in zip(cases, weights, chances, finals, strict=True):
        for tau, y in itertools.product(range(len(case.ids) + 1), range(vocab)):
            mass = weight * chance[tau] * final[tau][y]
            if mass > 0:
                law += _spread((*case.ids[:tau], y), mass, law_of, length, vocab)
    return law


def _spread(prefix, mass, law_of, length, vocab):
    law = np.zeros([vocab] * length)
    stack = [(tuple(prefix[:length]), mass)]
    while stack:
        at, left = stack.pop()
        if len(at) == length:
            law[at] += left
            continue
        stack += [((*at, y), left * chance) for y, chance in enumerate(law_of(at)) if chance > 0]
    return law


def plain_law(law_of, length, vocab):
    return _spread((), 1.0, law_of, length, vocab)
