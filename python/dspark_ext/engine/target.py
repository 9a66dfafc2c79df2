"""What the engine asks of a target model.

Any object with these attributes and this `forward` can be served; `HuggingFaceTarget` is the one
for CPUs, `CausalLMTarget` that for any model.
"""

import dataclasses
from typing import NamedTuple, Protocol

import torch


class UnsupportedModelError(ValueError):
    """A model that an adapter cannot serve; the message says why."""


def unsupported(owner: str, model, reason: str) -> UnsupportedModelError:
    """What target `owner` says of `model`."""
    return UnsupportedModelError(
        f"dspark_ext.engine.{owner}: cannot serve {type(model).__name__} "
        f"(model type {model.config.model_type!r}): {reason}"
    )


class Bounds(NamedTuple):
    """What the host knows of the rows of a pass without reading them.

    length  every position is below it
    width   rows that one slot has, at most; they are consecutive positions
    """

    length: int
    width: int


@dataclasses.dataclass
class TargetBatch:
    """Rows of any requests, flattened.

    input_ids, positions  int64 [N]: token and its absolute position
    slots                 int64 [N]: cache slot of the row's request
    logit_rows            int64 [M]: rows whose logits are wanted
    bounds                None where rows may be anything

    A row sees positions 0 .. its own of its slot: what earlier passes wrote and the rows of this
    pass. A position may be written again by a later pass (after a rejection); the last write
    counts.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logit_rows: torch.Tensor
    bounds: Bounds | None = None


@dataclasses.dataclass
class TargetOutput:
    """logits fp32 [M, V]; features fp32 [N, num_features] of every row, what the drafter reads."""

    logits: torch.Tensor
    features: torch.Tensor


class Target(Protocol):
    """A model that verifies.

    For token-identical greedy output, `forward` must be row-invariant: the logits of a row may not
    depend on which other rows share the pass. A target says so by `row_invariant`.

    It may have `reserve(slot, length) -> bool`, asked before a request of at most that many
    positions is admitted, and `release(slot)`, called when the request of a slot has ended.

    To be captured as graphs it says `capturable = True`: for a number of rows `forward` is the same
    operations on the same tensors whatever the values. It may have, beside it,

    forward_fixed(batch) -> TargetOutput
        a form of `forward` for that, of batches with `bounds` that want the logits of every row;
        then it is captured for each length of its own
    refill()
        called before each captured pass, to bring tensors up to date that it reads
    capture_obstacle
        why it is not capturable, a text
    """

    vocab_size: int
    num_features: int
    max_requests: int
    max_len: int

    def forward(self, batch: TargetBatch) -> TargetOutput: ...
