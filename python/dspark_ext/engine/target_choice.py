"""Which target serves a model where it is."""

import logging
from collections.abc import Sequence

import torch

from .causal_lm import CausalLMTarget
from .huggingface import SUPPORTED_MODEL_TYPES, HuggingFaceTarget

_log = logging.getLogger(__name__)


def target_for(
    model: torch.nn.Module,
    taps: Sequence[int] = (),
    *,
    max_requests: int,
    max_len: int,
    weight_dtype: torch.dtype = torch.float32,
    block_size: int | None = None,
    num_blocks: int | None = None,
) -> HuggingFaceTarget | CausalLMTarget:
    """`HuggingFaceTarget` for models that it serves, if they are on a CPU, where its operators
    compute; `CausalLMTarget` for all others. A model that only its device keeps from the former is
    logged.

    weight_dtype  what `HuggingFaceTarget` keeps weights in; the other leaves the model's as they
                  are

    Other arguments as of both.
    """
    sizes = dict(
        max_requests=max_requests, max_len=max_len, block_size=block_size, num_blocks=num_blocks
    )
    if not _has_lean_pass(model):
        return CausalLMTarget(model, taps, **sizes)
    device = model.lm_head.weight.device
    if device.type == "cpu":
        return HuggingFaceTarget(model, taps, weight_dtype=weight_dtype, **sizes)
    _log.warning(
        "dspark_ext.engine.target_for: a %s on %s is served by CausalLMTarget, through its own "
        "forward: HuggingFaceTarget's operators compute on a CPU",
        model.config.model_type,
        device.type,
    )
    return CausalLMTarget(model, taps, **sizes)


def _has_lean_pass(model: torch.nn.Module) -> bool:
    """Whether `HuggingFaceTarget` knows the type and the weights are plain."""
    config = model.config
    return (
        config.model_type in SUPPORTED_MODEL_TYPES
        and config.hidden_act == "silu"
        and isinstance(getattr(getattr(model, "lm_head", None), "weight", None), torch.Tensor)
        and getattr(model, "hf_quantizer", None) is None
    )
