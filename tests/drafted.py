"""Blocks that `markov_sample` drew, and what judges them."""

import torch

from dspark_ext import draft

B, K, R = 5, 4, 16


def drafted(dtype=torch.float32, temperature=None, seed=0, vocab=9000):
    """A block and the arguments of `rejection_sample` for it."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    base = (4 * normal(B, K, vocab)).to(dtype)
    base[1, 2, vocab // 2] = torch.nan
    base[2, 1] = -torch.inf
    if temperature is None:
        temperature = torch.tensor([1.0, 0.7, 1.3, 0.0, 0.05])
    block = draft.markov_sample(
        base,
        torch.arange(B) % vocab,
        normal(vocab, R),
        normal(vocab, R),
        temperature=temperature,
        seeds=torch.arange(B),
        positions=torch.arange(B),
    )
    count = torch.tensor([K, K, K, K, 2])
    start = torch.cat([torch.zeros(1, dtype=torch.int64), (count + 1).cumsum(0)])
    rows = torch.cat(
        [torch.cat([block.logits[b, : count[b]], base[b, :1]]) for b in range(B)]
    ).float() + normal(int(start[-1]), vocab)
    return block, {
        "target_logits": rows,
        "draft_token_ids": block.token_ids,
        "draft_logits": block.logits,
        "query_start_loc": start,
        "temperature": temperature,
        "seeds": torch.arange(B),
        "positions": torch.arange(B),
        "return_logprobs": True,
    }
