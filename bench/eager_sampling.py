"""Rejection sampling as one writes it in eager torch today: vectorised over the batch, no loop over
the vocabulary or the requests. Baseline of the benchmark and, in float64, its check.

B requests, K drafts each, V vocabulary; all requests have K drafts. Temperature > 0.
"""

import torch


def filtered_probs(logits, temperature, top_k=None, top_p=None, dtype=torch.float32):
    """softmax(logits / temperature) after top-k and top-p; logits [B, R, V], top_k, top_p [B]."""
    scores = logits.to(dtype).div(temperature)
    if top_k is not None:
        best = scores.topk(int(top_k.max()), dim=-1).values
        index = (top_k - 1).view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        scores = scores.masked_fill(scores < best.gather(-1, index), -torch.inf)
    if top_p is not None:
        ordered, ids = scores.sort(dim=-1, descending=True)
        mass = ordered.softmax(-1).cumsum(-1)
        dropped = mass - ordered.softmax(-1) >= top_p.view(-1, 1, 1)
        scores = scores.masked_fill(dropped.scatter(-1, ids, dropped), -torch.inf)
    return scores.softmax(-1)


def block_lengths(target, draft, target_at, draft_at, uniforms):
    """Accepted drafts [B] by block verification, and the prefix probability [B] they end at."""
    batch, num_drafts = target_at.shape
    prefix = target.new_ones(batch, num_drafts + 1)
    for i in range(num_drafts):
        ratio = prefix[:, i] * target_at[:, i] / draft_at[:, i]
        prefix[:, i + 1] = ratio.clamp(max=1.0)
    scaled = prefix[:, 1:num_drafts, None] * target[:, 1:num_drafts]
    mass = scaled.sub_(draft[:, 1:]).clamp_(min=0.0).sum(-1)
    accept = mass / (mass + 1.0 - prefix[:, 1:num_drafts])
    accept = torch.cat([accept.nan_to_num(1.0), prefix[:, num_drafts:]], dim=1)
    passed = uniforms[:, :num_drafts] < accept
    steps = torch.arange(1, num_drafts + 1, device=target.device)
    lengths = (passed * steps).amax(-1)
    return lengths, prefix.gather(1, lengths[:, None])


def token_lengths(target_at, draft_at, uniforms):
    """Accepted drafts [B] by the token rule."""
    accepted = uniforms[:, : target_at.shape[1]] * draft_at < target_at
    return accepted.long().cumprod(-1).sum(-1)


def rejection_sample(
    target_logits,
    draft_token_ids,
    draft_logits,
    uniforms,
    *,
    method,
    temperature,
    top_k=None,
    top_p=None,
    dtype=torch.float32,
):
    """token_ids [B, K+1], -1 past the end; target_logits [B, K+1, V], draft_logits [B, K, V]."""
    num_drafts = draft_token_ids.shape[1]
    target = filtered_probs(target_logits, temperature, top_k, top_p, dtype)
    draft = draft_logits.to(dtype).div(temperature).softmax(-1)
    target_at = target[:, :num_drafts].gather(-1, draft_token_ids[..., None]).squeeze(-1)
    draft_at = draft.gather(-1, draft_token_ids[..., None]).squeeze(-1)

    if method == "block":
        lengths, scale = block_lengths(target, draft, target_at, draft_at, uniforms)
    else:
        lengths, scale = token_lengths(target_at, draft_at, uniforms), 1.0
    rows = torch.arange(target.shape[0], device=target.device)
    residual = target[rows, lengths] * scale
    rejected = lengths < num_drafts
    subtract = draft[rows, lengths.clamp(max=num_drafts - 1)] * rejected[:, None]
    residual = residual.sub_(subtract).clamp_(min=0.0)

    cumulative = residual.cumsum(-1)
    wanted = uniforms[:, num_drafts:].to(dtype) * cumulative[:, -1:]
    final = torch.searchsorted(cumulative, wanted, right=True).clamp_(max=target.shape[-1] - 1)
    steps = torch.arange(num_drafts + 1, device=target.device)
    padded = torch.cat([draft_token_ids, draft_token_ids.new_zeros(len(rows), 1)], dim=1)
    padded = torch.where(steps == lengths[:, None], final, padded)
    return torch.where(steps <= lengths[:, None], padded, -1)
