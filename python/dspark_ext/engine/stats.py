"""What a generation reports: events as it goes, outputs and statistics at its end.

Everything here is data under stable names; `to_dict` gives it as JSON-like values.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from ..verify import AcceptanceReport, AcceptanceStats
from .request import Request, TokenLogprobs

_MOST_LATENCIES = 100_000  # a long-lived session keeps the latest


@dataclasses.dataclass(frozen=True)
class StepEvent:
    """What one target pass did for one request.

    request        its index in the call; of a submitted request, its id
    token_ids      emitted tokens, in order
    accepted       for each of them, whether it was an accepted draft
    confidences    conditional confidences of the drafts that were verified
    num_accepted   how many of these the verification accepted (a stop or a limit may have cut the
                   emitted tokens shorter)
    finish_reason  None, "stop", "length" or "error": the target's logits were no distribution (NaN,
                   all -inf); such an event has no tokens
    text           what was added to the request's text: whole characters, and nothing that may
                   still turn out to begin a stop string. Empty without a tokenizer
    logprobs       per token, None unless asked for
    lossy          whether the text may differ in law from the target's (synthetic acceptance)
    """

    request: int
    token_ids: list[int]
    accepted: list[bool]
    confidences: list[float]
    num_accepted: int
    finish_reason: str | None
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None
    lossy: bool = False

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class RequestStats:
    """Counts and times of one request; a rate with nothing to count is NaN, None in `to_dict`.

    prompt_tokens, emitted
    passes                 target passes that verified for it
    drafted                drafts that the drafter made
    verified, accepted     drafts that went through the target, that were accepted
    verified_by_position, accepted_by_position
                           the same by position in the step
    seconds                from its submission to its last token
    first_token_seconds    to its first token
    token_latency_median, token_latency_p90
                           seconds per token after the first; tokens that one pass emitted share it
    """

    prompt_tokens: int
    emitted: int
    passes: int
    drafted: int
    verified: int
    accepted: int
    verified_by_position: list[int]
    accepted_by_position: list[int]
    seconds: float
    first_token_seconds: float
    token_latency_median: float
    token_latency_p90: float

    @property
    def trimmed(self) -> int:
        """Rows saved: drafts that the schedule or a limit kept from the target."""
        return self.drafted - self.verified

    @property
    def acceptance_rate(self) -> float:
        return ratio(self.accepted, self.verified)

    @property
    def acceptance_by_position(self) -> list[float]:
        return [ratio(*pair) for pair in zip(self.accepted_by_position, self.verified_by_position)]

    @property
    def tokens_per_pass(self) -> float:
        return ratio(self.emitted, self.passes)

    @property
    def tokens_per_second(self) -> float:
        return ratio(self.emitted, self.seconds)

    def to_dict(self) -> dict[str, Any]:
        return json_like(self)


@dataclasses.dataclass(frozen=True)
class RequestOutput:
    """A finished request.

    token_ids, accepted  emitted tokens and which of them were accepted drafts
    text                 decoded, up to the stop string if one ended it; None without a tokenizer
    finish_reason        "stop", "length", "cancelled" or "error" (its pass failed, or its logits
                         were no distribution)
    passes               target passes that verified for it
    seconds              time of the engine from the start of the call to its last token; what the
                         taker of a stream does between events does not count
    first_token_seconds  the same up to its first token
    logprobs             per token, None unless asked for
    lossy                whether the text may differ in law from the target's
    stats                `RequestStats`
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    accepted: list[bool]
    text: str | None
    finish_reason: str
    passes: int
    seconds: float
    first_token_seconds: float
    logprobs: list[TokenLogprobs] | None = None
    lossy: bool = False
    stats: RequestStats | None = None

    @property
    def tokens_per_pass(self) -> float:
        return ratio(len(self.token_ids), self.passes)

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "stats": self.stats and self.stats.to_dict()}


