"""Counters of the verification loop, kept on the device until somebody asks."""

from dataclasses import dataclass

import torch

from . import _operators as _ops
from ._integers import as_int32, as_int64


@dataclass(frozen=True)
class AcceptanceReport:
    """Counters of `AcceptanceStats` on the host. R request slots, K draft positions.

    Totals are over all requests since the last full reset, those whose slot was reset meanwhile
    included; what is given per request is of the slot's present request. A rate without anything
    to count is NaN.

    Attributes:
        histogram: int64 [K+1], steps by number of accepted drafts; its sum is `steps`.
        steps: verification passes, summed over requests.
        drafted: drafts that were verified, that is rows minus one anchor row per request and step.
        accepted: drafts accepted.
        passes_with_drafts: verification passes that verified at least one draft.
        acceptance_rate: accepted / drafted.
        mean_length: tokens emitted per step, 1 + accepted / steps.
        verified_by_position, accepted_by_position: int64 [K], steps in which x_{k+1} was verified,
            accepted.
        acceptance_by_position: float64 [K], accepted / verified at each position.
        conditional_acceptance_by_position: float64 [K], the same among the steps in which all
            earlier drafts were accepted: what a conditional confidence predicts (token rule).
        steps_per_request, drafted_per_request, accepted_per_request: int64 [R].
        acceptance_rate_per_request, mean_length_per_request: float64 [R].
        histogram_per_request: int64 [R, K+1].
        verified_by_request_and_position, accepted_by_request_and_position: int64 [R, K].
    """

    steps: int
    drafted: int
    accepted: int
    passes_with_drafts: int
    acceptance_rate: float
    mean_length: float
    histogram: torch.Tensor
    verified_by_position: torch.Tensor
    accepted_by_position: torch.Tensor
    acceptance_by_position: torch.Tensor
    conditional_acceptance_by_position: torch.Tensor
    steps_per_request: torch.Tensor
    drafted_per_request: torch.Tensor
    accepted_per_request: torch.Tensor
    acceptance_rate_per_request: torch.Tensor
    mean_length_per_request: torch.Tensor
    histogram_per_request: torch.Tensor
    verified_by_request_and_position: torch.Tensor
    accepted_by_request_and_position: torch.Tensor


