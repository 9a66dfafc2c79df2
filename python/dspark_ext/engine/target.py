"""What the engine asks of a target model.

Any object with these attributes and this `forward` can be served; `HuggingFaceTarget` is the one
for CPUs, `CausalLMTarget` that for any model.
"""

import dataclasses
from typing import Protocol

import torch


class UnsupportedModelError(ValueError):
    """A model that an adapter cannot serve; the message says why."""


@dataclasses.dataclass
class TargetBatch:
    """Rows of any requests, flattened.

    input_ids, positions  int64 [N]: token and its absolute position
    slots                 int64 [N]: cache slot of the row's request
    logit_rows            int64 [M]: rows whose logits are wanted

    A row sees positions 0 .. its own of its slot: what earlier passes wrote and the rows of this
    pass. A position may be written again by a later pass (after a rejection); the last write
    counts.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logit_rows: torch.Tensor


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
    """

    vocab_size: int
    num_features: int
    max_requests: int
    max_len: int

    def forward(self, batch: TargetBatch) -> TargetOutput: ...
