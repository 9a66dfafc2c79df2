"""Whether passes can be captured as graphs: found out by recording them twice (`_recording`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .._recording import capture_obstacle
from .target import Bounds, Target, TargetBatch

if TYPE_CHECKING:
    from .drafter import Drafter

_LENGTH = 8


@torch.inference_mode()
def target_obstacle(target: Target) -> str | None:
    """Why a target's `forward_fixed`, or else its `forward`, cannot be captured, None if it can.

    Two rows, first of one request, then, where there are two slots, of two. What they overwrite is
    of no request that runs: call it before there are any.
    """
    device = torch.device(getattr(target, "device", "cpu"))
    length, last = min(_LENGTH, target.max_len), target.max_requests - 1
    second = min(1, length - 1)
    ids, positions, slots = torch.tensor([[1, 0], [0, second], [0, 0]], device=device)
    rows = torch.arange(2, device=device)
    batch = TargetBatch(ids, positions, slots, rows, Bounds(length, 2))
    forward = getattr(target, "forward_fixed", target.forward)

    def change() -> None:
        ids.copy_(torch.tensor([0, 1]))
        positions.copy_(torch.tensor([length - 1, 0 if last else max(0, length - 2)]))
        slots.copy_(torch.tensor([0, last]))

    if hasattr(target, "refill"):
        target.refill()
    return capture_obstacle(lambda: forward(batch), change)


@torch.inference_mode()
def drafter_obstacle(drafter: Drafter, device: torch.device) -> str | None:
    """Why a drafter's `draft` cannot be captured, None if it can. Drafts of nobody: call it while
    no request runs."""
    from .drafter import DraftBatch  # which imports this module

    last = drafter.max_requests - 1
    anchors, positions, slots, seeds = torch.tensor([[0, 1], [0, 0], [0, last], [3, 4]]).to(device)
    temperature = torch.tensor([0.0, 1.0]).to(device)
    batch = DraftBatch(anchors, positions, slots, temperature, seeds)
    changed = DraftBatch(1 - anchors, positions + 1, slots.flip(0), 1 - temperature, seeds + 2)

    def change() -> None:
        for name, values in vars(changed).items():
            getattr(batch, name).copy_(values)

    return capture_obstacle(
        lambda: drafter.draft(batch, drafter.block_size, "probabilistic"), change
    )
