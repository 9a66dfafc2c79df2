"""Counters of the verification loop, kept on the device until somebody asks."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class AcceptanceReport:
    """Counters of `AcceptanceStats` on the host. R requests, K draft positions.

    A rate without anything to count is NaN.

    Attributes:
        histogram: int64 [K+1], steps by number of accepted drafts; its sum is `steps`.
        steps: verification passes, summed over requests.
        drafted: drafts that were verified, that is rows minus one anchor row per request and step.
        accepted: drafts accepted.
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
    """

    steps: int
    drafted: int
    accepted: int
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


class AcceptanceStats:
    """Acceptance counters of up to `num_requests` request slots, drafts of up to `num_drafts`.

    Everything is accumulated on `device` by `update`, without synchronising; only `read` copies to
    the host. State: `verified`, `reached` int64 [R, K] and `histogram` int64 [R, K+1].
    """

    def __init__(
        self, num_requests: int, num_drafts: int, *, device: torch.device | str | None = None
    ):
        if num_requests < 0 or num_drafts < 0:
            raise ValueError(
                "dspark_ext.AcceptanceStats: expected num_requests, num_drafts >= 0, "
                f"got {num_requests}, {num_drafts}"
            )
        self.num_drafts = num_drafts
        counts = torch.zeros((num_requests, 3 * num_drafts + 1), dtype=torch.int64, device=device)
        verified, reached, histogram = counts.split([num_drafts, num_drafts, num_drafts + 1], 1)
        self.verified = verified.contiguous()
        self.reached = reached.contiguous()
        self.histogram = histogram.contiguous()

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
            request_ids = request_ids.to(torch.int32)
        torch.ops.dspark_ext.accumulate_stats(
            verify_lens, num_accepted, request_ids, self.verified, self.reached, self.histogram
        )

    def reset(self, request_ids: torch.Tensor | None = None) -> None:
        """Zeroes the counters of the given slots (default: all), for slots that are used again.

        request_ids: integers [n] on the device; ids outside 0..R-1 are ignored.
        """
        if request_ids is None:
            keep = torch.zeros_like(self.histogram[:, :1])
        else:
            slots = torch.arange(self.histogram.shape[0], device=self.histogram.device)
            keep = (slots[:, None] != request_ids.to(slots.device)).all(1, keepdim=True)
        for counter in (self.verified, self.reached, self.histogram):
            counter.mul_(keep)

    def read(self) -> AcceptanceReport:
        """Copies the counters to the host and derives the rates. Synchronises."""
        verified, reached = self.verified.cpu(), self.reached.cpu()
        histogram = self.histogram.cpu()
        # x_{k+1} was accepted in every step that accepted more than k drafts
        accepted = histogram.sum(1, keepdim=True) - histogram.cumsum(1)
        accepted = accepted[:, : self.num_drafts]
        steps, drafted, num_accepted = histogram.sum(1), verified.sum(1), accepted.sum(1)
        return AcceptanceReport(
            steps=int(steps.sum()),
            drafted=int(drafted.sum()),
            accepted=int(num_accepted.sum()),
            acceptance_rate=float(_ratio(num_accepted.sum(), drafted.sum())),
            mean_length=1.0 + float(_ratio(num_accepted.sum(), steps.sum())),
            histogram=histogram.sum(0),
            verified_by_position=verified.sum(0),
            accepted_by_position=accepted.sum(0),
            acceptance_by_position=_ratio(accepted.sum(0), verified.sum(0)),
            conditional_acceptance_by_position=_ratio(accepted.sum(0), reached.sum(0)),
            steps_per_request=steps,
            drafted_per_request=drafted,
            accepted_per_request=num_accepted,
            acceptance_rate_per_request=_ratio(num_accepted, drafted),
            mean_length_per_request=1.0 + _ratio(num_accepted, steps),
            histogram_per_request=histogram,
        )


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    return part.to(torch.float64) / whole.to(torch.float64)  # 0 / 0 is NaN
