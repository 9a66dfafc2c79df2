"""What a draft head starts its training from: draft vocabulary, first weights, an earlier run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from dspark_ext.draft_head import (
    CheckpointError,
    ConfigError,
    DenseDraftConfig,
    load_draft_head,
    make_draft_head,
    reset_parameters,
)
from dspark_ext.draft_head.compact import CompactDraftHead, CompactDraftHeadConfig

from .settings import SettingsError
from .trainees import Trainee, make_trainee


def new_trainee(
    config: CompactDraftHeadConfig | DenseDraftConfig, draft_ids: Tensor, model, seed: int
) -> Trainee:
    """A head that passes the last tap through, with the target's own output norm.

    draft_ids  ascending target ids, config.draft_vocab_size of them
    model      the target, a causal LM of transformers
    """
    if isinstance(config, CompactDraftHeadConfig):
        torch.manual_seed(seed)
        head, first = CompactDraftHead(config), "main_proj"
    else:
        head, first = make_draft_head(config, dtype=torch.float32), "fc"
        reset_parameters(head, torch.Generator().manual_seed(seed))
        with torch.no_grad():
            for layer in head.layers:
                for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                    linear.weight.mul_((2 * len(head.layers)) ** -0.5)
    with torch.no_grad():
        if head.d2t is not None:
            head.d2t.copy_(draft_ids - torch.arange(len(draft_ids)))
        weight = getattr(head, first).weight
        weight.mul_(0.1)
        weight[:, -config.hidden_size :] += torch.eye(config.hidden_size)
        head.norm.weight.copy_(model.model.norm.weight)
    head.bind_target(model.model.embed_tokens.weight, model.lm_head.weight)
    return make_trainee(head)


def load_trainee(path: Path, model) -> Trainee:
    """A saved head of either flavour, in float32. Raises SettingsError for one of another target."""
    target = model.model.embed_tokens.weight, model.lm_head.weight
    try:
        head = load_draft_head(path, dtype=torch.float32, target=target)
    except (CheckpointError, ConfigError):
        raise
    except ValueError as error:  # of another target
        raise SettingsError(f"{path}: {error}") from None
    return make_trainee(head)


@torch.no_grad()
def continue_from(trainee: Trainee, path: Path, model) -> None:
    """Take the weights of another run of the same shape; its draft vocabulary may be another one.
    Rows of tokens that it did not draft start as they are."""
    other = load_trainee(path, model)
    head, theirs = trainee.head, other.head.state_dict()
    ours = head.state_dict()
    rows = {"markov_w2"} if other.flavour == "compact" else {"markov_head.markov_w2.weight"}
    rows |= {"markov_w1"} if other.flavour == "compact" else set()
    skipped = {"d2t", "lm_head.weight", "embed_tokens.weight"}
    problems = [] if other.flavour == trainee.flavour else [f"flavour {other.flavour}"]
    problems += [f"{name}: not in both" for name in sorted(ours.keys() ^ theirs.keys())]
    for name in sorted((ours.keys() & theirs.keys()) - skipped):
        mine, yours = ours[name].shape, theirs[name].shape
        if mine[name in rows :] != yours[name in rows :]:
            problems.append(f"{name}: {list(yours)} for {list(mine)}")
    if problems:
        raise SettingsError(f"init: {path} does not fit: " + "; ".join(problems))
    found = other.draft_ids(trainee.draft_token_ids)
    known = found >= 0
    for name in ours.keys() - skipped - rows:
        ours[name].copy_(theirs[name])
    for name in rows & ours.keys():
        ours[name][: len(known)][known] = theirs[name][found[known]]
        if name == "markov_w1":
            ours[name][-1] = theirs[name][-1]  # of all tokens that are not drafted


def choose_draft_vocabulary(counts: Tensor, size: int) -> Tensor:
    """The most frequent tokens, in id order; ties and unseen tokens by low id (early merges)."""
    order = torch.argsort(counts, descending=True, stable=True)
    return order[:size].sort().values
