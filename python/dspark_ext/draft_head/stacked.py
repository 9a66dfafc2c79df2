"""The weights of a stage's experts in one tensor of each kind, as `moe.grouped_gemm` reads them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .. import moe

# What is stacked, and of which layers of an expert, one below the other.
PARTS = {"w13": ("w1", "w3"), "w2": ("w2",)}


class ExpertStack:
    """Follows the experts of a module list.

    The first call of `weights` copies their weights into stacks and makes the experts' own
    parameters views of these, so that nothing is held twice and their state dict stays as it was.
    If a parameter has left its stack since (loaded, moved, replaced), stacks are made again.
    """

    def __init__(self) -> None:
        self._weights: moe.ExpertWeights | None = None
        self._addresses: list[int] = []

    def __deepcopy__(self, memo) -> ExpertStack:
        return ExpertStack()

    def __reduce__(self):
        return ExpertStack, ()

    def weights(self, experts: nn.ModuleList) -> moe.ExpertWeights | None:
        """None if the experts cannot be stacked: the gates of one end within a block of scales."""
        layer = experts[0].w1
        if layer.is_quantized and layer.out_features % layer.block[0] != 0:
            return None
        if self._weights is None or self._addresses != list(_addresses(experts)):
            self._weights = _stack(experts)
            self._addresses = list(_addresses(experts))
        return self._weights


def _addresses(experts: nn.ModuleList) -> Iterator[int]:
    """Where every parameter lies. Called for each pass: dictionaries, not attributes."""
    for expert in experts._modules.values():
        for layer in expert._modules.values():
            for parameter in layer._parameters.values():
                yield 0 if parameter is None else parameter.data_ptr()


@torch.inference_mode(False)
@torch.no_grad()
def _stack(experts: nn.ModuleList) -> moe.ExpertWeights:
    stacks = {
        (part, field): _stack_part(experts, layers, field)
        for part, layers in PARTS.items()
        for field in ("weight", "scale")
    }
    layer = experts[0].w1
    return moe.ExpertWeights(
        w13=stacks["w13", "weight"],
        w2=stacks["w2", "weight"],
        w13_scales=stacks["w13", "scale"],
        w2_scales=stacks["w2", "scale"],
        format=layer.format if layer.is_quantized else None,
        block=layer.block,
    )


def _stack_part(experts: nn.ModuleList, layers: tuple[str, ...], field: str) -> Tensor | None:
    """[E, rows of all layers, columns] of one field."""
    parameters = [[getattr(getattr(expert, name), field) for name in layers] for expert in experts]
    first = parameters[0][0]
    if first is None:
        return None
    rows, columns = first.shape
    stack = first.new_empty(len(experts), len(layers) * rows, columns)
    for expert, own in zip(stack, parameters, strict=True):
        for part, parameter in zip(expert.split(rows), own, strict=True):
            part.copy_(parameter.data)
            parameter.data = part
    return stack
