"""Draft heads as torch modules.

`DSparkDraftHead` and its four flavours have the tensors of the released checkpoints; see
docs/draft-head.md, and docs/checkpoints.md for files. `compact` holds the head of the demo, small
enough for a CPU.
"""

import torch

from .base import BlockDraft, DSparkDraftHead
from .checkpoint import CheckpointError, load_draft_head
from .config import (
    FLAVOURS,
    ConfigError,
    DeepSeekDraftConfig,
    DenseDraftConfig,
    DraftHeadConfig,
    read_config,
)
from .context import DraftContext
from .deepseek import DeepSeekV4DraftHead, DeepSeekV41DraftHead
from .dense import Gemma4DraftHead, Qwen3DraftHead
from .hyper_connections import mean_of_copies
from .initial import reset_parameters
from .moe import prepare_experts
from .state import ContextState
from .write import save_draft_head

__all__ = [
    "FLAVOURS",
    "BlockDraft",
    "CheckpointError",
    "ConfigError",
    "ContextState",
    "DSparkDraftHead",
    "DeepSeekDraftConfig",
    "DeepSeekV41DraftHead",
    "DeepSeekV4DraftHead",
    "DenseDraftConfig",
    "DraftContext",
    "DraftHeadConfig",
    "Gemma4DraftHead",
    "Qwen3DraftHead",
    "load_draft_head",
    "make_draft_head",
    "mean_of_copies",
    "prepare_experts",
    "read_config",
    "reset_parameters",
    "save_draft_head",
]

CLASSES = {
    "deepseek_v41": DeepSeekV41DraftHead,
    "deepseek_v4": DeepSeekV4DraftHead,
    "qwen3": Qwen3DraftHead,
    "gemma4": Gemma4DraftHead,
}


def make_draft_head(
    config: DraftHeadConfig, *, dtype: torch.dtype = torch.bfloat16, device=None
) -> DSparkDraftHead:
    """The head of the config's flavour, its weights to be loaded or initialised."""
    return CLASSES[config.flavour](config, dtype=dtype, device=device)
