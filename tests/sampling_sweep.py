"""Random inputs of the sampling operators, for comparing one backend with another to the bit.

A seed determines everything: dtypes, layout, lengths, methods, filters, and what is wrong with the
rows. Inputs are keyword arguments of the functions of `dspark_ext.sampling`, on the CPU.
"""

from __future__ import annotations

import random

import torch
from kit import FLOATS, NEG_INF, starts

from dspark_ext import sampling

METHODS = ["block", "token", "greedy", "synthetic"]
PROPOSALS = ["logits", "logits", "probs", "none"]


def log_normal_rows(generator, shape, scale: float) -> torch.Tensor:
    return torch.randn(shape, generator=generator) * scale


def laid_out(rows: torch.Tensor, choose: random.Random) -> torch.Tensor:
    """The same values as a slice of a larger, poisoned tensor: rows unaligned, gaps between."""
    before, after = choose.choice([(0, 0), (0, 0), (1, 0), (3, 2), (0, 1), (8, 8)])
    shape = (*rows.shape[:-1], before + rows.shape[-1] + after)
    memory = torch.full(shape, float("nan"), dtype=rows.dtype)
    memory[..., before : before + rows.shape[-1]] = rows
    return memory[..., before : before + rows.shape[-1]]


def spoil(rows: torch.Tensor, choose: random.Random) -> None:
    """Ties, masks, infinities and NaN in some of the rows [n, V]."""
    for row in rows:
        kind = choose.choice(["", "", "", "ties", "mask", "nan", "inf", "empty", "one", "flat"])
        if kind == "ties":
            row.copy_(row.round())
        elif kind == "mask":
            noise = torch.Generator().manual_seed(choose.getrandbits(32))
            row[torch.rand(len(row), generator=noise) < 0.8] = NEG_INF
        elif kind == "nan":
            row[choose.randrange(len(row))] = float("nan")
        elif kind == "inf":
            row[choose.randrange(len(row))] = float("inf")
        elif kind == "empty":
            row.fill_(NEG_INF)
        elif kind == "one":
            row.fill_(NEG_INF)
            row[choose.randrange(len(row))] = -3.0
        elif kind == "flat":
            row.fill_(0.25)


def filters(choose: random.Random, count: int, vocab: int) -> dict:
    """Per-request values of some of the filters, or none."""
    if choose.random() < 0.5:
        return {}
    top_k = [choose.choice([0, 1, 2, 50, vocab - 1, vocab, -1, vocab + 7]) for _ in range(count)]
    top_p = [choose.choice([1.0, 0.9, 0.5, 0.999, 0.0, 1e-30, 1.5]) for _ in range(count)]
    min_p = [choose.choice([0.0, 0.1, 0.01, 1.0, 1e-6, -1.0, 2.0]) for _ in range(count)]
    made = {
        "top_k": torch.tensor(top_k, dtype=choose.choice([torch.int32, torch.int64])),
        "top_p": torch.tensor(top_p, dtype=torch.float32),
        "min_p": torch.tensor(min_p, dtype=torch.float32),
    }
    chosen = choose.choice([["top_k"], ["top_p"], ["min_p"], list(made)])
    return {key: made[key] for key in chosen}


def temperatures(choose: random.Random, count: int) -> torch.Tensor:
    return torch.tensor(
        [choose.choice([1.0, 1.0, 0.7, 1.3, 0.0, -0.0, 0.05, 30.0]) for _ in range(count)],
        dtype=torch.float32,
    )


def indices(choose: random.Random, count: int) -> torch.Tensor:
    return torch.tensor([choose.getrandbits(64) - 2**63 for _ in range(count)], dtype=torch.int64)


