"""What a draft head starts its training from: draft vocabulary, first weights, an earlier run."""

import torch
from torch import Tensor

from dspark_ext.draft_head.compact import CompactDraftHead


def initialise(head: CompactDraftHead, draft_ids: Tensor, final_norm: Tensor) -> None:
    """Start from the last tap passed through and the target's own output norm."""
    with torch.no_grad():
        head.d2t.copy_(draft_ids - torch.arange(len(draft_ids)))
        width = head.config.hidden_size
        head.main_proj.weight.mul_(0.1)
        head.main_proj.weight[:, -width:] += torch.eye(width)
        head.norm.weight.copy_(final_norm)


def resume(head: CompactDraftHead, state: dict[str, Tensor]) -> None:
    """Continue from another run's weights; its draft vocabulary may be another one."""
    old_ids = state["d2t"] + torch.arange(len(state["d2t"]))
    old_row = torch.full((head.config.vocab_size,), len(old_ids))
    old_row[old_ids] = torch.arange(len(old_ids))
    rows = old_row[head.draft_token_ids]
    w2 = torch.cat([state["markov_w2"], torch.zeros_like(state["markov_w2"][:1])])
    state = {
        **state,
        "d2t": head.d2t,
        "markov_w1": state["markov_w1"][torch.cat([rows, torch.tensor([len(old_ids)])])],
        "markov_w2": w2[rows],
    }
    state.pop("lm_head.weight", None)
    missing, unexpected = head.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"resume: missing {missing}, unexpected {unexpected}")


def choose_draft_vocabulary(counts: Tensor, size: int) -> Tensor:
    """The most frequent tokens, in id order; ties and unseen tokens by low id (early merges)."""
    order = torch.argsort(counts, descending=True, stable=True)
    return order[:size].sort().values
