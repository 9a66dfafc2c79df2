"""Inputs of torch.ops.dspark_ext.route for comparing backends: every kind of row and option."""

from __future__ import annotations

import torch

EXPERTS = (1, 2, 3, 8, 31, 32, 33, 127, 128, 129, 255, 256, 257, 384, 512, 1023, 1024, 1025, 4096)
SCORINGS = ("softmax", "sigmoid", "sqrtsoftplus")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 88.8, -88.8, -200.0, 1e-40)


def row_kinds(tokens: int, experts: int, generator) -> torch.Tensor:
    """Rows of normal, tied, huge, tiny and special logits, some -inf or NaN throughout."""
    x = torch.randn(tokens, experts, generator=generator)
    kind = torch.arange(tokens) % 8
    scale = torch.tensor([1.0, 4.0, 1.0, 60.0, 1e-3, 4.0, 1.0, 2.0])[kind]
    x = x * scale[:, None]
    x[kind == 2] = (x[kind == 2] * 2).round()
    special = torch.tensor(SPECIAL[:9])
    for row in (kind == 5).nonzero().flatten().tolist():
        at = torch.randint(0, experts, (2,), generator=generator)
        x[row, at] = special[1 + torch.randint(0, 8, (2,), generator=generator)]
        if row % 16 == 5:
            x[row, at[0]] = torch.nan
    x[kind == 6] = x[kind == 6].round().clamp(-1, 0) * 1e38 * 10  # 0 or -inf
    if tokens > 3:
        x[3] = -torch.inf
    if tokens > 11:
        x[11] = torch.nan
        x[10] = torch.inf
    return x


def group_counts(experts: int, k: int) -> list[tuple[int, int]]:
    """(num_groups, topk_groups) that are possible."""
    counts = [n for n in (2, 3, 4, 8, 16, 31, 32, 64) if experts % n == 0]
    return [(n, t) for n in counts for t in {1, n // 2, n} if t > 0 and t * (experts // n) >= k]


def some_bias(experts: int, generator) -> torch.Tensor:
    bias = torch.randn(experts, generator=generator)
    bias = bias * (0.1, 1.0, 30.0)[int(torch.randint(0, 3, (), generator=generator))]
    lots = torch.rand(experts, generator=generator)
    return torch.where(lots < 0.1, -torch.inf, bias) if lots[0] < 0.5 else bias


def case(seed: int, experts: int, tokens: int, k: int | None = None, dtype=None) -> tuple:
    """Arguments of the operator."""
    generator = torch.Generator().manual_seed(1000 * experts + seed)

    def below(n: int) -> int:
        return int(torch.randint(0, n, (), generator=generator))

    k = 1 + below(min(experts, 16)) if k is None else k
    logits = row_kinds(tokens, experts, generator).to(dtype or DTYPES[below(3)])
    bias = some_bias(experts, generator) if below(3) else None
    groups, hash_ids, hash_table = (below(2), below(2)), None, None
    possible = group_counts(experts, k)
    way = below(6)
    if way < 3 and possible:
        groups = possible[below(len(possible))]
    elif way == 3:
        bias = None
        hash_ids = torch.randint(-1, 40, (tokens,), generator=generator)
        if below(2):
            hash_ids = hash_ids.int()
        low = 0 if below(2) else -1
        hash_table = torch.randint(low, experts, (39, k), generator=generator).int()
    shared = (None, 0.75)[below(2)]
    scale = (1.0, 1.5, 2.5)[below(3)]
    renormalize = below(4) > 0
    scoring = SCORINGS[below(3)]
    return (
        *(logits, k, scoring, bias, *groups, renormalize, scale),
        *(hash_ids, hash_table, shared),
    )
