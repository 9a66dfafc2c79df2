"""The optimizers of a draft head: Muon for its matrices, AdamW for the rest, or AdamW for all."""

from __future__ import annotations

import torch
from torch import Tensor

from .trainees import Trainee


class Muon:
    """Momentum, orthogonalised per block of a matrix (one attention head, one expert), RMS-matched.

    blocks  (parameter, dimension that is cut, number of blocks)
    """

    def __init__(
        self, blocks: list[tuple[torch.nn.Parameter, int, int]], momentum=0.95, weight_decay=0.05
    ):
        self.blocks = [(p, dim, count, torch.zeros_like(p)) for p, dim, count in blocks]
        self.momentum, self.weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for parameter, dim, count, velocity in self.blocks:
            velocity.lerp_(parameter.grad, 1 - self.momentum)
            update = parameter.grad.lerp(velocity, self.momentum)
            blocks = torch.stack(update.chunk(count, dim))
            blocks = orthogonalise(blocks) * (0.2 * max(blocks.shape[-2:]) ** 0.5)
            parameter.mul_(1 - lr * self.weight_decay)
            parameter.sub_(torch.cat(list(blocks), dim), alpha=lr)
            parameter.grad = None


def orthogonalise(blocks: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrix, batched."""
    wide = blocks.shape[-2] <= blocks.shape[-1]
    x = (blocks if wide else blocks.mT).bfloat16()
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-12).bfloat16()
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).float()


class Optimizers:
    """Both, over the trained parameters of a head; kind "muon" or "adamw"."""

    def __init__(self, trainee: Trainee, kind: str):
        self.names = trainee.parameters()
        # Row blocks keep the iteration cheap: its cost goes with the square of the short side.
        blocks = trainee.muon_blocks() if kind == "muon" else []
        self.muon_names = [name for name, _, _ in blocks]
        self.muon = Muon([(self.names[name], dim, count) for name, dim, count in blocks])
        self.adamw_names = [name for name in self.names if name not in set(self.muon_names)]
        self.adamw = torch.optim.AdamW(
            [self.names[name] for name in self.adamw_names], lr=0.0, betas=(0.9, 0.98),
            weight_decay=0.0,
        )  # fmt: skip

    def step(self, lr: float) -> None:
        """One update; the gradients are gone afterwards."""
        self.muon.step(lr)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """All there is to remember; empty for a parameter before its first update."""
        tensors = {
            f"muon.{name}.velocity": velocity
            for name, (_, _, _, velocity) in zip(self.muon_names, self.muon.blocks)
        }
        for name in self.adamw_names:
            for key, value in self.adamw.state.get(self.names[name], {}).items():
                tensors[f"adamw.{name}.{key}"] = value
        return tensors

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """What `state` returned, from optimizers of the same head."""
        for name, (_, _, _, velocity) in zip(self.muon_names, self.muon.blocks):
            velocity.copy_(tensors[f"muon.{name}.velocity"])
        for name in self.adamw_names:
            prefix = f"adamw.{name}."
            found = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            if found:
                self.adamw.state[self.names[name]] = found
