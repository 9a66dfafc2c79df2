"""What requests ask to be done to the target's logits, before anything is drawn from them."""

from __future__ import annotations

import logging

import torch

from .._upload import upload
from .request import Request

_log = logging.getLogger(__name__)


def apply(logits: torch.Tensor, ready: list[Request], packed, draft_token_ids: torch.Tensor):
    """Every row by the rules of its request, in this order: `allowed_token_ids` and `token_mask`,
    `min_new_tokens`, `logit_bias`, `repetition_penalty`, then the other penalties.

    logits           fp32 [N, V], changed in place and returned
    ready            the requests of the pass
    packed           its `VerifyBatch`: rows that judge a request's drafts, and the one behind them
    draft_token_ids  int64 [B, K]

    Rows that judge drafts and the one that gives the bonus are treated alike. To a row, the drafts
    before it are as if emitted, as they will be if it is reached; so the law of every token is
    that of plain decoding.
    """
    ruled = [place for place, each in enumerate(ready) if each.params.has_token_rules]
    starts = packed.query_start_loc.tolist() if ruled else []  # a read of the host
    parts = [
        (logits[starts[place] : starts[place + 1]], ready[place], draft_token_ids[place])
        for place in ruled
    ]
    for rows, request, drafts in parts:
        _allow(rows, request, drafts[: len(rows) - 1])
    _mask_stop_tokens(logits, ready, packed)
    for rows, request, drafts in parts:
        _bias(rows, request)
        _penalise(rows, request, drafts[: len(rows) - 1])
    return logits


def _mask_stop_tokens(logits: torch.Tensor, ready: list[Request], packed) -> None:
    """Stop tokens get -inf in rows that decide one of the first `min_new_tokens` tokens."""
    if not any(each.masked_left and each.params.stop_token_ids for each in ready):
        return
    device = logits.device
    stops = [each.params.stop_token_ids if each.masked_left else () for each in ready]
    left = upload([each.masked_left for each in ready], torch.int64, device)
    owner = packed.request_ids.long()
    place = torch.arange(len(owner), device=device) - packed.query_start_loc.long()[owner]
    masked = place < left[owner]
    for row, ids in enumerate(stops):
        if ids:
            columns = upload(ids, torch.int64, device)
            rows = (masked & (owner == row))[:, None]
            values = logits[:, columns]
            logits[:, columns] = torch.where(rows, -torch.inf, values)


def _allow(rows: torch.Tensor, request: Request, drafts: torch.Tensor) -> None:
    """-inf for what may not follow. Behind a draft that may not, no row is ever reached."""
    params = request.params
    if params.allowed_token_ids is not None:
        rows += _only(params.allowed_token_ids, rows)
    if params.token_mask is None:
        return
    emitted = request.token_ids[request.prompt_length :]
    coming = drafts.tolist()
    for place, row in enumerate(rows):
        try:
            row += _mask(params.token_mask([*emitted, *coming[:place]]), row)
        except Exception:  # this request's own; a row of -inf ends it
            _log.exception("dspark_ext.engine: request %d: token_mask failed", request.index)
            row.fill_(-torch.inf)
        if place < len(coming) and not _may_follow(row, coming[place]):
            return


def _may_follow(row: torch.Tensor, token: int) -> bool:
    return 0 <= token < len(row) and bool(row[token] > -torch.inf)


def _mask(allowed, row: torch.Tensor) -> torch.Tensor:
    """0 and -inf [V] of what a `token_mask` says: booleans [V], or ids."""
    if isinstance(allowed, torch.Tensor) and allowed.dtype == torch.bool:
        if allowed.shape != row.shape:
            raise ValueError(
                f"dspark_ext.engine: token_mask: expected booleans [{len(row)}], got "
                f"{list(allowed.shape)}"
            )
        allowed = allowed.to(row.device)
        return torch.zeros_like(row).masked_fill_(~allowed, -torch.inf)
    return _only(allowed, row)


def _only(allowed, rows: torch.Tensor) -> torch.Tensor:
    """0 at the allowed ids, else -inf, [V]."""
    if isinstance(allowed, torch.Tensor):
        ids = allowed.to(rows.device, torch.int64)
    else:
        ids = upload(allowed, torch.int64, rows.device)
    return rows.new_full(rows.shape[-1:], -torch.inf).index_fill_(0, ids, 0.0)


def _bias(rows: torch.Tensor, request: Request) -> None:
    if request.params.logit_bias:
        ids, values = zip(*request.params.logit_bias)
        columns = upload(ids, torch.int64, rows.device)
        added = upload(values, rows.dtype, rows.device)
        rows.index_add_(1, columns, added.expand(len(rows), -1))


def _penalise(rows: torch.Tensor, request: Request, drafts: torch.Tensor) -> None:
    params, size = request.params, rows.shape[1]
    if not params.penalises:
        return

    def counts_of(token_ids: list[int]) -> torch.Tensor:
        ids = upload(token_ids, torch.int64, rows.device)
        return torch.bincount(ids, minlength=size)

    # Integers: a GPU has no sum of floats in a fixed order.
    counts = torch.zeros(rows.shape, dtype=torch.int64, device=rows.device)
    inside = (drafts >= 0) & (drafts < size)
    counts[1:].scatter_(1, drafts.clamp(0, size - 1)[:, None], inside.long()[:, None])
    counts = counts.cumsum(0) + counts_of(request.token_ids[request.prompt_length :])
    counts = counts.to(rows.dtype)
    if params.repetition_penalty != 1:
        seen = (counts + counts_of(request.token_ids[: request.prompt_length])) > 0
        ratio = params.repetition_penalty
        rows.copy_(torch.where(seen, torch.where(rows > 0, rows / ratio, rows * ratio), rows))
    rows -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
