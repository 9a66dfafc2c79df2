"""The optimizers of a draft head: Muon for its matrices, AdamW for the rest."""

from __future__ import annotations

import torch
from torch import Tensor

from dspark_ext.draft_head.compact import CompactDraftHead


class Muon:
    """Momentum, orthogonalised per block of a matrix (one attention head, one expert), RMS-matched."""

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


def optimizers(head: CompactDraftHead) -> tuple[Muon, torch.optim.AdamW]:
    # Row blocks keep the iteration cheap: its cost goes with the square of the short side.
    blocks = [(head.main_proj.weight, 0, head.config.num_attention_heads)]
    for stage in head.stages:
        attn, ffn = stage.attn, stage.ffn
        blocks += [
            (attn.q_proj.weight, 0, attn.num_heads),
            (attn.kv_proj.weight, 0, 2 * attn.num_kv_heads),
            (attn.o_proj.weight, 1, attn.num_heads),
        ]
        experts = ffn.num_experts + 1 if ffn.shared_size == ffn.expert_size else 1
        blocks += [(ffn.w13.weight, 0, 2 * experts), (ffn.w2.weight, 1, experts)]
    muon = Muon(blocks)
    matrices = {id(block[0]) for block in blocks}
    rest = [p for p in head.parameters() if p.requires_grad and id(p) not in matrices]
    return muon, torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
