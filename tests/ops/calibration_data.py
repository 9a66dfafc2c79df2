"""Synthetic blocks of a drafter whose confidence head is off by a known temperature."""

import torch

TRUE = (2.0, 1.0, 0.5, 1.6, 1.25)


def blocks(count, temperatures=TRUE, *, mean=1.5, spread=1.5, seed=0):
    """Logits [N, K] and accepted int64 [N]: x_k is accepted with chance sigmoid(logit / T_k)."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor(temperatures)
    honest = mean + spread * torch.randn(count, len(temperatures), generator=generator)
    passes = torch.rand(honest.shape, generator=generator) < torch.sigmoid(honest)
    return honest * scale, passes.long().cumprod(1).sum(1)
