"""Whether to draft at all: a decision taken before anything of the step is drawn."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from .cost_table import CostTable

_MOST_CREDIT = 16.0  # plain steps that probes may use up at once


@dataclass
class _Evidence:
    """Sums over drafted blocks, older ones weighing less."""

    blocks: float = 0.0
    verified: float = 0.0
    accepted: float = 0.0
    # how much there ever was, not weighed
    num_blocks: int = 0
    num_steps: int = 0

    def add(self, blocks: int, verified: int, accepted: int, half_life: float) -> None:
        decay = 0.5 ** (blocks / half_life)
        self.blocks = self.blocks * decay + blocks
        self.verified = self.verified * decay + verified
        self.accepted = self.accepted * decay + accepted
        self.num_blocks += blocks
        self.num_steps += 1

    def plus(self, other: "_Evidence", at_most: float) -> "_Evidence":
        """With another's, which counts as at most so many blocks."""
        share = min(1.0, at_most / other.blocks) if other.blocks else 0.0
        return _Evidence(
            self.blocks + share * other.blocks,
            self.verified + share * other.verified,
            self.accepted + share * other.accepted,
            self.num_blocks + other.num_blocks,
            self.num_steps + other.num_steps,
        )


class DraftGate:
    """Whether to draft in the next step, or to decode plainly.

    `schedule` decides how much of a block is verified when the drafting has been paid for. With
    many requests at a time drafting itself can cost more than it brings, so ask first:

        drafted = gate.should_draft(num_requests)
        # a plain step verifies nothing: schedule(None, mode="fixed", num_drafts=0, capacity=...)
        gate.update(num_requests, drafted, num_verified, num_accepted)

    Drafting pays if the tokens that blocks brought outweigh the time of drafting and of their rows,

        (1 + accepted per block) * seconds(R rows)
            >= seconds(R * (1 + verified per block) rows) + draft_seconds(R)

    for R requests, with times of the cost table and averages over earlier steps of about as many
    requests (a power of two and what lies below the next), helped out by those of the nearest
    number while they are few. It counts what was accepted, not what was promised, so confidences
    that are not calibrated do not mislead it. In doubt, within one standard error, it drafts.

    Where drafting does not pay it still drafts now and then, to learn when it pays again. These
    probes may cost `probe_share` of the time; that bounds what is lost against plain decoding,
    apart from the first steps.

    Lossless: when it is asked nothing of the step is drawn yet, and to verify nothing is a length
    like any other (docs/losslessness.md). What it is told must be of steps that are over; `update`
    may come a step or two late.

    It lives on the host, for the host launches the drafter or does not.

    Args:
        cost: seconds of a step; read once.
        draft_seconds: seconds it takes to draft for a number of requests, what goes with it (the
            drafter's taking in of features) included. Then the second curve of `cost` is something
            that every step pays. By default the second curve is what drafting costs, as
            `profile_cost_table` measures it, and a plain step does not pay it.
        probe_share: share of the time that probes may cost, >= 0; at 0 a closed gate stays closed.
        half_life: blocks after which a block weighs half, > 0.
        min_blocks, min_steps: what has to be drafted before the gate may close, >= 1. The first
            step alone is not typical of a schedule that looks back.

    Raises ValueError naming the argument.
    """

    def __init__(
        self,
        cost: CostTable,
        draft_seconds: Callable[[int], float] | None = None,
        *,
        probe_share: float = 0.01,
        half_life: float = 1024.0,
        min_blocks: int = 64,
        min_steps: int = 3,
    ):
        for name, good, expected, value in (
            ("probe_share", probe_share >= 0, ">= 0", probe_share),
            ("half_life", half_life > 0, "> 0", half_life),
            ("min_blocks", min_blocks >= 1, ">= 1", min_blocks),
            ("min_steps", min_steps >= 1, ">= 1", min_steps),
        ):
            if not good:
                raise _error(f"{name}: expected {expected}, got {value}")
        if draft_seconds is None and cost.request_seconds is None:
            raise _error(
                "draft_seconds: needed with a cost table that has no second curve, or drafting "
                "would count as free"
            )
        self._rows = cost.seconds.tolist()
        self._requests = [0.0] if cost.request_seconds is None else cost.request_seconds.tolist()
        if draft_seconds is None:
            self._drafting, self._requests = _curve(self._requests), [0.0]
        else:
            self._drafting = draft_seconds
        self._probe_share, self._half_life = probe_share, half_life
        self._min_blocks, self._min_steps = min_blocks, min_steps
        self._evidence: dict[int, _Evidence] = {}
        self._credit = 0.0  # seconds that probes may still cost

    def pays(self, num_requests: int, num_other_rows: int = 0) -> bool:
        """Whether drafting is thought to pay; True as long as too little is known."""
        _check_rows("pays", num_other_rows)
        evidence = self._about(num_requests)
        if not self._enough(evidence):
            return True
        return self._gain(evidence, num_requests, num_other_rows, 1.0) >= 0.0

    def should_draft(
        self, num_requests: int, num_other_rows: int = 0, catch_up_seconds: float = 0.0
    ) -> bool:
        """Whether to draft for the `num_requests` requests of the next step.

        num_other_rows: rows of the same pass that are neither anchors nor drafts (prefill).
        catch_up_seconds: what drafting costs once more than usual because it paused, if the drafter
            takes in the tokens of plain steps only when it is used again.
        """
        _check_rows("should_draft", num_other_rows)
        _checked("should_draft: catch_up_seconds", catch_up_seconds)
        if num_requests < 1:
            return False
        if self.pays(num_requests, num_other_rows):
            return True
        loss = -self._gain(self._about(num_requests), num_requests, num_other_rows)
        return self._probe_share > 0 and loss + catch_up_seconds <= self._credit

    def update(
        self,
        num_requests: int,
        drafted: bool,
        num_verified: int = 0,
        num_accepted: int = 0,
        num_other_rows: int = 0,
        catch_up_seconds: float = 0.0,
    ) -> None:
        """Takes in a step.

        Args:
            num_requests, num_other_rows, catch_up_seconds: as `should_draft` was asked.
            drafted: what was done.
            num_verified, num_accepted: drafts verified and accepted, over all requests.
        """
        if not 0 <= num_accepted <= num_verified or (num_verified and not drafted):
            raise _error(
                "update: expected num_accepted <= num_verified, and 0 without drafts, got "
                f"{num_accepted}, {num_verified} and drafted={drafted}"
            )
        _check_rows("update", num_other_rows)
        _checked("update: catch_up_seconds", catch_up_seconds)
        if num_requests < 1:
            return
        plain = self._seconds(num_requests, num_requests, num_other_rows)
        if drafted:
            if not self.pays(num_requests, num_other_rows):
                step = _Evidence(num_requests, num_verified, num_accepted)
                self._credit += self._gain(step, num_requests, num_other_rows) - catch_up_seconds
            evidence = self._evidence.setdefault(num_requests.bit_length(), _Evidence())
            evidence.add(num_requests, num_verified, num_accepted, self._half_life)
        self._credit = min(self._credit + self._probe_share * plain, _MOST_CREDIT * plain)

    def _enough(self, evidence: _Evidence) -> bool:
        return evidence.num_blocks >= self._min_blocks and evidence.num_steps >= self._min_steps

    def _about(self, num_requests: int) -> _Evidence:
        """What is known about batches of such a size."""
        size = num_requests.bit_length()
        own = self._evidence.get(size, _Evidence())
        others = [other for other in self._evidence if other != size]
        if self._enough(own) or not others:
            return own
        nearest = self._evidence[min(others, key=lambda other: (abs(other - size), other))]
        return own.plus(nearest, self._min_blocks)

    def _gain(
        self, evidence: _Evidence, num_requests: int, num_other_rows: int, errors: float = 0.0
    ) -> float:
        """Seconds a drafting step gains on plain decoding of the same number of tokens, with so
        many standard errors added to the accepted drafts."""
        accepted = evidence.accepted / evidence.blocks
        # variance of a geometric number of accepted drafts
        accepted += errors * (accepted * (1.0 + accepted) / evidence.blocks) ** 0.5
        rows = num_requests * (1.0 + evidence.verified / evidence.blocks)
        plain = self._seconds(num_requests, num_requests, num_other_rows)
        drafting = _checked("draft_seconds", self._drafting(num_requests))
        step = self._seconds(rows, num_requests, num_other_rows) + drafting
        return plain * (1.0 + accepted) - step

    def _seconds(self, rows: float, num_requests: int, num_other_rows: int) -> float:
        """Of a pass; between two numbers of rows, on the line through them."""
        rows += num_other_rows
        low = min(int(rows), len(self._rows) - 2)
        seconds = self._rows[low] + (rows - low) * (self._rows[low + 1] - self._rows[low])
        return seconds + self._requests[min(num_requests, len(self._requests) - 1)]


def _curve(values: list[float]) -> Callable[[int], float]:
    return functools.partial(_at, values)  # unlike a closure it can be pickled


def _at(values: list[float], count: int) -> float:
    return values[min(count, len(values) - 1)]


def _checked(name: str, seconds: float) -> float:
    if not seconds >= 0.0:
        raise _error(f"{name}: expected >= 0 seconds, got {seconds}")
    return seconds


def _check_rows(method: str, num_other_rows: int) -> None:
    if num_other_rows < 0:
        raise _error(f"{method}: num_other_rows: expected >= 0, got {num_other_rows}")


def _error(text: str) -> ValueError:
    return ValueError(f"dspark_ext.DraftGate: {text}")
