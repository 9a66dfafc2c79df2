"""SGLang's chain verification, on `rejection_sample` of this library.

`chain_speculative_sampling` has the signature of `chain_speculative_sampling_triton` in
`sglang.kernels.ops.speculative.reject_sampling`, which EAGLE with one branch, DFLASH and DSPARK
call. SGLang itself is not imported.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import sampling
from . import layouts


def chain_speculative_sampling(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor | None,
    retrive_next_sibling: Tensor | None,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
    *,
    block_verification: bool = False,
) -> None:
    """Writes `predicts`, `accept_index` and `accept_token_num` in place.

    Args:
        predicts: int32 [B * S]; at the index of slot i the token that follows it, for the root
            and every accepted draft. Other entries are left as they are.
        accept_index: int32 [B, S]; indices of the root and the accepted drafts, then -1.
        accept_token_num: int32 [B], accepted drafts.
        candidates: int64 [B, S]; slot 0 is the root, then S - 1 drafts. A draft outside the
            vocabulary ends the block.
        retrive_index: int64 [B, S], index of each slot in `predicts`.
        uniform_samples: float32 [B, >= S - 1], one number in [0, 1) per draft.
        uniform_samples_for_final_sampling: float32 [B].
        target_probs: float32 [B, S, V], temperature and filters applied.
        draft_probs: float32 [B, S - 1, V].
        retrive_next_token, retrive_next_sibling, deterministic: a chain needs none of them.
        threshold_single, threshold_acc: as in SGLang's chain kernel, without effect.
        block_verification: the block rule instead of the token rule.

    The caller's uniform numbers decide, so with the same numbers the accepted lengths and tokens
    are SGLang's own, but for rounding and for slots that are no proposals (docs/integrations.md).
    """
    del retrive_next_token, retrive_next_sibling, threshold_single, threshold_acc, deterministic
    batch, num_slots = candidates.shape
    num_drafts, vocab = num_slots - 1, target_probs.shape[-1]
    output = sampling.rejection_sample(
        layouts.logits_of_probs(target_probs).reshape(-1, vocab),
        candidates[:, 1:],
        query_start_loc=torch.arange(batch + 1, device=candidates.device) * num_slots,
        method="block" if block_verification else "token",
        temperature=1.0,
        draft_probs=draft_probs[:, :num_drafts],
        seeds=0,
        positions=0,
        uniforms=torch.cat(
            [uniform_samples[:, :num_drafts], uniform_samples_for_final_sampling.reshape(-1, 1)],
            dim=1,
        ).to(torch.float64),
    )
    used = output.token_ids >= 0
    index = retrive_index.to(torch.int64)
    tokens = output.token_ids.to(predicts.dtype)
    predicts[index] = torch.where(used, tokens, predicts[index])
    accept_index.copy_(torch.where(used, index, -1))
    accept_token_num.copy_(output.num_accepted)