def row_case(seed: int, vocab: int, max_rows: int = 6) -> dict:
    """Arguments of `target_probs`; of `sample` with those of `draw_case` besides."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows = choose.choice([0, 1, 2, max_rows])
    logits = log_normal_rows(generator, (rows, vocab), choose.choice([0.5, 3.0, 40.0]))
    spoil(logits, choose)
    return {
        "logits": laid_out(logits.to(choose.choice(FLOATS)), choose),
        "temperature": temperatures(choose, rows),
        **filters(choose, rows, vocab),
    }


def draw_case(seed: int, rows: int) -> dict:
    """What `sample` takes besides."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    case = {
        "seeds": indices(choose, rows), "positions": indices(choose, rows),
        "stream": choose.choice(["draft", "resample"]),
    }  # fmt: skip
    if case["stream"] == "draft" and choose.random() < 0.5:
        case["slots"] = torch.tensor([choose.randrange(9) for _ in range(rows)], dtype=torch.int64)
    if choose.random() < 0.3:
        case["uniforms"] = torch.rand(rows, generator=generator, dtype=torch.float64)
        case["uniforms"][: rows // 2] = choose.choice([0.0, 1 - 2**-53])
    return case


def verify_case(seed: int, vocab: int, max_batch: int = 5, max_drafts: int = 5) -> dict:
    """Arguments of `rejection_sample`; `acceptance_case` makes them those of `block_acceptance`."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    batch = choose.choice([0, 1, max_batch, max_batch])
    width = choose.choice([0, 1, max_drafts, max_drafts])
    counts = [choose.randint(0, width) for _ in range(batch)]
    if batch > 1:
        counts[0] = width
    bounds = starts(counts)
    padding = choose.choice([0, 2])
    scale = choose.choice([0.5, 3.0, 12.0])
    target = log_normal_rows(generator, (int(bounds[-1]) + padding, vocab), scale)
    draft_vocab = choose.choice([vocab, vocab, max(1, vocab - 1), (vocab + 1) // 2])
    draft = log_normal_rows(generator, (batch, width, draft_vocab), scale)
    ids = torch.zeros(batch, width, dtype=torch.int64)
    seeds, positions = indices(choose, batch), indices(choose, batch)
    for b, n in enumerate(counts):  # near the target, so that blocks get long
        rows = target[bounds[b] : bounds[b] + n, :draft_vocab]
        draft[b, :n] = rows + 0.1 * scale * draft[b, :n]
        drawn = sampling.sample(draft[b], seeds=seeds[b], positions=positions[b], stream="draft")
        ids[b] = drawn.ids
    spoil(target[: bounds[-1]], choose)
    if choose.random() < 0.5:
        spoil(draft.view(-1, draft_vocab), choose)
    target[bounds[-1] :] = float("nan")
    for b, n in enumerate(counts):
        if n > 0 and choose.random() < 0.2:
            ids[b, choose.randrange(n)] = choose.choice([-1, vocab, -7, 2**40, draft_vocab])
        draft[b, n:] = float("nan")
        ids[b, n:] = 2**50
    case = {
        "target_logits": laid_out(target.to(choose.choice(FLOATS)), choose),
        "draft_token_ids": ids,
        "query_start_loc": bounds.to(choose.choice([torch.int32, torch.int64])),
        "temperature": temperatures(choose, batch),
        "seeds": seeds,
        "positions": positions,
        "method": choose.choice(METHODS),
        **filters(choose, batch, vocab),
    }
    proposal = choose.choice(PROPOSALS)
    if proposal == "logits":
        case["draft_logits"] = laid_out(draft.to(choose.choice(FLOATS)), choose)
    elif proposal == "probs":
        case["draft_probs"] = laid_out(draft.softmax(-1), choose)
    if choose.random() < 0.3:
        case["draft_temperature"] = temperatures(choose, batch)
    if choose.random() < 0.3:
        case["uniforms"] = torch.rand(batch, width + 1, generator=generator, dtype=torch.float64)
    if case["method"] == "synthetic":
        case["synthetic_acceptance_rates"] = torch.rand(width, generator=generator)
    return case


def acceptance_case(case: dict) -> dict:
    dropped = ("seeds", "positions", "method", "uniforms", "synthetic_acceptance_rates")
    return {key: value for key, value in case.items() if key not in dropped}


def snapshot(inputs: dict) -> dict:
    """Every byte that the tensors of `inputs` live in, gaps included."""
    return {
        key: bytes(value.untyped_storage())
        for key, value in inputs.items()
        if torch.is_tensor(value)
    }
