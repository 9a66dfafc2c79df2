"""Random calls of the draft operators, as the arguments of torch.ops."""

from __future__ import annotations

import torch

HEADS = ("vanilla", "gated", "rnn")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAMES = (
    *("base_logits", "anchor", "w1", "w2", "head", "hidden", "head_weight", "head_bias"),
    *("method", "temperature", "seeds", "positions", "d2t", "num_drafts", "vocab_size", "exact"),
)


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """The same one element into its memory: dense, and aligned to its element only."""
    memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    memory[1:] = tensor.reshape(-1)
    return memory[1:].view(tensor.shape)


def head_parts(kind, batch, steps, width, rank, dtype, generator) -> tuple:
    """hidden, head_weight, head_bias."""
    if kind == "vanilla":
        return None, None, None
    shape = (rank, width + rank) if kind == "gated" else (3 * rank, 2 * rank + width)
    hidden = torch.randn(batch, steps, width, generator=generator).to(dtype)
    weight = (torch.randn(shape, generator=generator) / max(shape[1], 1) ** 0.5).to(dtype)
    bias = torch.randn(shape[0], generator=generator).to(dtype)
    return hidden, weight, bias if rank % 2 == 0 else None


def markov_case(
    seed,
    kind="vanilla",
    batch=3,
    drafts=2,
    vocab=300,
    rank=16,
    *,
    target=None,  # size of the vocabulary of the target, if it is another one
    width=40,
    dtype=torch.float32,
    weights=None,
    w1_type=None,
    method="probabilistic",
    unaligned=False,
    extremes=False,  # NaN, infinities and ties among the logits
    exact=True,
) -> dict:
    generator = torch.Generator().manual_seed(seed)
    weights = dtype if weights is None else weights
    positions = drafts + seed % 2
    base = torch.randn(batch, positions, vocab, generator=generator) * 2
    if extremes:
        odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 3.0, -0.0])
        where = torch.rand(base.shape, generator=generator) < 0.05
        base = torch.where(where, odd[torch.randint(0, 5, base.shape, generator=generator)], base)
        base[: batch // 4] = -float("inf")
    embeddings = vocab if target is None else target
    hidden, head_weight, head_bias = head_parts(
        kind, batch, positions, width, rank, weights, generator
    )
    it = {
        "base_logits": base.to(dtype),
        "anchor": torch.randint(0, embeddings, (batch,), generator=generator),
        "w1": torch.randn(embeddings, rank, generator=generator).to(w1_type or weights),
        "w2": torch.randn(vocab, rank, generator=generator).to(weights),
        "head": kind,
        "hidden": hidden,
        "head_weight": head_weight,
        "head_bias": head_bias,
        "method": method,
        "temperature": torch.rand(batch, generator=generator) + 0.3,
        "seeds": torch.randint(-(2**63), 2**63 - 1, (batch,), generator=generator),
        "positions": torch.randint(0, 2**40, (batch,), generator=generator),
        "d2t": None,
        "num_drafts": drafts,
        "vocab_size": embeddings,
        "exact": exact,
    }
    it["temperature"][torch.rand(batch, generator=generator) < 0.3] = 0.0
    if target is not None:
        ids = torch.randperm(target, generator=generator)[:vocab]
        it["d2t"] = ids - torch.arange(vocab)
    if unaligned:
        for name in ("base_logits", "w1", "w2", "hidden", "head_weight", "head_bias"):
            if it[name] is not None and it[name].numel() > 0:
                it[name] = shifted(it[name])
    return it


def any_markov_case(seed, kind) -> dict:
    """Small, and all over the place."""

    def pick(salt, *choices):
        return choices[(seed * 7 + salt * seed // 5 + salt) % len(choices)]

    vocab = pick(1, 1, 2, 15, 17, 64, 129, 300, 513)
    return markov_case(
        seed,
        kind,
        batch=pick(2, 1, 2, 3, 4, 5, 8, 9, 17),
        drafts=pick(3, 1, 2, 3),
        vocab=vocab,
        rank=pick(4, 1, 8, 16, 24, 64, 3),
        target=pick(5, None, vocab + 5, None, 2 * vocab + 100),
        width=pick(6, 40, 1, 256, 300, 7),
        dtype=pick(7, *DTYPES),
        weights=pick(8, *DTYPES),
        w1_type=pick(9, *DTYPES),
        method=pick(10, "probabilistic", "probabilistic", "greedy"),
        unaligned=pick(11, False, True, False),
        extremes=pick(12, False, False, True),
    )


def confidence_case(seed, batch=3, drafts=5, width=300, rank=16, unaligned=False) -> tuple:
    generator = torch.Generator().manual_seed(seed)
    types = [DTYPES[(seed + i) % 3] for i in range(4)]
    it = [
        torch.randn(batch, drafts, width, generator=generator).to(types[0]),
        torch.randn(batch, drafts, rank, generator=generator).to(types[1]),
        (torch.randn(width + rank, generator=generator) / 10).to(types[2]),
        torch.randn(1, generator=generator).to(types[3]) if seed % 3 else None,
        torch.rand(drafts, generator=generator) + 0.5 if seed % 2 else None,
    ]
    if unaligned:
        it[:3] = [shifted(x) if x.numel() > 0 else x for x in it[:3]]
    return tuple(it)
