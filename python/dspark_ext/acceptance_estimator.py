"""Confidences for drafters without a confidence head, from what happened to earlier blocks."""

import math

import torch

from ._integers import as_int64
from .acceptance_stats import AcceptanceStats, accepted_of

_MOST_WEIGHT = 1e15  # beyond it counts vanish beside the weight


class AcceptanceEstimator:
    """CONDITIONAL acceptance probabilities by position and request, from `AcceptanceStats`.

    Counts are forgotten exponentially. A request's estimate at a position leans on that position's
    average over all requests while it has little history of its own, and the average on `prior`:

        pool_k = (accepted_k + prior_weight * prior) / (reached_k + prior_weight)
        c_bk   = (accepted_bk + pool_weight * pool_k) / (reached_bk + pool_weight)

    "reached" counts the steps in which x_k was verified and every earlier draft accepted, so the
    estimate is of the same event as a confidence head's output and `schedule` takes it as such.

    Lossless: the confidences of a block are made of blocks verified before it was drafted and of
    nothing in it, so whether x_k is verified cannot depend on x_k (docs/calibration.md). `update`
    publishes; `confidence` reads only what was published.

    A position that is not verified any more keeps losing evidence, hence drifts back to the pool
    and to the prior and is tried again; a bad spell is not for ever.

    Args:
        stats: the counters to learn from, on any device; what they hold already is history too.
        half_life: steps after which a count weighs half, > 0 (inf: never forget).
        prior: acceptance probability assumed without any data, in [0, 1]: one number, or K of them.
        prior_weight, pool_weight: observations that the prior and the pool count as, > 0.
        lag: >= 1: the confidences after an `update` are those of `lag - 1` updates before. 1 is
            lossless; more is for loops that must know the lengths before the last step is counted
            and want the same lengths whether or not it already is.

    Everything stays on the device of `stats`, in place: no synchronisation, captured graphs may
    hold it. The result does not depend on the order of requests, and with the same counters it has
    the same bits everywhere.
    """

    def __init__(
        self,
        stats: AcceptanceStats,
        *,
        half_life: float = 64.0,
        prior: float | torch.Tensor = 0.7,
        prior_weight: float = 8.0,
        pool_weight: float = 8.0,
        lag: int = 1,
    ):
        device = stats.generation.device
        prior = torch.as_tensor(prior, dtype=torch.float64, device=device)
        for name, value, most in (
            ("half_life", half_life, math.inf),
            ("prior_weight", prior_weight, _MOST_WEIGHT),
            ("pool_weight", pool_weight, _MOST_WEIGHT),
        ):
            if not 0 < value <= most:
                raise ValueError(
                    f"dspark_ext.AcceptanceEstimator: {name}: expected > 0 and <= {most:g}: {value}"
                )
        if lag < 1 or lag % 1:
            raise ValueError(
                f"dspark_ext.AcceptanceEstimator: lag: expected an int >= 1, got {lag}; at 0 the "
                "lengths of a block would depend on the block, which is not lossless"
            )
        if prior.dim() > 1 or (prior.dim() == 1 and prior.shape[0] != stats.num_drafts):
            raise ValueError(
                "dspark_ext.AcceptanceEstimator: prior: expected one number or "
                f"{stats.num_drafts}, got shape {list(prior.shape)}"
            )
        if not bool(((prior >= 0) & (prior <= 1)).all()):
            raise ValueError(
                "dspark_ext.AcceptanceEstimator: prior: expected probabilities, "
                f"got {prior.tolist()}"
            )
        self.stats, self.half_life, self.lag = stats, half_life, lag
        self._prior = prior.expand(stats.num_drafts).clone()
        self._prior_weight, self._pool_weight = prior_weight, pool_weight
        self._decay = 0.5 ** (1.0 / half_life)
        rows, columns = stats.num_requests, stats.num_drafts

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        # row R of each is the pool
        self._reached = zeros(rows + 1, columns)
        self._accepted = zeros(rows + 1, columns)
        self._counted = zeros(2, rows + 1, columns, dtype=torch.int64)
        self._generation, self._epoch = stats.generation.clone(), stats.epoch.clone()
        # what `confidence` reads, oldest last
        self._published = self._prior.repeat(lag, rows + 1, 1)
        self._published_generation = stats.generation.repeat(lag, 1)

    def update(self) -> None:
        """Takes in what `stats` counted since the last call; once per step, after `stats.update`.

        Several steps between two calls are forgotten as one.
        """
        now = self._now()
        slots = self.stats.generation != self._generation
        reset = torch.cat([slots, self.stats.epoch != self._epoch])[:, None]
        fresh = now - self._counted * ~reset
        own_reset = reset.clone()
        own_reset[-1] = False  # the pool's evidence outlives every reset
        decay = torch.where(own_reset, 0.0, self._decay)
        self._reached.mul_(decay).add_(fresh[0])
        self._accepted.mul_(decay).add_(fresh[1])
        self._counted.copy_(now)
        self._generation.copy_(self.stats.generation)
        self._epoch.copy_(self.stats.epoch)
        self._publish()

    def confidence(self, request_ids: torch.Tensor | None = None) -> torch.Tensor:
        """float32 [B, K]: probability that x_k is accepted if x_1..x_{k-1} were.

        request_ids: integers [B], slot of each request, default 0..R-1; a slot outside them, or
        whose request has no history yet, gets the average over all requests.
        """
        published, pool = self._published[-1, :-1], self._published[-1, -1]
        known = self._published_generation[-1] == self.stats.generation
        rows = torch.where(known[:, None], published, pool)
        if request_ids is not None:
            rows = torch.cat([rows, pool[None]])
            last = self.stats.num_requests
            ids = as_int64("AcceptanceEstimator.confidence", "request_ids", request_ids)
            rows = rows[torch.where((ids < 0) | (ids > last), last, ids)]
        return rows.to(torch.float32)

    def _now(self) -> torch.Tensor:
        """int64 [2, R+1, K]: reached and accepted so far, all requests together in the last row."""
        _, reached, histogram = self.stats.totals()
        reached = torch.cat([self.stats.reached, reached[None]])
        accepted = torch.cat([accepted_of(self.stats.histogram), accepted_of(histogram)[None]])
        return torch.stack([reached, accepted])

    def _publish(self) -> None:
        pool = self._accepted[-1] + self._prior_weight * self._prior
        pool = pool / (self._reached[-1] + self._prior_weight)
        rows = (self._accepted + self._pool_weight * pool) / (self._reached + self._pool_weight)
        rows[-1] = pool
        if self.lag > 1:
            self._published[1:] = self._published[:-1].clone()
            self._published_generation[1:] = self._published_generation[:-1].clone()
        self._published[0] = rows
        self._published_generation[0] = self._generation
