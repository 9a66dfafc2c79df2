"""Rejection sampling for one request in the arithmetic of docs/numerics.md, bit for bit.

The same steps as `reference/sampling.py`, on top of `reference/numerics.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .numerics import (
    BAD_DRAFT,
    EMPTY_ROW,
    INVALID_ID,
    NAN_ROW,
    TILE,
    ZERO_RESIDUAL,
    Law,
    add_in_order,
    draw,
    filter_cut,
    read_row,
    row_statistics,
    tile_sum,
    tiles,
    uniform,
)


@dataclass
class Proposal:
    """One draft slot: the id and what it was drawn from (neither: a one-hot at the id)."""

    token_id: int
    law: Law | None = None
    given: np.ndarray | None = None  # [V_draft] float32

    def q(self) -> float:
        if self.given is not None:
            return float(self.given[self.token_id]) if self.token_id < len(self.given) else 0.0
        return 1.0 if self.law is None else self.law.probability(self.token_id)

    def is_valid(self) -> bool:
        if self.given is not None:
            return 0 <= self.q() <= 1 + 1e-6  # false for NaN
        return self.law is None or not (self.law.has_nan or self.law.is_empty)


@dataclass
class Request:
    """One request's inputs; rows are numpy float32 (bf16 and fp16 already widened)."""

    target_rows: list[np.ndarray]
    draft_token_ids: list[int]
    temperature: float
    seed: int = 0
    position: int = 0
    draft_logits: list[np.ndarray] | None = None
    draft_probs: list[np.ndarray] | None = None
    draft_temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    rates: list[float] | None = None  # synthetic
    uniforms: list[float] | None = None  # [K + 1]


@dataclass
class Outcome:
    token_ids: list[int] = field(default_factory=list)
    status: int = 0
    logprobs: list[np.float32] = field(default_factory=list)


def row_status(law: Law) -> int:
    return NAN_ROW * law.has_nan | EMPTY_ROW * law.is_empty


def residual(law: Law, a: float, proposal: Proposal) -> tuple[np.ndarray, list[float]]:
    """max(a p - q, 0) as entries [V] float32 and tile totals."""
    size = len(law.x)
    if proposal.law is None and proposal.given is None:
        entries = law.weight.copy()
        entries[proposal.token_id] = 0
        sums = [float(tile_sum(entries[t])) for t in tiles(size)]
        return entries, [s * e for s, e in zip(sums, law.tile_scale)]
    entries = np.zeros(size, np.float32)
    for index, t in enumerate(tiles(size)):
        if law.is_empty:
            continue
        scale = np.float32((a * law.tile_scale[index]) / law.total)
        difference = scale * law.weight[t] - draft_tile(proposal, index, t.stop - t.start)
        entries[t] = np.where(difference > np.float32(2.0**-100), difference, np.float32(0))
    return entries, [float(tile_sum(entries[t])) for t in tiles(size)]


def draft_tile(proposal: Proposal, index: int, length: int) -> np.ndarray:
    """q over one tile of the target's vocabulary, float32; 0 past the draft's vocabulary."""
    part = slice(index * TILE, index * TILE + length)
    q = np.zeros(length, np.float32)
    if proposal.given is not None:
        values = proposal.given[part]
        q[: len(values)] = np.where(values > 0, values, np.float32(0))
    elif index < len(proposal.law.tile_scale):
        values = proposal.law.weight[part]
        scale = np.float32(proposal.law.tile_scale[index] / proposal.law.total)
        q[: len(values)] = scale * values
    return q


def block_accept(laws: list[Law], proposals: list[Proposal]):
    """prefix_i, mass_i and accept_i for i = 1 .. n (section 7)."""
    n, prefix = len(proposals), 1.0
    prefixes, masses, accepts = [], [], []
    for i in range(1, n + 1):
        x, q = proposals[i - 1].token_id, proposals[i - 1].q()
        p = laws[i - 1].probability(x)
        if q > 0:
            prefix = min(1.0, prefix * p / q)
        else:
            prefix = 1.0 if p > 0 and prefix > 0 else 0.0
        if i == n:
            mass, accept = 0.0, prefix
        else:
            mass = residual_mass(laws[i], prefix, proposals[i])
            denominator = mass + (1 - prefix)
            accept = min(mass / denominator if denominator != 0 else 1.0, prefix)
        prefixes.append(prefix)
        masses.append(mass)
        accepts.append(accept)
    return prefixes, masses, accepts


