"""Weights, rows and plans of which the right products are known beforehand, bit by bit.

Every weight here has few digits, every scale is a power of two and every entry of x a small number,
so that float32 sums are exact in any order: each way to compute a product has to give the bits of
float64. What belongs to an expert, a row, a column or a block of scales differs from what lies
beside it, so that a wrong index cannot go unseen.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from expert_sweep import E8M0, KINDS, Weights

from dspark_ext import formats, moe
from dspark_ext.reference import moe_matrix as reference

CODED = ("fp8-128", "fp8-32", "fnuz-128", "mxfp4")
MATRIX_KINDS = ("bf16", "fp16", *CODED)
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# N and K, none of them a multiple of a tile but one of each; every size stands on both sides.
EDGES = (1, 15, 17, 31, 33, 63, 65, 127, 130, 64)
SHAPES = tuple(zip(EDGES, (*EDGES[3:], *EDGES[:3]), strict=True))


class Oracle(NamedTuple):
    """Weights in all their forms."""

    weights: Weights
    numbers: torch.Tensor  # float32 [E, N, K], what the codes stand for without scales
    scales: torch.Tensor | None  # float32 [E, ...]

    def reference(self, x, plan, gather: bool = True, **options) -> torch.Tensor:
        """float64."""
        block = self.weights.block
        return reference.grouped_gemm(
            x, self.numbers, plan, gather, scales=self.scales, block=block, **options
        )

    def magnitude(self, x, plan, gather: bool = True) -> torch.Tensor:
        """float64: sums of the magnitudes of all terms."""
        positive = self._replace(
            numbers=self.numbers.abs(), scales=None if self.scales is None else self.scales.abs()
        )
        return positive.reference(x.abs(), plan, gather)


def even(kind: str, size: int) -> int:
    """K that the kind can have."""
    return size + size % 2 if kind == "mxfp4" else size


def aligned(kind: str, size: int) -> int:
    """The next K of which rows of weights are read 16 bytes at a time: what a device wants before
    it takes its matrix unit for weights in rows."""
    step = 32 if kind == "mxfp4" else 16 if kind in CODED else 8
    return -(-size // step) * step


def from_numbers(kind: str, numbers: torch.Tensor, exponents: torch.Tensor | None) -> Oracle:
    """Weights `numbers` times, for codes, 2 to the exponent of their block."""
    format, block, scale_dtype = KINDS[kind]
    if isinstance(format, torch.dtype):
        weight = numbers.to(format)
        assert torch.equal(weight.float(), numbers)
        return Oracle(Weights(weight, None, None, None, numbers), numbers, None)
    code_format = "fp4_e2m1" if format == "mxfp4" else format
    codes = formats.encode(numbers.contiguous(), code_format)
    assert torch.equal(formats.decode(codes, code_format), numbers)
    codes = codes.view(formats.CODE_DTYPES.get(format, torch.uint8))
    scales = torch.exp2(exponents.float())
    stored = (exponents + 127).to(torch.uint8).view(E8M0) if scale_dtype == E8M0 else scales
    exact = formats.dequantize(codes, stored, format, block=block)
    return Oracle(Weights(codes, stored, format, block, exact), numbers, scales)


def from_weights(weights: Weights) -> Oracle:
    """Of any weights."""
    if weights.format is None:
        return Oracle(weights, weights.exact, None)
    code_format = "fp4_e2m1" if weights.format == "mxfp4" else weights.format
    scales = weights.scales
    if scales.dtype != torch.float32:
        scales = formats.decode(scales, "e8m0")
    return Oracle(weights, formats.decode(formats.as_bytes(weights.weight), code_format), scales)


def grid_of(kind: str, shape: tuple[int, int, int]) -> tuple[int, ...] | None:
    """Shape of the scales."""
    block = KINDS[kind][1]
    return None if block is None else formats.scale_shape(shape, block)


# ---- values that know their place ---------------------------------------------------------------


def scrambled(shape: tuple[int, ...], count: int, seed: int = 0) -> torch.Tensor:
    """int64: 0 .. count - 1, any two places independent of each other."""
    generator = torch.Generator().manual_seed(77 + seed)
    return torch.randint(0, count, shape, generator=generator)


def small_numbers(kind: str, shape: tuple[int, int, int], seed: int = 0) -> torch.Tensor:
    """Numbers that every code has: up to 15 in magnitude, those of fp4 up to 6."""
    if kind == "mxfp4":
        sign = 1.0 - 2.0 * scrambled(shape, 2, seed + 1)
        return FP4[scrambled(shape, 8, seed)] * sign + 0.0  # no -0
    return scrambled(shape, 31, seed).float() - 15.0


def small_oracle(kind: str, shape: tuple[int, int, int], seed: int = 0) -> Oracle:
    """Small numbers, under scales from 1/4 to 4 that differ from block to block."""
    grid = grid_of(kind, shape)
    exponents = None
    if grid is not None:
        place = torch.arange(max(grid[1], grid[2], 1) * 5)
        step = place[: grid[1], None] * 2 + place[: grid[2]]  # neighbours differ, both ways
        exponents = (step + torch.arange(grid[0])[:, None, None]) % 5 - 2
    return from_numbers(kind, small_numbers(kind, shape, seed), exponents)


def small_rows(rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Whole numbers up to 7 in magnitude."""
    return (scrambled((rows, width), 15, 50 + seed) - 7).to(dtype)


