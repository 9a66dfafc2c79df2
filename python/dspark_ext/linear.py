"""Linear layers for decoding on a CPU: prepacked weights, one result per row whatever the batch.

`torch.nn.functional.linear` picks its kernel by the number of rows, so a row's last bits change
with the batch it is in; here they do not. That is what makes greedy speculative decoding emit
exactly the tokens of plain decoding: the row that verifies a draft and the row that decodes it have
the same bits.
"""

import torch
from torch import nn

from . import _operators as _ops


def pack_linear(weight):
    """Packs a weight for `linear`.

    Args:
        weight: `[out_features, in_features]`, float32 or bfloat16, any strides.

    Returns:
        `[ceil(out_features / 32), in_features, 32]` in the dtype of `weight`: panels of 32 outputs,
        padded with zeros. The order inside a panel is an implementation detail
        (csrc/ops/linear/args.h).

    Raises:
        RuntimeError: `weight` is not two-dimensional, or neither float32 nor bfloat16.
    """
    return _ops.pack_linear(weight)


def linear(x, packed_weight, bias, out_features):
    """`x @ weight.T + bias` in float32, for a weight packed by `pack_linear`.

    Each output is one chain of float32 fused multiply-adds over the input features in ascending
    order, started at 0, plus the bias at the end; bfloat16 operands are widened exactly. So a row
    of the result depends on that row of `x` alone: it has the same bits for any number of rows, any
    position among them, any thread count and any instruction set. No gradient is defined.

    If both `x` and the weight are bfloat16, processors with AVX512-BF16 take two links of the chain
    per instruction, at twice the rate and with the same bits; for that, subnormal operands and sums
    count as zero in this case on every x86 instruction set.

    Args:
        x: `[..., in_features]`, float32 or bfloat16.
        packed_weight: result of `pack_linear`.
        bias: `[out_features]` float32, or None.
        out_features: int, number of rows of the weight before packing.

    Returns:
        `[..., out_features]`, float32.

    Raises:
        RuntimeError: a shape or dtype does not fit; the message names the argument.
    """
    return _ops.linear(x, packed_weight, bias, out_features)


class PackedLinear(nn.Module):
    """`torch.nn.Linear` on a packed weight, for inference: float32 results, see `linear`."""

    def __init__(self, packed_weight, bias, out_features, input_dtype=torch.float32):
        """`input_dtype`: what inputs are rounded to first; bfloat16 is twice as fast on a bfloat16
        weight where the processor has AVX512-BF16."""
        super().__init__()
        self.in_features = packed_weight.shape[1]
        self.out_features = out_features
        self.input_dtype = input_dtype
        self.register_buffer("packed_weight", packed_weight)
        self.register_buffer("bias", bias)

    @classmethod
    def from_linear(cls, module, dtype=torch.bfloat16, input_dtype=torch.float32):
        """Packs the weight of an `nn.Linear`, rounded to `dtype` (bfloat16 or float32); the bias is
        kept in float32. The module itself is left as it is."""
        weight = module.weight.detach()
        bias = None if module.bias is None else module.bias.detach().float().clone()
        return cls(pack_linear(weight.to(dtype)), bias, weight.shape[0], input_dtype)

    def forward(self, x):
        """x `[..., in_features]`, a float type -> `[..., out_features]` float32."""
        return linear(x.to(self.input_dtype), self.packed_weight, self.bias, self.out_features)

    def extra_repr(self):
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, dtype={self.packed_weight.dtype}, "
            f"input_dtype={self.input_dtype}"
        )


def pack_module(model, dtype=torch.bfloat16, input_dtype=torch.float32):
    """Replaces every `nn.Linear` inside `model` by a `PackedLinear`, in place.

    Layers that share one weight share one packed copy. A weight tied to something that is not an
    `nn.Linear` (an output head tied to the token embedding) is packed as a copy and the other owner
    keeps the original. Subclasses of `nn.Linear` are left alone, since their owners may read the
    weight themselves (as `nn.MultiheadAttention` does).

    Args:
        model: module whose descendants are replaced; if it is an `nn.Linear` itself, its
            replacement is returned.
        dtype: torch.bfloat16 or torch.float32, the dtype the weights are kept in.
        input_dtype: torch.float32, or torch.bfloat16 to round the inputs of every layer.

    Returns:
        `model`.
    """
    packed = {}

    def replacement(module):
        key = (id(module.weight), id(module.bias))
        if key not in packed:
            packed[key] = PackedLinear.from_linear(module, dtype, input_dtype)
        return packed[key]

    if type(model) is nn.Linear:
        return replacement(model)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # also modules that stand here twice
            if type(child) is nn.Linear:
                setattr(parent, name, replacement(child))
    return model
