"""A linear layer that keeps its weight in the format of the checkpoint."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import formats

FLOAT_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
FORMATS = (*FLOAT_DTYPES, "fp8_e4m3", "mxfp4")


class QuantizedLinear(nn.Module):
    """`y = x @ W.T` without bias, W [out_features, in_features] in one of `FORMATS`.

    The entries of its state dict are the tensors of released checkpoints:

    | format | `weight` | `scale` |
    |---|---|---|
    | bf16, fp16, fp32 | [out, in] in that dtype | none |
    | fp8_e4m3 | [out, in] float8_e4m3fn | [ceil(out / block rows), ceil(in / block columns)] |
    | mxfp4 | [out, in / 2] uint8, even column in the low half | [out, ceil(in / 32)] |

    `forward` widens the weight to the dtype of its input each time; with `cache=True` it keeps the
    widened weight, until something is loaded or the module is moved. Codes are no gradient leaves:
    only the float formats can be trained.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        format: str = "bf16",
        block: tuple[int, int] | None = None,
        scale_dtype: torch.dtype = torch.float8_e8m0fnu,
        cache: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """The weight is uninitialised.

        block        of one fp8 scale; None = 128x128. Without meaning for the other formats
        scale_dtype  float8_e8m0fnu, or float32 for fp8
        dtype        of the weight in a float format, instead of the one the format names

        Raises ValueError for an unknown format, block or scale_dtype."""
        super().__init__()
        self.in_features, self.out_features, self.format = in_features, out_features, format
        self.cache, self._wide = cache, None
        if format in FLOAT_DTYPES:
            self.block = None
            dtype = dtype or FLOAT_DTYPES[format]
            weight = torch.empty(out_features, in_features, dtype=dtype, device=device)
            self.weight = nn.Parameter(weight)
            self.register_parameter("scale", None)
            return
        if format not in FORMATS:
            raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
        block = None if format == "mxfp4" else block
        self.block = formats.check_format(format, block, scale_dtype)
        if format == "mxfp4" and in_features % 2:
            raise ValueError(f"in_features: expected an even number for mxfp4, got {in_features}")
        width = in_features // 2 if format == "mxfp4" else in_features
        code_dtype = formats.CODE_DTYPES.get(format, torch.uint8)
        codes = torch.empty(out_features, width, dtype=code_dtype, device=device)
        shape = formats.scale_shape((out_features, in_features), self.block)
        scale = torch.empty(shape, dtype=scale_dtype, device=device)
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)

    @property
    def is_quantized(self) -> bool:
        return self.scale is not None

    def dequantized(self, dtype: torch.dtype | None = None) -> Tensor:
        """W `[out_features, in_features]` in a float dtype; None: bfloat16, or the format's own."""
        if not self.is_quantized:
            return self.weight if dtype is None else self.weight.to(dtype)
        dtype = dtype or torch.bfloat16
        if self._wide is not None and self._wide.dtype == dtype:
            return self._wide
        wide = formats.dequantize(
            self.weight, self.scale, self.format, block=self.block, dtype=dtype
        )
        self._wide = wide if self.cache else None
        return wide

    @torch.no_grad()
    def set_weight(self, weight: Tensor) -> None:
        """Stores W `[out_features, in_features]`, any float dtype, rounded to the format."""
        if tuple(weight.shape) != (self.out_features, self.in_features):
            expected = [self.out_features, self.in_features]
            raise ValueError(f"set_weight: expected shape {expected}, got {list(weight.shape)}")
        self._wide = None
        if not self.is_quantized:
            self.weight.copy_(weight)
            return
        codes, scale = formats.quantize(
            weight.cpu(), self.format, block=self.block, scale_dtype=self.scale.dtype
        )
        self.weight.copy_(codes)
        self.scale.copy_(scale)

    def forward(self, x: Tensor) -> Tensor:
        """x `[..., in_features]`, a float dtype -> `[..., out_features]` in the same dtype."""
        return F.linear(x, self.dequantized(x.dtype))

    def _apply(self, fn, recurse: bool = True):
        """Moves the module. Codes and E8M0 scales keep their dtype: a cast would change them."""
        self._wide = None
        if not self.is_quantized:
            return super()._apply(fn, recurse)

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        self._wide = None
        super()._load_from_state_dict(*args, **kwargs)

    def extra_repr(self) -> str:
        block = f", block={self.block}" if self.is_quantized else ""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, format={self.format}{block}"
