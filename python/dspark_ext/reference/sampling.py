"""Rejection sampling as a specification: float64, one request and one row at a time. Start here.

What `dspark_ext.sampling` offers stands at the end of the file, with the same arguments; the steps
stand before it (the first half in `law.py`) under the names that the kernels use:

    row_statistics -> filter_cut -> token_accept | block_accept -> residual -> draw -> finalise

Sources: Leviathan et al. 2211.17192 (token rule), Sun et al. 2403.10444, Algorithm 2 (block rule).
A kernel takes the same decisions unless a uniform falls within about 1e-6 of a boundary; for
equality to the bit see docs/numerics.md, `reference/numerics.py` and `reference/exact.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .law import Row, draw, filter_cut, per_row, row_statistics, sample, target_probs
from .numerics import BAD_DRAFT, EMPTY_ROW, INVALID_ID, ZERO_RESIDUAL, uniform

__all__ = [
    "BlockAcceptance",
    "RejectionOutput",
    "block_acceptance",
    "rejection_sample",
    "sample",
    "synthetic_acceptance_rates",
    "target_probs",
]


class RejectionOutput(NamedTuple):
    token_ids: Tensor  # [B, K+1] int64, -1 past the end
    num_accepted: Tensor  # [B] int32
    num_emitted: Tensor  # [B] int32, accepted + 1
    last_token: Tensor  # [B] int64
    status: Tensor  # [B] int32, bits of docs/numerics.md section 8
    logprobs: Tensor | None  # [B, K+1] float32, 0 past the end


class BlockAcceptance(NamedTuple):
    prefix_prob: Tensor  # [B, K] float64, p_i
    residual_mass: Tensor  # [B, K] float64, S_i
    accept_prob: Tensor  # [B, K] float64, h_i


@dataclass
class Proposal:
    """One draft slot. `probs` [V] float64 is q; None means a one-hot at `token_id`."""

    token_id: int
    probs: Tensor | None = None

    def q(self) -> float:
        return 1.0 if self.probs is None else float(self.probs[self.token_id])


@dataclass
class Request:
    """One request as the rules see it."""

    rows: list[Row]  # one per proposal, and one more
    proposals: list[Proposal]
    cut_status: int  # of the slot that ended the block early
    greedy: bool


# --- acceptance ----------------------------------------------------------------------------------


def token_accept(p: float, q: float, u: float) -> bool:
    """Accept with probability min(1, p / q). Strict: p = 0 is never accepted."""
    return u * q < p


def residual(target: Row, proposal: Proposal, a: float = 1.0) -> Tensor:
    """max(a p - q, 0) [V], not normalised. A one-hot q leaves p without the drafted id."""
    if proposal.probs is None:
        rest = target.probs.clone()
        rest[proposal.token_id] = 0
        return rest
    return (a * target.probs - proposal.probs).clamp(min=0)


def residual_mass(target: Row, proposal: Proposal, a: float) -> float:
    if proposal.probs is None:
        return a * (1 - float(target.probs[proposal.token_id]))
    return float(residual(target, proposal, a).sum())


def block_accept(rows: list[Row], proposals: list[Proposal]) -> tuple[list, list, list]:
    """Algorithm 2 of 2403.10444: prefix probability p_i, mass S_i, threshold h_i, i = 1 .. n.

    `rows[i-1]` judges draft i; `rows[i]` is the target after it. The accepted length is the
    largest i with u_i < h_i.
    """
    n, prefix = len(proposals), 1.0
    prefixes, masses, accepts = [], [], []
    for i in range(1, n + 1):
        p, q = float(rows[i - 1].probs[proposals[i - 1].token_id]), proposals[i - 1].q()
        if q > 0:
            prefix = min(1.0, prefix * p / q)
        else:
            prefix = 1.0 if prefix * p > 0 else 0.0
        mass, accept = 0.0, prefix
        if i < n:
            mass = residual_mass(rows[i], proposals[i], prefix)
            rest = mass + (1 - prefix)
            accept = min(prefix, mass / rest) if rest > 0 else prefix
        prefixes.append(prefix)
        masses.append(mass)
        accepts.append(accept)
    return prefixes, masses, accepts


# --- the final token -----------------------------------------------------------------------------


def finalise(row: Row, proposal: Proposal | None, a: float, u: float) -> tuple[int, int]:
    """(token, status): from the residual after a rejected `proposal`, else from the row itself."""
    if row.status & EMPTY_ROW:
        return 0, 0
    weights = row.probs if proposal is None else residual(row, proposal, a)
    if weights.sum() > 0:
        return draw(weights, u), 0
    return draw(row.probs, u), ZERO_RESIDUAL


# --- one request ---------------------------------------------------------------------------------


def read_proposals(
    ids, rows, draft_logits, draft_probs, temperature, vocab
) -> tuple[list[Proposal], int]:
    """The slots up to the first without a usable proposal, and the status which that slot sets."""
    proposals = []
    for slot, token_id in enumerate(ids.tolist()):
        if not 0 <= token_id < vocab:
            return proposals, 0 if token_id == -1 else INVALID_ID
        if rows[slot].status:
            return proposals, rows[slot].status
        probs = None
        if draft_probs is not None:
            probs = widen_draft(draft_probs[slot].double(), vocab)
            if not 0 <= float(probs[token_id]) <= 1 + 1e-6:  # NaN too
                return proposals, BAD_DRAFT
            probs = torch.where(probs > 0, probs, 0.0)
        elif draft_logits is not None and temperature != 0:
            row = row_statistics(draft_logits[slot], temperature)
            if row.status:
                return proposals, BAD_DRAFT
            probs = widen_draft(row.probs, vocab)
        proposals.append(Proposal(token_id, probs))
    return proposals, 0


def widen_draft(probs: Tensor, vocab: int) -> Tensor:
    """A draft vocabulary may be smaller: the missing ids have q = 0."""
    return torch.cat([probs, probs.new_zeros(vocab - len(probs))])


def accepted_length(request: Request, method: str, rates, accept_draw) -> tuple[int, float]:
    """(accepted drafts tau, prefix probability at tau)."""
    rows, proposals = request.rows, request.proposals
    n = len(proposals)
    if method == "block" and not request.greedy:
        prefixes, _, accepts = block_accept(rows, proposals)
        tau = max((i for i in range(1, n + 1) if accept_draw(i - 1) < accepts[i - 1]), default=0)
        return tau, prefixes[tau - 1] if tau else 1.0
    for i, proposal in enumerate(proposals):
        p = float(rows[i].probs[proposal.token_id])
        if method == "synthetic":
            accepted = accept_draw(i) < rates[i]
        elif request.greedy:
            accepted = p == 1
        else:
            accepted = token_accept(p, proposal.q(), accept_draw(i))
        if not accepted:
            return i, 1.0
    return n, 1.0


def verify_request(
    request: Request, method: str, rates, accept_draw, final_draw
) -> tuple[list, int]:
    """(emitted ids, status). `accept_draw(i)` and `final_draw(tau)` give the uniforms."""
    rows, proposals = request.rows, request.proposals
    tau, prefix = accepted_length(request, method, rates, accept_draw)
    rejected = proposals[tau] if tau < len(proposals) and not request.greedy else None
    token, status = finalise(rows[tau], rejected, prefix, final_draw(tau))
    status |= rows[tau].status
    if tau == len(proposals):
        status |= request.cut_status
    return [proposal.token_id for proposal in proposals[:tau]] + [token], status


# --- the public functions, as in dspark_ext.sampling ----------------------------------------------


def synthetic_acceptance_rates(length: float, num_drafts: int) -> Tensor:
    """[K] float64 conditional acceptance rates with mean emitted `length` and the least variance.

    Unconditional rates are ones, then the fractional part of length - 1, then zeros.
    """
    rates, previous = [], 1.0
    for i in range(num_drafts):
        rate = min(max(length - 1 - i, 0.0), 1.0)
        rates.append(rate / previous if previous > 0 else 0.0)
        previous = rate
    return torch.tensor(rates, dtype=torch.float64)


def read_requests(
    target_logits,
    draft_token_ids,
    draft_logits,
    draft_probs,
    query_start_loc,
    temperature,
    draft_temperature,
    top_k,
    top_p,
    min_p,
):
    """Yields a `Request` for every request of the batch; None for a slot that owns no rows."""
    batch, vocab = len(draft_token_ids), target_logits.shape[1]
    bounds = query_start_loc.tolist()
    params = zip(
        per_row(temperature, batch, 1.0),
        per_row(temperature if draft_temperature is None else draft_temperature, batch, 1.0),
        per_row(top_k, batch, 0),
        per_row(top_p, batch, 1.0),
        per_row(min_p, batch, 0.0),
    )
    for b, (t, draft_t, k, p, m) in enumerate(params):
        if bounds[b + 1] == bounds[b]:
            yield None
            continue
        ids = draft_token_ids[b, : bounds[b + 1] - bounds[b] - 1]
        uses_q = t != 0
        logits = target_logits[bounds[b] : bounds[b + 1]]
        rows = [filter_cut(row_statistics(row, t), k, p, m) for row in logits]
        proposals, cut_status = read_proposals(
            ids,
            rows,
            draft_logits[b] if uses_q and draft_logits is not None else None,
            draft_probs[b] if uses_q and draft_probs is not None else None,
            draft_t,
            vocab,
        )
        yield Request(rows[: len(proposals) + 1], proposals, cut_status, t == 0)


def rejection_sample(
    target_logits,
    draft_token_ids,
    draft_logits=None,
    *,
    query_start_loc,
    method="block",
    temperature,
    draft_temperature=None,
    top_k=None,
    top_p=None,
    min_p=None,
    seeds,
    positions,
    draft_probs=None,
    synthetic_acceptance_rates=None,
    uniforms=None,
    return_logprobs=False,
) -> RejectionOutput:
    """See `dspark_ext.sampling.rejection_sample`."""
    batch, num_drafts = draft_token_ids.shape
    token_ids = torch.full((batch, num_drafts + 1), -1, dtype=torch.int64)
    logprobs = torch.zeros((batch, num_drafts + 1), dtype=torch.float64)
    status, emitted = torch.zeros((2, batch), dtype=torch.int32)
    rates = per_row(synthetic_acceptance_rates, num_drafts, 0.0)
    stream = "synthetic" if method == "synthetic" else "accept"
    requests = read_requests(
        target_logits,
        draft_token_ids,
        draft_logits,
        draft_probs,
        query_start_loc,
        0.0 if method == "greedy" else temperature,
        draft_temperature,
        top_k,
        top_p,
        min_p,
    )
    last_token = torch.full((batch,), -1, dtype=torch.int64)
    for b, request in enumerate(requests):
        if request is None:
            continue

        def accept_draw(i, b=b):
            if uniforms is not None:
                return float(uniforms[b, i])
            return uniform(int(seeds[b]), int(positions[b]) + i, stream, i)

        def final_draw(tau, b=b):
            if uniforms is not None:
                return float(uniforms[b, num_drafts])
            return uniform(int(seeds[b]), int(positions[b]) + tau, "resample")

        tokens, status[b] = verify_request(request, method, rates, accept_draw, final_draw)
        emitted[b] = len(tokens)
        token_ids[b, : len(tokens)] = torch.tensor(tokens)
        last_token[b] = tokens[-1]
        for i, token in enumerate(tokens):
            logprobs[b, i] = request.rows[i].probs[token].log()
    accepted = (emitted - 1).clamp(min=0)
    return RejectionOutput(
        token_ids, accepted, emitted, last_token, status, logprobs if return_logprobs else None
    )


def block_acceptance(
    target_logits,
    draft_token_ids,
    draft_logits=None,
    *,
    query_start_loc,
    temperature,
    draft_temperature=None,
    top_k=None,
    top_p=None,
    min_p=None,
    draft_probs=None,
) -> BlockAcceptance:
    """p_i, S_i and h_i of every slot, 0 past the last slot with a proposal."""
    out = torch.zeros((3, *draft_token_ids.shape), dtype=torch.float64)
    requests = read_requests(
        target_logits,
        draft_token_ids,
        draft_logits,
        draft_probs,
        query_start_loc,
        temperature,
        draft_temperature,
        top_k,
        top_p,
        min_p,
    )
    for b, request in enumerate(requests):
        if request is None:
            continue
        numbers = block_accept(request.rows, request.proposals)
        out[:, b, : len(request.proposals)] = torch.tensor(numbers, dtype=torch.float64)
    return BlockAcceptance(*out)
