"""A call of a public function as data, and how random valid ones are made.

A family file registers a builder per function: `builder(source) -> Call`, where `source` draws
small shapes and tame values. mutations.py makes calls hostile, oracle.py judges what came of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

BUILDERS: dict[str, Callable[[Source], Call]] = {}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32)


class Call(NamedTuple):
    """One call.

    op: the name that its errors begin with.
    function, arguments: called as function(**arguments).
    check: check(arguments, result, tame) raises AssertionError unless the result is one that the
        function may give for the arguments. `tame`: every number is finite and of moderate size.
    writes: arguments that the function changes.
    ops: functions beneath it, whose names its errors may begin with too.
    words: names besides those of the arguments by which an error may call what is wrong.
    at_most: largest numbers worth trying for arguments that allocate.
    fixed: arguments that are no input, left alone.
    """

    op: str
    function: Callable
    arguments: dict
    check: Callable
    writes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    at_most: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()


def builds(op: str, weight: int = 1):
    """Registers a builder under the name of its function."""

    def register(builder):
        for copy in range(weight):
            BUILDERS[op if copy == 0 else f"{op}#{copy}"] = builder
        return builder

    return register


class Source:
    """Random sizes and values, a function of the seed alone."""

    def __init__(self, *seed: int):
        self.rng = np.random.Generator(np.random.PCG64(seed))

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def size(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def floats(self, *shape: int, dtype=torch.float32, scale: float = 2.0) -> torch.Tensor:
        """Normal numbers."""
        values = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        return torch.from_numpy(values).to(dtype)

    def uniform(self, *shape: int, dtype=torch.float32) -> torch.Tensor:
        """In [0, 1)."""
        if dtype == torch.float64:
            return torch.from_numpy(self.rng.random(shape))
        return torch.from_numpy(self.rng.random(shape, dtype=np.float32)).to(dtype)

    def integers(self, low: int, high: int, *shape: int, dtype=torch.int64) -> torch.Tensor:
        """In [low, high]."""
        kind = {torch.int64: np.int64, torch.int32: np.int32, torch.uint8: np.uint8}[dtype]
        return torch.from_numpy(self.rng.integers(low, high + 1, shape, dtype=kind))

    def logits(self, *shape: int, dtype=torch.float32) -> torch.Tensor:
        """Normal, some of them -inf, the first of a row never."""
        values = self.floats(*shape, dtype=dtype)
        if self.chance(0.3) and values.numel():
            values[torch.from_numpy(self.rng.random(shape) < 0.3)] = -torch.inf
            values[..., 0] = 0.0
        return values

    def starts(self, counts) -> torch.Tensor:
        """Running sum from 0 on, int32 or int64."""
        sums = np.concatenate([[0], np.cumsum(counts)])
        return torch.from_numpy(sums.astype(self.pick((np.int32, np.int64))))

    def maybe(self, value, share: float = 0.5):
        """The value, or None; `value` may be a function that makes it."""
        if not self.chance(share):
            return None
        return value() if callable(value) else value

    def per_item(self, values: torch.Tensor):
        """A vector, or now and then the number that stands for it."""
        if values.numel() and self.chance(0.2):
            return values[0].item()
        return values


def has_nan(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point and bool(torch.isnan(tensor).any())


def require(condition, *what) -> None:
    """An assertion that also holds under `python -O`."""
    if not condition:
        raise AssertionError(" ".join(str(word) for word in what))


def require_shape(tensor, shape, dtype, what: str) -> None:
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
        raise AssertionError(
            f"{what}: expected {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}"
        )