def power_oracle(kind: str, experts: int, size: int) -> Oracle:
    """W_e = 2^e I; of codes by their scales."""
    identity = torch.eye(size).expand(experts, size, size)
    powers = torch.arange(experts)[:, None, None]
    grid = grid_of(kind, (experts, size, size))
    if grid is None:
        return from_numbers(kind, identity * 2.0**powers, None)
    return from_numbers(kind, identity.contiguous(), powers.expand(grid).contiguous())


def digit_oracle(kind: str, shape: tuple[int, int, int], of: str, digit: int) -> Oracle:
    """Every weight is a digit, base 8, of its expert, row or column; scales are 1."""
    index = {"expert": 0, "row": 1, "column": 2}[of]
    view = [1, 1, 1]
    view[index] = -1
    place = torch.arange(shape[index]).view(view).expand(shape)
    digits = place // 8**digit % 8
    numbers = FP4[digits] if kind == "mxfp4" else digits.float()
    grid = grid_of(kind, shape)
    return from_numbers(kind, numbers.contiguous(), None if grid is None else torch.zeros(grid))


def read_digits(kind: str, products: torch.Tensor) -> torch.Tensor:
    """int64: the digits that products with one-hot rows show; -1 for anything else."""
    symbols = FP4 if kind == "mxfp4" else torch.arange(8.0)
    matches = products.float()[..., None] == symbols
    return torch.where(matches.any(-1), matches.int().argmax(-1), -1)


# ---- plans --------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Tokens and where they go."""

    ids: torch.Tensor  # int64 [T, k]
    experts: int
    tile_rows: int = 16
    alignment: int = 1

    def plan(self, **changes) -> moe.DispatchPlan:
        how = {"tile_rows": self.tile_rows, "alignment": self.alignment} | changes
        return moe.plan(self.ids, self.experts, **how)


def counted(*counts: int) -> torch.Tensor:
    """ids [T, 1], so many tokens for each expert, in an order that mixes them."""
    ids = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    mixed = torch.randperm(len(ids), generator=torch.Generator().manual_seed(len(ids)))
    return ids[mixed, None]


GROUPS = {
    "borders": Rows(counted(1, 2, 0, 19, 33), 5, tile_rows=16),
    "hot": Rows(counted(0, 0, 70, 1, 0), 5, tile_rows=64),
    "all on one": Rows(counted(0, 37, 0), 3, tile_rows=64),
    "one token": Rows(torch.tensor([[2]]), 4, tile_rows=64),
    "absent": Rows(torch.tensor([[-1, 0, 3], [1, -1, 9], [-1, -1, -1], [3, 3, 0]]), 4),
    "twice": Rows(torch.tensor([[1, 1, 1], [0, 1, 0], [2, 2, 1]]), 3, tile_rows=8),
    "aligned": Rows(counted(3, 0, 17, 5), 4, tile_rows=8, alignment=16),
    "single rows": Rows(counted(2, 3, 1), 3, tile_rows=1),
    "everyone to all": Rows(torch.arange(6).expand(7, 6), 6, tile_rows=64),
}
