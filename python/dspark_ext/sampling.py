"""Target law, draws and lossless rejection sampling.

Rules: token (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1) and block (Sun et al. 2024,
arXiv 2403.10444, algorithm 2). The exact arithmetic, random numbers and degenerate cases are fixed
by docs/numerics.md: the same inputs and seeds give the same integers on every backend, for any
batch size, batch order and thread count. Randomness is a function of (seed, position) alone.

All tensors are on one device: the CPU or a GPU that this build has kernels for. There nothing waits
for the GPU or copies to the host, and a graph can capture the call; vocabularies of up to 2^22
entries and 256 draft slots.

Per-request (or per-row) parameters are tensors of that length or plain numbers, which apply to all.
Numbers become tensors on the device of the logits at every call: a serving loop passes tensors.
Tensors of parameters may have any stride and width; fractions are refused where integers belong,
and so is what float32 or int64 cannot hold.

Errors are `RuntimeError`s that name the op, the argument, what was expected and what came. Values
of parameters are checked on the CPU only. On a GPU a request with a temperature that is negative,
infinite or NaN, a NaN `top_p` or `min_p`, or a `query_start_loc` that gives it fewer than 0 or more
than K + 1 rows or rows outside [0, N] has status STATUS_INVALID_REQUEST (see `rejection_sample`,
`sample`, `target_probs`); the others are not affected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from . import _operators as _ops
from ._parameters import floats as _floats
from ._parameters import integers as _integers

if TYPE_CHECKING:
    from .draft import RowStatistics

_MOST_RATES = 1 << 20  # of synthetic acceptance

# Status bits of `rejection_sample`.
STATUS_NAN_ROW = 1  # a target row in use held a NaN (NaN counts as -inf; its draft was refused)
STATUS_INVALID_DRAFT = 2  # a draft distribution was no distribution; its slot counts as no proposal
STATUS_EMPTY_ROW = 4  # a target row in use had nothing above -inf; the token is 0
STATUS_ZERO_RESIDUAL = 8  # the residual had no mass; the token is from the target law
STATUS_INVALID_ID = 16  # a draft id outside [0, V) other than -1; its slot counts as no proposal
STATUS_INVALID_REQUEST = 32  # on a GPU: a parameter out of range; accepts nothing, the token is 0


class RejectionOutput(NamedTuple):
    """Result of `rejection_sample`; B requests, K draft slots."""

    token_ids: Tensor  # [B, K + 1] int64: accepted drafts, then one more token; -1 past the end
    num_accepted: Tensor  # [B] int32: accepted drafts
    num_emitted: Tensor  # [B] int32: num_accepted + 1; 0 in a slot without rows
    last_token: Tensor  # [B] int64: the token after the accepted drafts
    status: Tensor  # [B] int32: STATUS_* bits, 0 if all was well
    logprobs: Tensor | None  # [B, K + 1] float32, if asked for; 0 past the end


class SampleOutput(NamedTuple):
    """Result of `sample`; N rows."""

    ids: Tensor  # [N] int64
    logprobs: Tensor  # [N] float32: natural logarithm of the filtered probability


class BlockAcceptance(NamedTuple):
    """Result of `block_acceptance`; column i - 1 belongs to draft i."""

    prefix_prob: Tensor  # [B, K] float64: prefix_i, the joint acceptance of drafts 1 .. i
    residual_mass: Tensor  # [B, K] float64: mass of max(prefix_i p - q, 0); 0 at the last draft
    accept_prob: Tensor  # [B, K] float64: accept_i; the largest i with u_i < accept_i is the length


def _law(op: str, logits: Tensor, rows: Tensor, temperature, top_k, top_p, min_p) -> tuple:
    """The parameters of a law as the op takes them, one entry per row of `rows`."""
    return (
        _floats(op, "temperature", temperature, rows, logits),
        None if top_k is None else _integers(op, "top_k", top_k, rows, logits),
        None if top_p is None else _floats(op, "top_p", top_p, rows, logits),
        None if min_p is None else _floats(op, "min_p", min_p, rows, logits),
    )


def rejection_sample(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_logits: Tensor | None = None,
    *,
    query_start_loc: Tensor,
    method: str = "block",
    temperature: Tensor | float,
    draft_temperature: Tensor | float | None = None,
    top_k: Tensor | int | None = None,
    top_p: Tensor | float | None = None,
    min_p: Tensor | float | None = None,
    seeds: Tensor | int,
    positions: Tensor | int,
    draft_probs: Tensor | None = None,
    synthetic_acceptance_rates: Tensor | None = None,
    uniforms: Tensor | None = None,
    draft_statistics: RowStatistics | None = None,
    return_logprobs: bool = False,
    out: RejectionOutput | None = None,
) -> RejectionOutput:
    """Accepts a prefix of each request's drafts and draws one more token.

    The emitted tokens follow the target law exactly, whatever the drafter proposed (all methods but
    "synthetic"). On a GPU, a request with STATUS_INVALID_REQUEST accepts nothing, its token is 0
    and the log-probability -inf. For B requests with up to K drafts each, N target rows and a
    vocabulary of V:

    Args:
        target_logits: [N, V] float32, bfloat16 or float16, any row stride. Request b owns rows
            `query_start_loc[b]` to `query_start_loc[b + 1] - 1`, its n_b drafts plus one; row i
            judges draft i + 1, the last row gives the token after the drafts. Rows past
            `query_start_loc[B]` are not read.
        draft_token_ids: [B, K] int64 or int32; the first n_b count. An id outside [0, V) ends the
            block there: the next token is a plain draw from that row. Use -1 for "no proposal".
        draft_logits: [B, K, V_draft], the logits the drafts were drawn from, before temperature;
            float32, bfloat16 or float16, V_draft <= V (missing ids have probability 0). Slots from
            n_b on are not read.
        query_start_loc: [B + 1] int32 or int64. Two equal entries: no request in that slot, it
            emits nothing (num_emitted 0, last_token -1).
        method: "block" or "token" (also "standard"); "greedy" (argmax for every request);
            "synthetic" (accepts at given rates whatever the laws say; for benchmarks, not
            lossless).
        temperature: [B] float32, finite, >= 0. 0 is greedy: drafts stand while they are the argmax
            (lowest id among equals).
        draft_temperature: [B] float32; by default `temperature`. 0: the drafts were the argmax.
        top_k, top_p, min_p: [B] int32 or int64, float32, float32; filters of the target law,
            applied in this order after temperature. 0 (or >= V), 1 and 0 are off.
        seeds, positions: [B] int64; `positions` is the absolute position of each request's first
            draft.
        draft_probs: [B, K, V_draft] float32, instead of `draft_logits`. With neither, q is one at
            the drafted id.
        synthetic_acceptance_rates: [K] float32, see `synthetic_acceptance_rates`.
        uniforms: [B, K + 1] float64 in [0, 1) instead of the random numbers, for comparisons: K
            acceptance draws, then the draw of the last token.
        draft_statistics: what `markov_sample` measured of `draft_logits` as it drew from them, for
            these K slots. Rows drawn under their request's draft temperature are then not measured
            again; the result is the same, bit for bit. They are trusted: statistics of other rows
            give another q.
        return_logprobs: also return the log-probability of each emitted token under its row's
            filtered target law.
        out: tensors to write into, of the returned shapes, none of which overlaps an input; without
            `return_logprobs`, `logprobs` may be None.

    Example:
        >>> law = torch.tensor([[0.2, 0.3, 0.5]]).log()
        >>> rejection_sample(
        ...     law.repeat(2, 1), torch.tensor([[2]]), query_start_loc=torch.tensor([0, 2]),
        ...     temperature=0.0, seeds=1, positions=7,
        ... ).token_ids
        tensor([[2, 2]])
    """
    op, ids, logits = "rejection_sample", draft_token_ids, target_logits
    temperature, *filters = _law(op, logits, ids, temperature, top_k, top_p, min_p)
    if draft_temperature is not None:
        draft_temperature = _floats(op, "draft_temperature", draft_temperature, ids, logits)
    arguments = (
        logits,
        ids,
        draft_logits,
        draft_probs,
        query_start_loc,
        method,
        temperature,
        draft_temperature,
        *filters,
        _integers(op, "seeds", seeds, ids, logits),
        _integers(op, "positions", positions, ids, logits),
        synthetic_acceptance_rates,
        uniforms,
        [] if draft_statistics is None else list(draft_statistics),
    )
    if out is not None:
        if return_logprobs and out.logprobs is None:
            raise RuntimeError(
                "dspark_ext.rejection_sample: out: expected a tensor for logprobs with "
                "return_logprobs, got None"
            )
        _ops.rejection_sample.out(*arguments, **out._asdict())
        return out
    token_ids, accepted, emitted, last_token, status, logprobs = _ops.rejection_sample(
        *arguments, return_logprobs
    )
    logprobs = logprobs if return_logprobs else None
    return RejectionOutput(token_ids, accepted, emitted, last_token, status, logprobs)


def target_probs(
    logits: Tensor,
    *,
    temperature: Tensor | float = 1.0,
    top_k: Tensor | int | None = None,
    top_p: Tensor | float | None = None,
    min_p: Tensor | float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The law that `sample` and `rejection_sample` use: [N, V] float32 probabilities.

    `logits` is [N, V] float32, bfloat16 or float16 of any row stride; the parameters are [N] or
    numbers, as in `rejection_sample`. At temperature 0 the row is one-hot at the argmax. NaN counts
    as -inf; a row with nothing above -inf is all zeros. On a GPU, a row with parameters out of
    range is all NaN. `out` is written and returned if given.

    Example:
        >>> target_probs(torch.tensor([[0.0, 0.0, -1.0]]), top_k=2)
        tensor([[0.5000, 0.5000, 0.0000]])
    """
    law = _law("target_probs", logits, logits, temperature, top_k, top_p, min_p)
    if out is None:
        return _ops.target_probs(logits, *law)
    _ops.target_probs.out(logits, *law, probs=out)
    return out


