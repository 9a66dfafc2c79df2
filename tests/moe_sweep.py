"""Inputs of the dispatch operators, what must come out, and the backends they run on."""

from __future__ import annotations

import pathlib
import sys

import backends
import numpy as np
import torch

from dspark_ext import moe
from dspark_ext.reference import moe as reference

EXPERTS = (1, 2, 3, 8, 31, 32, 33, 127, 128, 129, 255, 256, 257, 384, 512, 1023, 1024, 1025, 4096)
TOKENS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1023, 1025, 4097, 65544)
SLOTS = tuple(range(1, 17))
KINDS = ("uniform", "distinct", "skewed", "one", "few", "holes", "none", "map")
ALIGNMENTS = (1, 1, 4, 16, 64, 3)
TILE_ROWS = (0, 16, 64, 128, 5)
BACKENDS = ("cpu", "simt", *(["cuda"] if backends.gpu_available() else []))


def sample_ids(rng, kind: str, tokens: int, k: int, experts: int) -> np.ndarray:
    """ids [T, k]."""
    shape = (tokens, k)
    if kind == "distinct" and k <= experts:  # as a router chooses
        return np.argsort(rng.random((tokens, experts)), axis=1)[:, :k]
    if kind == "skewed":  # popular experts and rare ones
        return np.minimum((experts * rng.random(shape) ** 6).astype(np.int64), experts - 1)
    if kind == "one":
        return np.full(shape, rng.integers(experts))
    if kind == "few":
        return rng.choice(rng.integers(0, experts, 3), shape)
    if kind == "none":
        return np.full(shape, -1)
    ids = rng.integers(0, experts, shape)
    if kind == "holes":
        foreign = np.array([-1, -1, -(2**31), 2**31 - 1, experts, experts + 1, -7])
        ids = np.where(rng.random(shape) < 0.4, rng.choice(foreign, shape), ids)
    return ids


def plan_case(seed: int, tokens: int, k: int, experts: int, kind: str | None = None) -> tuple:
    """Arguments of the operator `plan`."""
    rng = np.random.default_rng([seed, tokens, k, experts])
    kind = KINDS[rng.integers(len(KINDS))] if kind is None else kind
    expert_map, num_ids = None, experts
    if kind == "map":  # some experts of more, in any order, and entries that are no expert
        num_ids = experts + int(rng.integers(1, 40))
        expert_map = rng.permutation(num_ids)
        expert_map[rng.random(num_ids) < 0.2] = -1
        expert_map = torch.from_numpy(expert_map).int()
        kind = "holes"
    ids = torch.from_numpy(sample_ids(rng, kind, tokens, k, num_ids).astype(np.int64))
    if rng.random() < 0.5:
        ids = ids.int()
    elif kind == "holes":  # would be experts if the high half was dropped
        ids = torch.where(torch.rand(ids.shape) < 0.1, ids + 2**32, ids)
    alignment = int(rng.choice(ALIGNMENTS))
    return ids, experts, alignment, expert_map, int(rng.choice(TILE_ROWS))


def expected_plan(case: tuple) -> moe.DispatchPlan:
    ids, experts, alignment, expert_map, tile_rows = case
    known = None if expert_map is None else expert_map.cpu().numpy()
    tensors = reference.plan(ids.cpu().numpy(), experts, alignment, known, tile_rows)
    return moe.DispatchPlan(**{name: torch.as_tensor(x) for name, x in tensors.items()})


def check_plan(got, case: tuple) -> None:
    want = expected_plan(case)
    for name, mine, right in zip(want._fields, got, want, strict=True):
        assert mine.dtype == right.dtype and mine.shape == right.shape, name
        assert torch.equal(mine.cpu(), right), (name, mine, right)


def make_plan(case: tuple) -> moe.DispatchPlan:
    ids, experts, alignment, expert_map, tile_rows = case
    return moe.plan(
        ids, experts, alignment=alignment, expert_map=expert_map, tile_rows=tile_rows or None
    )


def rows_case(seed: int, case: tuple, width: int, dtype: torch.dtype) -> dict:
    """x, y, weights, shared and residual that go with a plan; weights and strides of any kind."""
    generator = torch.Generator().manual_seed(seed)
    plan = expected_plan(case)
    tokens, k = plan.inverse.shape

    def rows(count: int, stride: int = 0) -> torch.Tensor:
        wide = torch.randn(count, width + stride, generator=generator).to(dtype)
        return wide[:, :width]

    weights = torch.rand(tokens, 2 * k, generator=generator)[:, k:]
    weights = weights.to((torch.float32, torch.bfloat16, torch.float16)[seed % 3])
    return {
        "plan": plan,
        "x": rows(tokens, (0, 3, 8)[seed % 3]),
        "y": rows(len(plan.sorted), (0, 8, 1)[seed % 3]),
        "weights": weights if seed % 2 else weights.contiguous(),
        "shared": rows(tokens) if seed % 4 in (1, 3) else None,
        "residual": rows(tokens, 16 * (seed % 2)) if seed % 4 in (2, 3) else None,
    }


class Dispatch:
    """`moe.plan`, `permute` and `combine` for CPU tensors on a backend of choice."""

    def __init__(self, backend: str):
        self.backend = backend
        if backend == "simt":
            sys.path.insert(0, str(pathlib.Path(__file__).parent / "simt"))
            import emulated

            self.emulated = emulated

    def _call(self, name: str, *arguments):
        if self.backend == "simt":
            with self.emulated.operators(level=self.emulated.FULL):
                return getattr(torch.ops.dspark_simt, name)(*arguments)
        operators = torch.ops.dspark_ext
        if self.backend == "cuda":
            operators = backends.MovedOperators("cuda")
        return getattr(operators, name)(*arguments)

    def plan(self, ids, num_experts, alignment=1, expert_map=None, tile_rows=0):
        return moe.DispatchPlan(
            *self._call("plan", ids, num_experts, alignment, expert_map, tile_rows)
        )

    def permute(self, x, plan):
        return self._call("permute", x, plan.sorted, plan.inverse)

    def combine(self, y, plan, weights, shared=None, residual=None):
        return self._call("combine", y, plan.inverse, weights, shared, residual)