class AcceptanceStats:
    """Acceptance counters of up to `num_requests` request slots, drafts of up to `num_drafts`.

    Everything is accumulated on `device` by `update`, without synchronising; only `read` copies to
    the host. Tensors are changed in place, so a captured graph may hold them.

    State: `verified`, `reached` int64 [R, K] and `histogram` int64 [R, K+1] of the requests in the
    slots; `retired` int64 [3K+1], the same three side by side for requests whose slot was reset;
    `generation` int64 [R], how often each slot was reset; `epoch` int64 [1], how often everything.
    """

    def __init__(
        self, num_requests: int, num_drafts: int, *, device: torch.device | str | None = None
    ):
        if num_requests < 0 or num_drafts < 0:
            raise ValueError(
                "dspark_ext.AcceptanceStats: expected num_requests, num_drafts >= 0, "
                f"got {num_requests}, {num_drafts}"
            )
        self.num_requests, self.num_drafts = num_requests, num_drafts

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.verified = zeros(num_requests, num_drafts)
        self.reached = zeros(num_requests, num_drafts)
        self.histogram = zeros(num_requests, num_drafts + 1)
        self.retired = zeros(3 * num_drafts + 1)
        self.generation, self.epoch = zeros(num_requests), zeros(1)

    def update(
        self,
        verify_lens: torch.Tensor,
        num_accepted: torch.Tensor,
        request_ids: torch.Tensor | None = None,
    ) -> None:
        """Counts one step.

        Args:
            verify_lens: int32 [B], drafts verified (`Schedule.verify_lens`).
            num_accepted: int32 [B], drafts accepted (`RejectionOutput.num_accepted`).
            request_ids: int32 [B], slot of each request, negative: not counted. Default 0..B-1.

        Raises RuntimeError for an id >= num_requests and for counts that contradict each other.
        """
        if request_ids is not None:
            request_ids = as_int32("accumulate_stats", "request_ids", request_ids)
        _ops.accumulate_stats(
            verify_lens, num_accepted, request_ids, self.verified, self.reached, self.histogram
        )

    def reset(self, request_ids: torch.Tensor | None = None) -> None:
        """Zeroes the counters of the given slots, for slots that are used again; what they counted
        stays in the totals. Without `request_ids` everything is zeroed, the totals too.

        request_ids: integers [n] on the device; ids outside 0..R-1 are ignored.
        """
        counters = torch.cat([self.verified, self.reached, self.histogram], 1)
        if request_ids is None:
            leaving = torch.ones_like(self.generation, dtype=torch.bool)
            self.retired.zero_()
            self.epoch.add_(1)
        else:
            slots = torch.arange(self.num_requests, device=self.generation.device)
            ids = as_int64("AcceptanceStats.reset", "request_ids", request_ids).to(slots.device)
            leaving = (slots[:, None] == ids).any(1)
            self.retired.add_((counters * leaving[:, None]).sum(0))
        self.generation.add_(leaving)
        for counter in (self.verified, self.reached, self.histogram):
            counter.mul_(~leaving[:, None])

    def totals(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`verified`, `reached` int64 [K] and `histogram` int64 [K+1] of all requests since the
        last full reset, on the device. No synchronisation."""
        counters = torch.cat([self.verified, self.reached, self.histogram], 1)
        return _split(counters.sum(0) + self.retired, self.num_drafts)

    def read(self) -> AcceptanceReport:
        """Copies the counters to the host, in one copy, and derives the rates. Synchronises."""
        counters = torch.cat([self.verified, self.reached, self.histogram], 1)
        counters = torch.cat([counters, self.retired[None]]).cpu()
        verified, _, histogram = _split(counters[:-1], self.num_drafts)
        verified_total, reached_total, histogram_total = _split(counters.sum(0), self.num_drafts)
        accepted, accepted_total = accepted_of(histogram), accepted_of(histogram_total)
        steps, drafted, num_accepted = histogram.sum(1), verified.sum(1), accepted.sum(1)
        all_steps, all_accepted = histogram_total.sum(), accepted_total.sum()
        return AcceptanceReport(
            steps=int(all_steps),
            drafted=int(verified_total.sum()),
            accepted=int(all_accepted),
            passes_with_drafts=int(verified_total[:1].sum()),
            acceptance_rate=float(_ratio(all_accepted, verified_total.sum())),
            mean_length=1.0 + float(_ratio(all_accepted, all_steps)),
            histogram=histogram_total,
            verified_by_position=verified_total,
            accepted_by_position=accepted_total,
            acceptance_by_position=_ratio(accepted_total, verified_total),
            conditional_acceptance_by_position=_ratio(accepted_total, reached_total),
            steps_per_request=steps,
            drafted_per_request=drafted,
            accepted_per_request=num_accepted,
            acceptance_rate_per_request=_ratio(num_accepted, drafted),
            mean_length_per_request=1.0 + _ratio(num_accepted, steps),
            histogram_per_request=histogram,
            verified_by_request_and_position=verified,
            accepted_by_request_and_position=accepted,
        )


def accepted_of(histogram: torch.Tensor) -> torch.Tensor:
    """[..., K] from [..., K+1]: x_{k+1} was accepted in every step that accepted more than k."""
    return (histogram.sum(-1, keepdim=True) - histogram.cumsum(-1))[..., :-1]


def _split(counters: torch.Tensor, num_drafts: int) -> tuple[torch.Tensor, ...]:
    return counters.split([num_drafts, num_drafts, num_drafts + 1], -1)


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    return part.to(torch.float64) / whole.to(torch.float64)  # 0 / 0 is NaN
