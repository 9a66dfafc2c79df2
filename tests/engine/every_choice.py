"""Runs a program once for every outcome of its random draws, with the chance of each run.

`sampling.sample` and `sampling.rejection_sample` are replaced by choices between all tokens, or all
(accepted drafts, last token), that `law_oracle` says are possible. So the law of what
an engine writes is a sum over runs, exact up to float64, and whatever in the loop looks where it
must not shows as a difference, however small.
"""

import numpy as np
import torch
from law_oracle import Case, rule, target_law

from dspark_ext import sampling


class Choices:
    """The choices of one run; `advance` turns to the next run, depth first."""

    def __init__(self):
        self.taken, self.options = [], []
        self._start()

    def _start(self):
        self.depth, self.chance = 0, 1.0

    def choose(self, chances) -> int:
        """Index of the chosen outcome, among those of positive chance."""
        possible = np.flatnonzero(np.asarray(chances) > 0)
        if self.depth == len(self.taken):
            self.taken.append(0)
            self.options.append(len(possible))
        assert self.options[self.depth] == len(possible), "runs with equal choices differ"
        index = possible[self.taken[self.depth]]
        self.depth += 1
        self.chance *= float(chances[index])
        return int(index)

    def advance(self) -> bool:
        assert self.depth == len(self.taken)
        while self.taken and self.taken[-1] + 1 == self.options[-1]:
            self.taken.pop()
            self.options.pop()
        if not self.taken:
            return False
        self.taken[-1] += 1
        self._start()
        return True


def law_of_runs(monkeypatch, run) -> tuple[dict, int]:
    """{what `run()` returns: its chance}, and the number of runs."""
    choices, law, runs, more = Choices(), {}, 0, True
    monkeypatch.setattr(sampling, "sample", _sample(choices))
    monkeypatch.setattr(sampling, "rejection_sample", _rejection_sample(choices))
    while more:
        text = run()
        law[text] = law.get(text, 0.0) + choices.chance
        runs += 1
        more = choices.advance()
    return law, runs


def _row_parameters(parameters, row):
    """Temperature and filters of one row, None left out."""
    found = {}
    for name in ("temperature", "top_k", "top_p", "min_p"):
        value = parameters.get(name)
        if value is not None:
            found[name] = value[row].item() if isinstance(value, torch.Tensor) else value
    return found


def _sample(choices):
    def sample(logits, **parameters):
        ids = [
            choices.choose(target_law(row.numpy(), **_row_parameters(parameters, place)))
            for place, row in enumerate(logits.float())
        ]
        return sampling.SampleOutput(torch.tensor(ids), torch.zeros(len(ids)))

    return sample


def _rejection_sample(choices):
    def rejection_sample(
        logits, ids, draft_logits=None, *, query_start_loc, method="block", **parameters
    ):
        size, width = ids.shape
        tokens = torch.full((size, width + 1), -1, dtype=torch.int64)
        accepted = torch.zeros(size, dtype=torch.int32)
        starts = query_start_loc.tolist()
        for b in range(size):
            law = _row_parameters(parameters, b)
            rows = logits[starts[b] : starts[b + 1]].float().numpy()
            count = len(rows) - 1
            drafts = tuple(ids[b, :count].tolist())
            case = Case(drafts, rows, np.stack([target_law(row, **law) for row in rows]), [])
            case.dead = [not (row > -np.inf).any() for row in rows]
            greedy = law["temperature"] == 0
            if draft_logits is not None and not greedy:
                kept = draft_logits[b, :count].float().numpy()
                laws = [target_law(row, law["temperature"]) for row in kept]
                case.q = np.array(laws).reshape(count, rows.shape[1])
                case.bad = [not (row > -np.inf).any() for row in kept]
            chances, finals = rule(case, method, greedy)
            outcome = choices.choose((chances[:, None] * finals).ravel())
            tau, last = divmod(outcome, rows.shape[1])
            tokens[b, :tau] = torch.tensor(drafts[:tau], dtype=torch.int64)
            tokens[b, tau] = last
            accepted[b] = tau
        last = tokens.gather(1, accepted.long()[:, None])[:, 0]
        zeros = torch.zeros(size, dtype=torch.int32)
        return sampling.RejectionOutput(tokens, accepted, accepted + 1, last, zeros, None)

    return rejection_sample
