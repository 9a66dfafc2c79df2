"""Weights of every format, plans and rows for the operators of the expert layer."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dspark_ext import formats, moe

E8M0 = torch.float8_e8m0fnu
# name: (format or dtype, block, dtype of the scales)
KINDS = {
    "fp32": (torch.float32, None, None),
    "bf16": (torch.bfloat16, None, None),
    "fp16": (torch.float16, None, None),
    "fp8-128": ("fp8_e4m3", (128, 128), E8M0),
    "fp8-32": ("fp8_e4m3", (32, 32), E8M0),
    "fp8-odd": ("fp8_e4m3", (5, 7), torch.float32),
    "fnuz-128": ("fp8_e4m3fnuz", (128, 128), torch.float32),
    "mxfp8": ("fp8_e4m3", (1, 32), E8M0),
    "mxfp4": ("mxfp4", (1, 32), E8M0),
}
# Blocks of columns that are no chunk of a kernel's: of several, of a part of one.
BLOCK_KINDS = {
    "fp8-512": ("fp8_e4m3", (16, 512), torch.float32),
    "fp8-96": ("fp8_e4m3", (7, 96), torch.float32),
}


def described(kind: str) -> tuple:
    """(dtype or format, block, dtype of the scales)"""
    return (KINDS | BLOCK_KINDS)[kind]


class Weights(NamedTuple):
    weight: torch.Tensor
    scales: torch.Tensor | None
    format: str | None
    block: tuple[int, int] | None
    exact: torch.Tensor  # float32, what the codes stand for

    def options(self) -> dict:
        return {"scales": self.scales, "format": self.format, "block": self.block}

    def of(self, experts) -> Weights:
        """Those of some experts."""
        some = [x if x is None else x[experts] for x in (self.weight, self.scales, self.exact)]
        return self._replace(weight=some[0], scales=some[1], exact=some[2])


def make_weights(kind: str, shape: tuple[int, int, int], seed: int = 0) -> Weights:
    """[E, N, K] of normal numbers over sqrt(K), blocks of different magnitude."""
    format, block, scale_dtype = described(kind)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) / max(shape[2], 1) ** 0.5
    values *= 2.0 ** torch.randint(-2, 3, (shape[0], shape[1], 1), generator=generator)
    if isinstance(format, torch.dtype):
        weight = values.to(format)
        return Weights(weight, None, None, None, weight.float())
    codes, scales = formats.quantize(values, format, block=block, scale_dtype=scale_dtype)
    exact = formats.dequantize(codes, scales, format, block=block)
    return Weights(codes, scales, format, block, exact)


def make_plan(
    tokens: int, k: int, experts: int, seed: int = 0, tile_rows: int = 16, alignment: int = 1
) -> moe.DispatchPlan:
    """Of random choices, a tenth of them not here."""
    generator = torch.Generator().manual_seed(1000 + seed)
    ids = torch.randint(0, experts, (tokens, k), generator=generator)
    ids = torch.where(torch.rand(ids.shape, generator=generator) < 0.1, -1, ids)
    return moe.plan(ids, experts, alignment=alignment, tile_rows=tile_rows)


def make_rows(rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2000 + seed)
    return torch.randn(rows, width, generator=generator).to(dtype)


def operator_arguments(
    x,
    weights: Weights,
    plan,
    gather: bool = True,
    dtype=None,
    exact=True,
    activation="",
    limit=None,
) -> tuple:
    """Arguments of torch.ops.*.grouped_gemm, for weights in rows."""
    scales = weights.scales
    return (
        x,
        formats.as_bytes(weights.weight),
        scales if scales is None else formats.as_bytes(scales),
        weights.format or "",
        list(weights.block or (0, 0)),
        *("rows", []),
        *(plan.sorted, plan.inverse, plan.tile_expert, plan.tile_row, plan.tile_size),
        gather,
        dtype or x.dtype,
        *(exact, activation, limit),
    )


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative L2."""
    size = want.double().norm()
    return float((got.double() - want.double()).norm() / size) if size > 0 else float(got.norm())
