"""Weights of a draft head to train from."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import DSparkDraftHead
from .quantized import QuantizedLinear

# Zero, so that the Markov bias starts at 0 and every confidence at 1/2.
_ZERO = ("markov_w2.weight", "markov_head.head.weight", "confidence_head.proj.weight")


@torch.no_grad()
def reset_parameters(head: DSparkDraftHead, generator: torch.Generator | None = None) -> None:
    """Norms and layer scalars 1; matrices normal with variance 1 / inputs; biases, sinks, offsets
    and what `_ZERO` names 0. Scales of hyper-connections are 0.01, so that their weights start
    nearly alike for all tokens."""

    def normal(outputs: int, inputs: int) -> Tensor:
        return torch.randn(outputs, inputs, generator=generator) * inputs**-0.5

    quantized = {
        f"{name}.": module
        for name, module in head.named_modules()
        if isinstance(module, QuantizedLinear) and module.is_quantized
    }
    for module in quantized.values():
        module.set_weight(normal(module.out_features, module.in_features))
    for name, value in head.state_dict().items():
        if name[: name.rfind(".") + 1] in quantized:
            continue
        if name.endswith(("norm.weight", "layer_scalar")):
            value.fill_(1.0)
        elif name.endswith(_ZERO):
            value.zero_()
        elif value.dim() == 1:
            value.fill_(0.01 if name.endswith("_scale") else 0.0)
        else:
            value.copy_(normal(*value.shape))