def sample(
    logits: Tensor,
    *,
    temperature: Tensor | float = 1.0,
    top_k: Tensor | int | None = None,
    top_p: Tensor | float | None = None,
    min_p: Tensor | float | None = None,
    seeds: Tensor | int,
    positions: Tensor | int,
    stream: str = "resample",
    slots: Tensor | int | None = None,
    uniforms: Tensor | None = None,
    out: SampleOutput | None = None,
) -> SampleOutput:
    """Draws one token per row of `logits` [N, V], by one uniform number per row (inverse CDF).

    `seeds` and `positions` are [N] int64 or numbers: the token's request and absolute position.
    `stream` is "resample" (target tokens) or "draft" (tokens of a draft block): proposal and
    verifier must not share random numbers. A drafter gives `slots`, [N] int64 or a number, with
    each token's index in its block (0, the default, for the first; below 2^31): a position is
    drafted in several rounds, and the slot keeps their draws apart. `uniforms` [N] float64 in
    [0, 1) replaces the draws. With stream "resample" the token is the one `rejection_sample` draws
    from that row, for the same seed and position, where it has no proposal. A row with nothing
    above -inf gives token 0 and log-probability -inf; on a GPU, a row with parameters out of range
    gives token -1 and log-probability NaN. Other parameters as in `target_probs`.

    Example:
        >>> sample(torch.tensor([[0.0, 3.0]]), temperature=0.0, seeds=1, positions=0)
        SampleOutput(ids=tensor([1]), logprobs=tensor([0.]))
    """
    op = "sample"
    arguments = (
        logits,
        *_law(op, logits, logits, temperature, top_k, top_p, min_p),
        _integers(op, "seeds", seeds, logits, logits),
        _integers(op, "positions", positions, logits, logits),
        stream,
        uniforms,
        None if slots is None else _integers(op, "slots", slots, logits, logits),
    )
    if out is None:
        return SampleOutput(*_ops.sample(*arguments))
    _ops.sample.out(*arguments, **out._asdict())
    return out