def residual_mass(law: Law, prefix: float, proposal: Proposal) -> float:
    if proposal.law is None and proposal.given is None:
        return prefix * (1 - law.probability(proposal.token_id))
    return add_in_order(residual(law, prefix, proposal)[1])


def finalise(law: Law, a: float, proposal: Proposal | None, u: float) -> tuple[int, int]:
    """The last token and its status: from the residual, or from the law if `proposal` is None."""
    if law.is_empty:
        return 0, 0
    if law.is_greedy:
        return int(np.argmax(law.weight)), 0
    if proposal is not None:
        entries, totals = residual(law, a, proposal)
        if add_in_order(totals) > 0:
            return draw(entries, totals, u), 0
        return draw(law.weight, law.tile_totals(), u), ZERO_RESIDUAL
    return draw(law.weight, law.tile_totals(), u), 0


def make_proposal(request: Request, slot: int, uses_q: bool) -> Proposal:
    x = request.draft_token_ids[slot]
    q_temperature = request.draft_temperature
    q_temperature = request.temperature if q_temperature is None else q_temperature
    if uses_q and request.draft_probs is not None:
        return Proposal(x, given=np.asarray(request.draft_probs[slot], np.float32))
    if uses_q and request.draft_logits is not None and q_temperature != 0:
        return Proposal(x, row_statistics(request.draft_logits[slot], q_temperature))
    return Proposal(x)


def collect_proposals(
    request: Request, laws: list[Law], uses_q: bool
) -> tuple[list[Proposal], int]:
    """The slots before the first one without a proposal, and the status that slot sets."""
    size, proposals = len(request.target_rows[0]), []
    for slot, x in enumerate(request.draft_token_ids):
        if not 0 <= x < size:
            return proposals, INVALID_ID if x != -1 else 0
        if row_status(laws[slot]):
            return proposals, row_status(laws[slot])
        proposal = make_proposal(request, slot, uses_q)
        if not proposal.is_valid():
            return proposals, BAD_DRAFT
        proposals.append(proposal)
    return proposals, 0


def rejection_sample(request: Request, method: str) -> Outcome:
    """`method`: block, token, greedy or synthetic."""
    temperature = 0.0 if method == "greedy" else request.temperature
    greedy = temperature == 0
    laws = [row_statistics(row, temperature) for row in request.target_rows]
    laws = [filter_cut(law, request.top_k, request.top_p, request.min_p) for law in laws]
    proposals, cut_status = collect_proposals(request, laws, not greedy)
    n = len(proposals)

    stream = "synthetic" if method == "synthetic" else "accept"
    if request.uniforms is not None:
        accept_draws, final_draw = request.uniforms[:-1], request.uniforms[-1]
    else:
        accept_draws = [uniform(request.seed, request.position + i, stream, i) for i in range(n)]
        final_draw = None

    prefix = 1.0
    if method == "block" and not greedy:
        prefixes, _, accepts = block_accept(laws, proposals)
        tau = max([i + 1 for i in range(n) if accept_draws[i] < accepts[i]], default=0)
        prefix = prefixes[tau - 1] if tau else 1.0
    else:
        tau = 0
        while tau < n and accepts_next(method, greedy, laws, proposals, request, tau, accept_draws):
            tau += 1
    if final_draw is None:
        final_draw = uniform(request.seed, request.position + tau, "resample")

    out = Outcome([proposal.token_id for proposal in proposals[:tau]])
    out.status |= row_status(laws[tau]) | (cut_status if tau == n else 0)
    token, status = finalise(laws[tau], prefix, proposals[tau] if tau < n else None, final_draw)
    out.token_ids.append(token)
    out.status |= status
    out.logprobs = [laws[i].log_probability(x) for i, x in enumerate(out.token_ids)]
    return out


def accepts_next(method, greedy, laws, proposals, request, i, draws) -> bool:
    law, proposal = laws[i], proposals[i]
    if method == "synthetic":
        return draws[i] < request.rates[i]
    if greedy:
        return int(np.argmax(law.weight)) == proposal.token_id
    return draws[i] * proposal.q() < law.probability(proposal.token_id)


__all__ = ["Outcome", "Proposal", "Request", "block_accept", "read_row", "rejection_sample"]