@dataclasses.dataclass
class GenerationStats:
    """Totals of a call, or of a session so far.

    steps            target passes, each for all running requests together
    plain_steps      those of them that verified without any draft
    passes           steps counted per request: a pass that verifies for 8 requests counts 8
    emitted          tokens
    finished, cancelled
                     requests
    drafted          drafts that the drafter made
    prefill_rows     prompt tokens that went through the target before their anchors
    verified_rows    anchors and drafts that went through the target
    seconds          time of the engine, of which draft_seconds (drafter, its context, scheduling),
                     target_seconds and sample_seconds (rejection sampling, reading its result). On
                     a GPU a share counts where the host waits
    first_token_seconds, token_seconds
                     of the requests so far: time to the first token; seconds per token after it
    acceptance       by position and by request; see `AcceptanceReport`
    """

    steps: int = 0
    plain_steps: int = 0
    passes: int = 0
    emitted: int = 0
    finished: int = 0
    cancelled: int = 0
    drafted: int = 0
    prefill_rows: int = 0
    verified_rows: int = 0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    sample_seconds: float = 0.0
    first_token_seconds: collections.deque = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_MOST_LATENCIES), repr=False
    )
    token_seconds: collections.deque = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_MOST_LATENCIES), repr=False
    )
    acceptance: AcceptanceReport | None = dataclasses.field(default=None, repr=False)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens emitted per request and target pass, bonus included."""
        return ratio(self.emitted, self.passes)

    @property
    def tokens_per_second(self) -> float:
        return ratio(self.emitted, self.seconds)

    @property
    def other_seconds(self) -> float:
        return self.seconds - self.draft_seconds - self.target_seconds - self.sample_seconds

    @property
    def drafting_share(self) -> float:
        """Share of the time that went into drafting."""
        return ratio(self.draft_seconds, self.seconds)

    @property
    def verified_drafts(self) -> int:
        return self.verified_rows - self.passes

    @property
    def trimmed_rows(self) -> int:
        """Rows saved: drafts that the schedule or a limit kept from the target."""
        return self.drafted - self.verified_drafts

    @property
    def first_token_median(self) -> float:
        return quantile(self.first_token_seconds, 0.5)

    @property
    def token_latency_median(self) -> float:
        return quantile(self.token_seconds, 0.5)

    @property
    def token_latency_p90(self) -> float:
        return quantile(self.token_seconds, 0.9)

    def to_dict(self) -> dict[str, Any]:
        """Counters, the derived figures, and of the acceptance what is by position."""
        values = json_like(self)
        for name in ("first_token_seconds", "token_seconds", "acceptance"):
            values.pop(name)
        report = self.acceptance
        if report is not None:
            values["acceptance"] = {
                "steps": report.steps,
                "drafted": report.drafted,
                "accepted": report.accepted,
                "rate": finite(report.acceptance_rate),
                "mean_length": finite(report.mean_length),
                "histogram": report.histogram.tolist(),
                "verified_by_position": report.verified_by_position.tolist(),
                "accepted_by_position": report.accepted_by_position.tolist(),
                "rate_by_position": [finite(x) for x in report.acceptance_by_position.tolist()],
            }
        return values


def request_output(request: Request, finish_reason: str, now: float, lossy: bool) -> RequestOutput:
    """The output of a request that ended at `now`, in seconds of the engine."""
    emitted = request.token_ids[request.prompt_length :]
    seconds = (request.passes[-1][0] if request.passes else now) - request.submitted
    first = request.passes[0][0] - request.submitted if request.passes else math.nan
    latencies = token_latencies(request)
    accepted = accepted_by_position(request.histogram)
    return RequestOutput(
        prompt_token_ids=request.token_ids[: request.prompt_length],
        token_ids=emitted,
        accepted=request.accepted,
        text=None if request.text is None else request.text.text,
        finish_reason=finish_reason,
        passes=len(request.passes),
        seconds=seconds,
        first_token_seconds=first,
        logprobs=None if request.params.logprobs is None else request.logprobs,
        lossy=lossy and request.speculative,
        stats=RequestStats(
            prompt_tokens=request.prompt_length,
            emitted=len(emitted),
            passes=len(request.passes),
            drafted=request.drafted,
            verified=sum(request.verified),
            accepted=sum(accepted),
            verified_by_position=request.verified,
            accepted_by_position=accepted,
            seconds=seconds,
            first_token_seconds=first,
            token_latency_median=quantile(latencies, 0.5),
            token_latency_p90=quantile(latencies, 0.9),
        ),
    )


def token_latencies(request: Request) -> list[float]:
    """Seconds per token after the first pass."""
    found = []
    for (before, _), (after, count) in zip(request.passes, request.passes[1:]):
        found += [(after - before) / count] * count
    return found


def accepted_by_position(histogram: Sequence[int]) -> list[int]:
    return [sum(histogram[position + 1 :]) for position in range(len(histogram) - 1)]


def acceptance_report(requests: Sequence[Request], num_drafts: int) -> AcceptanceReport:
    """The counters of `requests` as `AcceptanceStats` reports them."""
    counters = AcceptanceStats(len(requests), num_drafts, device="cpu")
    for row, request in enumerate(requests):
        for tensor, counts in (
            (counters.verified, request.verified),
            (counters.reached, request.reached),
            (counters.histogram, request.histogram),
        ):
            tensor[row, : len(counts)] = torch.tensor(counts, dtype=torch.int64, device="cpu")
    return counters.read()


def quantile(values: Sequence[float], share: float) -> float:
    """By linear interpolation; NaN of nothing."""
    if not values:
        return math.nan
    if len(values) == 1:
        return values[0]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[round(100 * share) - 1]


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_like(record) -> dict[str, Any]:
    """Fields and properties of a dataclass; NaN is None."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    for name, member in vars(type(record)).items():
        if isinstance(member, property):
            values[name] = getattr(record, name)
    return {
        name: [finite(each) for each in value] if isinstance(value, list) else finite(value)
        for name, value in values.items()
    }
