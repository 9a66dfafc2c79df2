"""Short ways to build sampling inputs."""

from __future__ import annotations

import contextlib
import itertools

import torch

from dspark_ext import sampling

NEG_INF = float("-inf")
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
METHODS = ["block", "token"]


def name(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]


def log_rows(rows) -> torch.Tensor:
    """Probabilities (nested lists, fractions) -> float32 logits; zero becomes -inf."""
    return (
        torch.tensor([[float(p) for p in row] for row in rows], dtype=torch.float64).log().float()
    )


def one_hot_row(vocab: int, index: int) -> torch.Tensor:
    row = torch.full((vocab,), NEG_INF)
    row[index] = 0
    return row


def starts(num_drafts) -> torch.Tensor:
    """query_start_loc of requests with these numbers of drafts."""
    return torch.tensor(
        list(itertools.accumulate([n + 1 for n in num_drafts], initial=0)), dtype=torch.int32
    )


def repeat(rows: torch.Tensor, batch: int) -> torch.Tensor:
    """The rows of one request, `batch` times."""
    return rows.repeat(batch, *[1] * (rows.dim() - 1))


def verify(target_logits, draft_token_ids, draft_logits=None, *, num_drafts=None, **options):
    """rejection_sample; temperature 1, seeds 0 .. B-1, positions 0, full drafts unless given."""
    ids = torch.as_tensor(draft_token_ids)
    batch, width = ids.shape
    num_drafts = [width] * batch if num_drafts is None else num_drafts
    options.setdefault("query_start_loc", starts(num_drafts))
    options.setdefault("temperature", 1.0)
    options.setdefault("seeds", torch.arange(batch))
    options.setdefault("positions", torch.zeros(batch, dtype=torch.int64))
    return sampling.rejection_sample(target_logits, ids, draft_logits, **options)


def verify_many(rows, ids, draft_logits=None, *, batch: int, draft_probs=None, **options):
    """One request (`rows` [n+1, V], `ids` list, draft rows [n, V]) under `batch` seeds."""
    ids = torch.tensor(ids).reshape(1, -1).repeat(batch, 1)
    if draft_logits is not None:
        draft_logits = draft_logits.expand(batch, *draft_logits.shape).contiguous()
    if draft_probs is not None:
        draft_probs = torch.as_tensor(draft_probs, dtype=torch.float32)
        draft_probs = draft_probs.expand(batch, *draft_probs.shape).contiguous()
    return verify(repeat(rows, batch), ids, draft_logits, draft_probs=draft_probs, **options)


def same(a, b) -> bool:
    """Two outputs agree to the bit (tuples of tensors; None allowed)."""
    pairs = zip(a, b, strict=True)
    return all(x is y is None or (x.dtype == y.dtype and bits_equal(x, y)) for x, y in pairs)


def bits_equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and torch.equal(
        x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8)
    )


def random_batch(generator, num_drafts, vocab: int, width: int, dtype=torch.float32, scale=2.0):
    """Ragged random inputs: target rows, draft ids, draft logits."""
    rows = sum(n + 1 for n in num_drafts)
    batch = len(num_drafts)
    target = (torch.randn(rows, vocab, generator=generator) * scale).to(dtype)
    draft = (torch.randn(batch, width, vocab, generator=generator) * scale).to(dtype)
    ids = torch.randint(0, vocab, (batch, width), generator=generator)
    return target, ids, draft


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
