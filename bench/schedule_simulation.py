"""A serving loop in discrete steps: recorded drafts, real schedules, costs from a table.

R requests are served at any time; one that ends makes room for the next. In a step, a policy says
whether they are drafted for, then, having seen the confidences, how many drafts of each are
verified. A request emits one token and the verified drafts that were accepted in the recording.
Prompts cost nothing here: all policies would pay the same for them.
"""

import dataclasses
import json
import pathlib

import numpy as np
import torch
from schedule_costs import NUM_DRAFTS, USUAL_APPEND, StepCosts

from dspark_ext.calibration import calibration_report, fit_calibration
from dspark_ext.verify import DraftGate, schedule


@dataclasses.dataclass
class Traces:
    """Blocks of recorded texts, one behind every token.

    confidence  float32 [N, K], what the schedules read
    accepted    int64 [N], drafts the target accepts
    starts      int64 [requests + 1], request i owns the blocks starts[i] .. starts[i + 1] - 1
    """

    confidence: torch.Tensor
    accepted: np.ndarray
    starts: np.ndarray


def recorded(path: pathlib.Path) -> dict:
    """The arrays of record_traces.py; `facts` says what was recorded."""
    stored = dict(np.load(path))
    return {**stored, "facts": json.loads(str(stored["facts"]))}


def synthetic(num_requests: int = 80, length: int = 150, seed: int = 0) -> dict:
    """The same arrays of an invented drafter with the acceptance that is published for good ones.

    Logits of true conditional acceptance: a level, a spread between texts, one along a text, and a
    decline along the block. Tuned to about 3.6 tokens per block of five drafts (published: 2.65 to
    3.5 in production, 3 to 6 in the paper's benchmarks) and an AUC of .8 to .9. The head sees them
    through a lens: too sure of itself by half, and by a constant.
    """
    rng = np.random.default_rng(seed)
    logits = np.empty((num_requests * length, NUM_DRAFTS))
    for request in range(num_requests):
        level = 1.75 + 0.6 * rng.standard_normal()
        along = np.empty(length + NUM_DRAFTS)
        along[0] = rng.standard_normal()
        for i in range(1, len(along)):
            along[i] = 0.5 * along[i - 1] + 0.75**0.5 * rng.standard_normal()
        for k in range(NUM_DRAFTS):
            rows = slice(request * length, (request + 1) * length)
            logits[rows, k] = level + 1.4 * along[k : k + length] - 0.1 * k
    kept = rng.random(logits.shape) < 1.0 / (1.0 + np.exp(-logits))
    return {
        "conf_logits": 1.5 * logits + 0.3,
        "accepted": np.cumprod(kept, axis=1).sum(1),
        "starts": np.arange(num_requests + 1) * length,
        "questions": np.arange(num_requests),
        "facts": {"drafter": "invented (synthetic() in schedule_simulation.py)"},
    }


def split(arrays: dict) -> tuple[dict[str, Traces], dict]:
    """Raw and calibrated traces of one half of the prompts, the calibration fitted on the other
    half; and facts, with ECE and AUC on the half that is served."""
    logits = torch.from_numpy(arrays["conf_logits"].astype(np.float64))
    accepted, starts = arrays["accepted"].astype(np.int64), arrays["starts"].astype(np.int64)
    served = arrays["questions"] % 2 == 1
    lengths = np.diff(starts)
    rows = torch.from_numpy(np.repeat(served, lengths))
    counts = torch.from_numpy(accepted)
    calibration = fit_calibration(logits[~rows], counts[~rows], objective="log_loss")
    confidences = {
        "raw": torch.sigmoid(logits[rows]).float(),
        "calibrated": calibration.apply(logits[rows].float()),
    }
    facts = {**arrays["facts"], "blocks_fitted": int((~rows).sum()), "blocks": int(rows.sum())}
    for name, confidence in confidences.items():
        report = calibration_report(confidence, counts[rows])
        facts[f"ece_{name}"] = [round(x, 3) for x in report.ece.tolist()]
        facts[f"auc_{name}"] = [round(x, 3) for x in report.auc.tolist()]
    facts["survival"] = [round(x, 3) for x in report.observed.tolist()]
    facts["temperatures"] = [round(x, 3) for x in calibration.temperatures]
    new_starts = np.concatenate([[0], np.cumsum(lengths[served])])
    traces = {
        name: Traces(confidence, accepted[rows.numpy()], new_starts)
        for name, confidence in confidences.items()
    }
    return traces, facts


class Policy:
    """One way of serving. `name` heads its column; without a gate it drafts in every step.

    mode, arguments  of `schedule`; mode None is plain decoding
    lagged           whether the confidences of the step before decide the number of rows
    gated            whether a `DraftGate` may have everybody decoded plainly
    smooth           whether the schedule reads the cost table without its steps
    """

    def __init__(
        self,
        name: str,
        mode: str | None,
        *,
        lagged: bool = False,
        gated: bool = False,
        smooth: bool = False,
        **arguments,
    ):
        self.name, self.mode, self.arguments = name, mode, arguments
        self.lagged, self.gated, self.smooth = lagged, gated, smooth

    def gate(self, costs: StepCosts) -> DraftGate | None:
        return DraftGate(costs.pass_table(), costs.draft_seconds) if self.gated else None

    def lengths(self, confidence, lagged, costs: StepCosts) -> np.ndarray:
        """Drafts to verify of each request."""
        arguments = dict(self.arguments)
        if self.mode in ("early_stop", "lagged", "uniform"):
            arguments["cost"] = costs.step_table(len(confidence), self.smooth)
        if self.lagged:
            arguments["lagged_confidence"] = lagged
        plan = schedule(confidence, mode=self.mode, **arguments)
        return plan.verify_lens.numpy().astype(np.int64)


