"""FlashInfer's chain verification, on `rejection_sample` of this library."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import sampling
from . import layouts


def chain_speculative_sampling(
    draft_probs: Tensor,
    draft_token_ids: Tensor,
    target_probs: Tensor,
    maybe_output_accepted_token_num: Tensor | None = None,
    maybe_output_emitted_draft_token_num: Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    *,
    method: str = "token",
) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments and results of `flashinfer.sampling.chain_speculative_sampling`, any device.

    Args:
        draft_probs: float32 [B, K, V]. draft_token_ids: int32 [B, K]; -1 ends the block there.
        target_probs: float32 [B, K + 1, V].
        maybe_output_accepted_token_num, maybe_output_emitted_draft_token_num: int32 [B] counters
            to add to, in place; new ones if None.
        deterministic: results always are.
        generator: source of the uniform numbers; torch's default one if None.
        method: "token" as FlashInfer, or "block".

    Returns `output_token_ids` int32 [B, K + 1], -1 past the end; the drafts that would stand if
    each were judged alone, counted by the token rule's test for either method; the drafts emitted.

    Example:
        >>> chain_speculative_sampling(
        ...     torch.tensor([[[0.0, 0.6, 0.4]]]), torch.tensor([[2]], dtype=torch.int32),
        ...     torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]),
        ... )[0]
        tensor([[ 0, -1]], dtype=torch.int32)
    """
    del deterministic
    batch, num_drafts = draft_token_ids.shape
    device, vocab = target_probs.device, target_probs.shape[-1]
    uniforms = torch.rand(
        batch, num_drafts + 1, dtype=torch.float64, device=device, generator=generator
    )
    output = sampling.rejection_sample(
        layouts.logits_of_probs(target_probs).reshape(-1, vocab),
        draft_token_ids,
        query_start_loc=torch.arange(batch + 1, device=device) * (num_drafts + 1),
        method=method,
        temperature=1.0,
        draft_probs=draft_probs,
        seeds=0,
        positions=0,
        uniforms=uniforms,
    )
    ids = draft_token_ids.to(torch.int64).clamp(0, vocab - 1)[..., None]
    p = target_probs[:, :num_drafts].gather(2, ids)[..., 0]
    q = draft_probs.gather(2, ids)[..., 0]
    valid = (draft_token_ids >= 0) & (draft_token_ids < vocab)
    alone = (valid & (uniforms[:, :num_drafts] * q < p)).sum(1, dtype=torch.int32)
    return (
        output.token_ids.to(torch.int32),
        _count(maybe_output_accepted_token_num, alone),
        _count(maybe_output_emitted_draft_token_num, output.num_accepted),
    )


def _count(counter: Tensor | None, amount: Tensor) -> Tensor:
    return amount if counter is None else counter.add_(amount.to(counter.dtype))
