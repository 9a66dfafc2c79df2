"""The fast seeded driver: call number i of a seed is a function of (seed, i) alone."""

from __future__ import annotations

import random
import warnings

import dense_calls  # noqa: F401
import draft_calls  # noqa: F401
import moe_calls  # noqa: F401
import oracle
import sampling_calls  # noqa: F401
import table_calls  # noqa: F401
import torch
import verify_calls  # noqa: F401
from calls import BUILDERS, Call, Source
from mutations import mutate

NAMES = tuple(sorted(BUILDERS))
EPOCH = 4096  # calls that share their valid originals
ORIGINALS = 8  # of each function in an epoch


# Functions of which a call on the meta device gives the shapes of the result.
HAVE_SHAPES = {
    "rejection_sample", "target_probs", "sample", "block_acceptance", "schedule", "pack", "unpack",
    "commit", "markov_sample", "markov_logits", "row_statistics", "draw_shard", "confidence",
    "calibrate", "route", "plan", "permute", "combine", "grouped_gemm", "swiglu", "fused_moe",
    "pack_linear", "linear", "attention", "rms_norm", "silu_mul", "routed_silu_mul", "rope_store",
    "decode", "encode", "dequantize",
}  # fmt: skip


def _on_meta(value):
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_on_meta(item) for item in value))
    return value


class Driver:
    """Makes and judges calls. Half of them are valid ones with one thing changed, a quarter with
    two or three, a quarter are valid."""

    def __init__(self, seed: int, only: str | None = None):
        self.seed = seed
        self.names = [n for n in NAMES if only is None or n.partition("#")[0] == only]
        if not self.names:
            raise SystemExit(f"no such function: {only}; there are {', '.join(NAMES)}")
        self._epoch, self._valid = -1, {}

    def forget(self) -> None:
        """Drops the valid originals; they are made again when needed."""
        self._epoch, self._valid = -1, {}

    def make(self, index: int) -> tuple[str, Call, list]:
        rng = random.Random(self.seed << 40 | index)
        epoch = index // EPOCH
        if epoch != self._epoch:
            self._epoch, self._valid = epoch, {}
        name = rng.choice(self.names)
        key = (name, rng.randrange(ORIGINALS))
        if key not in self._valid:
            seeds = (self.seed, epoch, NAMES.index(name), key[1])
            self._valid[key] = BUILDERS[name](Source(*seeds))
        call = self._valid[key]
        count = rng.choice((0, 1, 1, 1, 2, 3, 1, 0))
        mutations = []
        if count == 0 and call.op in HAVE_SHAPES and rng.random() < 0.2:
            call = call._replace(arguments={k: _on_meta(v) for k, v in call.arguments.items()})
        for _ in range(count):
            call, mutation = mutate(call, rng)
            mutations.append(mutation)
        return name, call, mutations

    def run(self, index: int) -> tuple[str, str]:
        """(name, "result" or "error"); raises FindingError with all that it takes to repeat."""
        name, call, mutations = self.make(index)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcome = oracle.run(call, mutations)
            except oracle.FindingError as finding:
                lines = [f"{name}, seed {self.seed}, call {index}: {finding}"]
                lines += [f"  changed {mutation}" for mutation in mutations]
                lines += [f"  {k} = {oracle.describe(v)}" for k, v in call.arguments.items()]
                raise oracle.FindingError("\n".join(lines)) from finding
        return name, outcome