def block_acceptance(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_logits: Tensor | None = None,
    *,
    query_start_loc: Tensor,
    temperature: Tensor | float = 1.0,
    draft_temperature: Tensor | float | None = None,
    top_k: Tensor | int | None = None,
    top_p: Tensor | float | None = None,
    min_p: Tensor | float | None = None,
    draft_probs: Tensor | None = None,
) -> BlockAcceptance:
    """The probabilities that method "block" of `rejection_sample` decides by.

    For tests and research. Arguments as there. Positions from the first slot without a proposal on
    are 0; on a GPU, all positions of a request with parameters out of range are 0.

    Example (p = (.2, .3, .5), q = (.5, .3, .2) at both slots, drafts 2 then 0):
        >>> p, q = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.5, 0.3, 0.2])
        >>> block_acceptance(
        ...     p.log().repeat(3, 1), torch.tensor([[2, 0]]), draft_probs=q.repeat(1, 2, 1),
        ...     query_start_loc=torch.tensor([0, 3]),
        ... ).accept_prob
        tensor([[1.0000, 0.4000]], dtype=torch.float64)
    """
    op, ids, logits = "block_acceptance", draft_token_ids, target_logits
    temperature, *filters = _law(op, logits, ids, temperature, top_k, top_p, min_p)
    if draft_temperature is not None:
        draft_temperature = _floats(op, "draft_temperature", draft_temperature, ids, logits)
    return BlockAcceptance(
        *_ops.block_acceptance(
            logits,
            ids,
            draft_logits,
            draft_probs,
            query_start_loc,
            temperature,
            draft_temperature,
            *filters,
        )
    )


def synthetic_acceptance_rates(
    length: float, num_drafts: int, *, device: torch.device | str | None = None
) -> Tensor:
    """Conditional acceptance rates [K] float32 for a wanted mean number of emitted tokens.

    `length` counts the token after the accepted drafts, so 1 <= length <= num_drafts + 1. Of all
    rates with that mean these vary least: `floor(length - 1)` drafts always stand, the next one
    with the fractional part as its probability, none after it. ValueError outside these bounds.

    Example:
        >>> synthetic_acceptance_rates(3.5, 5)
        tensor([1.0000, 1.0000, 0.5000, 0.0000, 0.0000])
    """
    if not 0 <= num_drafts <= _MOST_RATES:
        raise ValueError(
            "dspark_ext.synthetic_acceptance_rates: num_drafts: expected >= 0 and <= "
            f"{_MOST_RATES}, got {num_drafts}"
        )
    if not 1 <= length <= num_drafts + 1:
        raise ValueError(
            "dspark_ext.synthetic_acceptance_rates: length: expected 1 <= length <= num_drafts + 1 "
            f"= {num_drafts + 1}, got {length}"
        )
    rates = [min(max(length - 1 - i, 0.0), 1.0) for i in range(num_drafts)]
    return torch.tensor(rates, dtype=torch.float32, device=device)
