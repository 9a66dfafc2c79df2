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

    prepares: whether `prepared` keeps a second copy, in the layout of the device. Writing to a
        parameter in place makes it anew; writing to `parameter.data`, which torch does not count,
        does not.
    """

    def __init__(self, prepares: bool = False) -> None:
        self.prepares = prepares
        self._weights: moe.ExpertWeights | None = None
        self._addresses: list[int] = []
        self._prepared: moe.ExpertWeights | None = None
        self._versions: list[int] = []

    def __deepcopy__(self, memo) -> ExpertStack:
        return ExpertStack(self.prepares)

    def __reduce__(self):
        return ExpertStack, (self.prepares,)

    def weights(self, experts: nn.ModuleList) -> moe.ExpertWeights | None:
        """None if the experts cannot be stacked: the gates of one end within a block of scales, or
        not all have their weights and scales in the same dtypes."""
        layer = experts[0].w1
        if layer.is_quantized and layer.out_features % layer.block[0] != 0:
            return None
        if self._weights is None or self._addresses != list(_addresses(experts)):
            if not _are_alike(experts):
                return None
            self._weights = _stack(experts)
            self._addresses = list(_addresses(experts))
            self._prepared = None
        return self._weights

    def prepared(self, experts: nn.ModuleList) -> moe.ExpertWeights | None:
        """`weights` by `moe.prepare_weights`; themselves unless `prepares`, or if changes of a
        parameter cannot be seen."""
        weights = self.weights(experts)
        if weights is None or not self.prepares:
            self._prepared = None
            return weights
        versions = [_version(parameter) for parameter in _parameters(experts)]
        if None in versions:
            return weights
        if self._prepared is None or self._versions != versions:
            self._prepared = None  # not two of them at a time
            self._prepared = moe.prepare_weights(weights)
            self._versions = versions
        return self._prepared

    def copy_bytes(self, experts: nn.ModuleList) -> int:
        """Of what `prepared` keeps."""
        weights = self.weights(experts)
        if weights is None:
            return 0
        device = weights.w13.device
        fields = weights._asdict().items()
        shapes = {name: value.to("meta") for name, value in fields if torch.is_tensor(value)}
        there = moe.prepare_weights(weights._replace(**shapes), device)
        return 0 if there.layout == weights.layout else moe.prepared_bytes(weights)


def _parameters(experts: nn.ModuleList) -> Iterator[nn.Parameter]:
    """Called for each pass: dictionaries, not attributes."""
    for expert in experts._modules.values():
        for layer in expert._modules.values():
            yield from (p for p in layer._parameters.values() if p is not None)


def _are_alike(experts: nn.ModuleList) -> bool:
    layers = [layer for expert in experts for layer in expert.children()]
    fields = [field for field in ("weight", "scale") if getattr(layers[0], field) is not None]
    return all(len({getattr(layer, field).dtype for layer in layers}) == 1 for field in fields)


def _addresses(experts: nn.ModuleList) -> Iterator[int]:
    """Where every parameter lies."""
    return (parameter.data_ptr() for parameter in _parameters(experts))


def _version(parameter: nn.Parameter) -> int | None:
    """How often it was written to; None if nobody counts, as in inference mode."""
    try:
        return parameter._version
    except RuntimeError:
        return None


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