POLICIES = [
    Policy("none", None),
    *(Policy(f"fixed {n}", "fixed", num_drafts=n) for n in range(1, NUM_DRAFTS + 1)),
    *(Policy(f"threshold {t}", "threshold", threshold=t) for t in (0.3, 0.5, 0.7)),
    Policy("uniform", "uniform"),
    Policy("uniform lagged", "uniform", lagged=True),
    Policy("early_stop", "early_stop"),
    Policy("early_stop, smooth", "early_stop", smooth=True),
    Policy("lagged", "lagged", lagged=True),
    Policy("gate + uniform lagged", "uniform", lagged=True, gated=True),
    Policy("gate + early_stop", "early_stop", gated=True),
    Policy("gate + early_stop, smooth", "early_stop", gated=True, smooth=True),
    Policy("gate + lagged", "lagged", lagged=True, gated=True),
]


@dataclasses.dataclass
class Outcome:
    """Totals of a run."""

    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    drafting_steps: int = 0
    verified: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


class Requests:
    """The requests being served: `at` [slots] is the block each stands at."""

    def __init__(self, traces: Traces, num_slots: int, seed: int):
        self._traces = traces
        self._rng = np.random.default_rng(seed)
        self._queue: list[int] = []
        self.at = np.zeros(num_slots, np.int64)
        self._end = np.zeros(num_slots, np.int64)
        for slot in range(num_slots):
            self._replace(slot)
        # in the middle of their texts, as a loop that has been running for a while
        self.at += (self._rng.random(num_slots) * (self._end - self.at)).astype(np.int64)

    def advance(self, emitted: np.ndarray) -> tuple[int, np.ndarray]:
        """Of the first slots; tokens still wanted, and the slots where another request begins."""
        count = len(emitted)
        wanted = int(np.minimum(emitted, self._end[:count] - self.at[:count]).sum())
        self.at[:count] += emitted
        finished = np.flatnonzero(self.at[:count] >= self._end[:count])
        for slot in finished:
            self._replace(slot)
        return wanted, finished

    def _replace(self, slot: int) -> None:
        if not self._queue:
            self._queue = self._rng.permutation(len(self._traces.starts) - 1).tolist()
        request = self._queue.pop()
        self.at[slot], self._end[slot] = self._traces.starts[request : request + 2]


class Loop:
    """A serving loop under one policy, with room for `num_slots` requests."""

    def __init__(
        self, policy: Policy, traces: Traces, costs: StepCosts, num_slots: int, seed: int = 0
    ):
        self._policy, self._traces, self._costs = policy, traces, costs
        self._requests = Requests(traces, num_slots, seed)
        self._lagged = torch.ones(num_slots, traces.confidence.shape[1])
        self._pending = np.ones(num_slots, np.int64)  # tokens the drafter has not taken in
        self._gate = policy.gate(costs)

    def serve(self, count: int, num_tokens: int) -> Outcome:
        """Serves `count` requests at a time until `num_tokens` tokens are out."""
        outcome = Outcome()
        while outcome.tokens < num_tokens:
            self._step(count, outcome)
        return outcome

    def _step(self, count: int, outcome: Outcome) -> None:
        costs, gate, pending = self._costs, self._gate, self._pending[:count]
        append = costs.append_seconds(int(np.minimum(pending, costs.window).sum()))
        catch_up = max(0.0, append - costs.append_seconds(USUAL_APPEND * count))
        drafted = self._policy.mode is not None
        if gate:
            drafted = gate.should_draft(count, catch_up_seconds=catch_up)
        lengths = np.zeros(count, np.int64)
        if drafted:
            confidence = self._traces.confidence[torch.from_numpy(self._requests.at[:count])]
            lengths = self._policy.lengths(confidence, self._lagged[:count], costs)
            self._lagged[:count] = confidence
            outcome.seconds += costs.draft[count] + append
            pending[:] = 0
        accepted = np.minimum(self._traces.accepted[self._requests.at[:count]], lengths)
        num_verified, num_accepted = int(lengths.sum()), int(accepted.sum())
        outcome.seconds += costs.pass_seconds(count + num_verified, count)
        if gate:
            gate.update(count, drafted, num_verified, num_accepted, catch_up_seconds=catch_up)
        tokens, finished = self._requests.advance(accepted + 1)
        pending += accepted + 1
        pending[finished] = 1
        self._lagged[torch.from_numpy(finished)] = 1.0
        outcome.tokens += tokens
        outcome.steps += 1
        outcome.drafting_steps += drafted
        outcome.verified += num_verified
