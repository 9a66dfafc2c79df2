"""The loss of drafted positions, over the draft vocabulary and a few rows at a time.

For target probabilities p (the draft vocabulary's share m of them), q = softmax(z) and the text's
token x: CE = -log q[x] with dCE/dz = q - [x]; KL up to a constant = -sum p log q with dKL/dz = m q - p;
TV = 1 - sum min(p, q) with dTV/dz = q (s - [q < p]), s the sum of q where q < p.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .samples import Batch
from .settings import Settings


class Rows(NamedTuple):
    """Per drafted position; none of it has a gradient.

    token_ce    cross entropy with the text's token, 0 where it cannot be drafted
    law_ce      cross entropy with the target's law over the draft vocabulary
    acceptance  1 - TV, the probability that a draft is accepted at temperature 1
    best        the most probable draft id
    """

    token_ce: Tensor
    law_ce: Tensor
    acceptance: Tensor
    best: Tensor


class DraftLoss(torch.autograd.Function):
    """Weighted sum over rows of shares of CE, KL and TV; the gradient is made along with it, so
    that no more than `rows_per_chunk` rows of logits exist at a time."""

    rows_per_chunk = 128

    @staticmethod
    def forward(
        ctx, state, w2, vocab_weight, target_hidden, target_logsumexp, labels, weight, shares
    ):
        dtype, split = vocab_weight.dtype, vocab_weight.shape[1]
        wide = torch.promote_types(dtype, torch.float32)
        joint = torch.cat([vocab_weight, w2.to(dtype)], 1)
        narrow = state.to(dtype)
        grad_state, grad_w2 = torch.empty_like(narrow), torch.zeros_like(w2)
        parts = []
        for start in range(0, len(state), DraftLoss.rows_per_chunk):
            span = slice(start, start + DraftLoss.rows_per_chunk)
            target = F.linear(target_hidden[span].to(dtype), vocab_weight).to(wide)
            logits = F.linear(narrow[span], joint).to(wide)
            p = target.sub_(target_logsumexp[span, None]).exp_()
            rows, grad = _chunk(logits, p, labels[span], shares)
            parts.append(rows)
            grad = grad.mul_(weight[span, None]).to(dtype)
            grad_state[span] = grad @ joint
            grad_w2 += grad.T @ narrow[span, split:]
        rows = Rows(*map(torch.cat, zip(*parts)))
        ctx.save_for_backward(grad_state.to(state.dtype), grad_w2)
        ctx.mark_non_differentiable(*rows)
        token, law, variation = shares
        values = token * rows.token_ce + law * rows.law_ce + variation * (1 - rows.acceptance)
        return ((weight * values).sum(), *rows)

    @staticmethod
    def backward(ctx, grad_loss, *_):
        grad_state, grad_w2 = ctx.saved_tensors
        return (grad_state * grad_loss, grad_w2 * grad_loss, *[None] * 6)


def _chunk(logits: Tensor, p: Tensor, labels: Tensor, shares) -> tuple[Rows, Tensor]:
    """Of rows [n, V_draft]: their values, and the gradient of the mixed loss by the logits."""
    best = logits.argmax(-1)
    log_q = logits.sub_(logits.logsumexp(-1, keepdim=True))
    draftable = labels >= 0
    chosen = labels.clamp(min=0)[:, None]
    token_ce = -log_q.gather(1, chosen)[:, 0] * draftable
    law_ce = -(p * log_q).sum(-1)
    q = log_q.exp()
    acceptance = torch.minimum(p, q).sum(-1)
    token, law, variation = shares
    short = torch.where(q < p, q, 0.0)
    grad = (short.sum(-1, keepdim=True) * q - short).mul_(variation)
    if law:
        grad += (p.sum(-1, keepdim=True) * q - p).mul_(law)
    if token:
        only = token * draftable[:, None].to(q.dtype)
        grad += (q * only).scatter_add_(1, chosen, -only)
    return Rows(token_ce, law_ce, acceptance, best), grad


def position_weights(valid: Tensor, gamma: float) -> Tensor:
    """[N] of valid [..., K]: exp(-(k - 1) / gamma), 0 beyond a row's end, together 1."""
    weights = valid * torch.exp(-torch.arange(valid.shape[-1]) / gamma)
    return (weights / weights.sum().clamp(min=1e-20)).flatten()


def draft_rows(
    trainee, batch: Batch, vocab_weight: Tensor, weight: Tensor, shares, precision: str
) -> tuple[Tensor, Rows, Tensor | None]:
    """(loss without confidence, rows, confidence logits [N] or None) of a batch."""
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        states = trainee.states(batch)
    labels = trainee.draft_ids(batch.token_ids[:, :, 1:].flatten())
    loss, *rows = DraftLoss.apply(
        torch.cat([states.hidden, states.bias_input], -1), trainee.w2, vocab_weight,
        batch.target_hidden.flatten(0, 2), batch.target_logsumexp.flatten(), labels, weight, shares,
    )  # fmt: skip
    return loss, Rows(*rows), states.confidence


def backward(
    trainee, batch: Batch, vocab_weight: Tensor, settings: Settings, step: int
) -> dict[str, list[float]]:
    """Adds the gradients of one step; returns its parts, a list of one or, by position, K numbers."""
    weight = position_weights(batch.valid, settings.gamma)
    shares = settings.shares_at(step)
    loss, rows, confidence = draft_rows(
        trainee, batch, vocab_weight, weight, shares, settings.precision
    )
    acceptance = rows.acceptance.clamp(0, 1)
    parts = {
        "ce": (rows.token_ce * weight).sum(),
        "law_ce": (rows.law_ce * weight).sum(),
        "tv": 1 - (acceptance * weight).sum(),
    }
    if confidence is not None:
        parts["confidence"] = F.binary_cross_entropy_with_logits(
            confidence, acceptance, weight, reduction="sum"
        )
        loss = loss + settings.confidence_share * parts["confidence"]
    loss.backward()
    numbers = {name: [value.item()] for name, value in {"loss": loss, **parts}.items()}
    valid = batch.valid.flatten(0, 1)
    by_position = (acceptance.view(valid.shape) * valid).sum(0) / valid.sum(0).clamp(min=1)
    return {**numbers, "accept": by_position.tolist()}
