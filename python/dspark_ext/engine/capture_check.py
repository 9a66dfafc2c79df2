"""Whether passes can be captured as graphs: found out by recording them twice (`_recording`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .._recording import capture_obstacle
from .._upload import upload
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
    ids, positions, slots = upload([[1, 0], [0, second], [0, 0]], torch.int64, device)
    rows = torch.arange(2, device=device)
    batch = TargetBatch(ids, positions, slots, rows, Bounds(length, 2))
    forward = getattr(target, "forward_fixed", target.forward)

    def change() -> None:
        ids.copy_(upload([0, 1], torch.int64))
        positions.copy_(upload([length - 1, 0 if last else max(0, length - 2)], torch.int64))
        slots.copy_(upload([0, last], torch.int64))

    if hasattr(target, "refill"):
        target.refill()
    return capture_obstacle(lambda: forward(batch), change)


@torch.inference_mode()
def drafter_obstacle(drafter: Drafter, device: torch.device) -> str | None:
    """Why a drafter's `draft` cannot be captured, None if it can. Drafts of nobody: call it while
    no request runs."""
    from .drafter import DraftBatch  # which imports this module

    last = drafter.max_requests - 1
    columns = upload([[0, 1], [0, 0], [0, last], [3, 4]], torch.int64, device)
    anchors, positions, slots, seeds = columns
    temperature = upload([0.0, 1.0], torch.float32, device)
    batch = DraftBatch(anchors, positions, slots, temperature, seeds)
    changed = DraftBatch(1 - anchors, positions + 1, slots.flip(0), 1 - temperature, seeds + 2)

    def change() -> None:
        for name, values in vars(changed).items():
            getattr(batch, name).copy_(values)

    return capture_obstacle(
        lambda: drafter.draft(batch, drafter.block_size, "probabilistic"), change
    )
