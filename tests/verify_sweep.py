"""Inputs of the verify operators, as the operators of torch.ops take them, from one seed."""

from __future__ import annotations

import torch

MODES = ("fixed", "threshold", "early_stop", "budget", "lagged", "uniform", "uniform,lagged")
HOSTILE = torch.tensor([float("nan"), float("inf"), -float("inf"), -1, 2, 1e-45, 0, 1, 0.9, 0.5])


def pick(generator, *choices):
    return choices[int(torch.randint(len(choices), (), generator=generator))]


def confidences(generator, batch: int, width: int) -> torch.Tensor:
    """Of one kind: smooth, high, full of ties, tiny, or hostile."""
    uniform = torch.rand(batch, width, generator=generator)
    return pick(
        generator,
        uniform,
        1 - 0.2 * uniform,
        (uniform * 4).round() / 4,
        torch.ones(batch, width),
        torch.exp2(-34 * uniform),
        HOSTILE[(uniform * len(HOSTILE)).long()],
    )


def jagged(generator, rows: int) -> torch.Tensor:
    """Mostly rising, with plateaus, shorter or longer than the rows asked for, or no time."""
    length = 2 + int(torch.randint(2 * rows + 8, (), generator=generator))
    steps = torch.rand(length, generator=generator, dtype=torch.float64) ** 4
    steps = steps.masked_fill(torch.rand(length, generator=generator) < 0.5, 0.0)
    start = 10 ** float(torch.rand((), generator=generator) * 3 - 1) * max(rows, 1) / 20
    table = start + steps.cumsum(0)
    if pick(generator, *[False] * 7, True):
        table[int(torch.randint(length, (), generator=generator))] = pick(
            generator, float("nan"), 0.0, -1.0, float("inf")
        )
    return table


def cost(generator, rows: int) -> torch.Tensor:
    """Also straight lines: smooth ones end an order anywhere, and where the time is proportional to
    the rows every number of certain drafts is as good as any other."""
    start = pick(generator, None, None, 0.0, 0.05, 0.3, 1.0)
    if start is None:
        return jagged(generator, rows)
    return start * rows + torch.arange(rows + 2, dtype=torch.float64)


def scalar(value) -> torch.Tensor:
    return torch.tensor(int(value), dtype=torch.int32)


def schedule_case(seed: int, mode: str, batch: int, width: int) -> tuple:
    """Arguments of torch.ops.dspark_ext.schedule."""
    generator = torch.Generator().manual_seed(seed)
    confidence = confidences(generator, batch, width)
    rows = batch * (width + 1)
    takes_cost = mode.split(",")[0] in ("early_stop", "lagged", "uniform")
    capacity = torch.randint(-1, width + 3, (batch,), generator=generator).int()
    return (
        confidence,
        mode.split(",")[0],
        pick(generator, None, capacity),
        cost(generator, rows) if takes_cost else None,
        scalar(torch.randint(-2, rows + 3, (), generator=generator)) if mode == "budget" else None,
        confidences(generator, batch, width) if "lagged" in mode else None,
        pick(generator, None, None, scalar(torch.randint(-1, batch + 2, (), generator=generator))),
        pick(generator, 0.25, 0.5, 1.0) if mode == "threshold" else 0.0,
        pick(generator, width, width, width // 2, 0),  # num_drafts
        pick(generator, 0, 0, 1, 3, 40),  # min_drafts
        pick(generator, -1, -1, batch, batch + 1, batch + batch * width // 3),  # max_rows
        pick(generator, 0, 1, 500),  # num_other_rows
    )


def starts_of(lens: torch.Tensor, live: int) -> torch.Tensor:
    starts = torch.zeros(len(lens) + 1, dtype=torch.int32)
    starts[1:] = (lens + (torch.arange(len(lens)) < live)).cumsum(0)
    return starts


def rows_case(seed: int, batch: int, width: int) -> dict[str, tuple]:
    """Arguments of pack, unpack, commit and accumulate_stats for one round, by operator."""
    generator = torch.Generator().manual_seed(seed)
    live = pick(generator, batch, batch, batch // 2)
    lens = torch.randint(0, width + 1, (batch,), generator=generator).int()
    lens[live:] = 0
    starts = starts_of(lens, live)
    rows_per_request = pick(generator, 0, width + 1, width + 3)
    max_rows = max(batch * rows_per_request, int(starts[-1])) + pick(generator, 0, 1, 300)
    block_size = pick(generator, 0, 1, 4, 16)
    table = None
    if block_size:
        blocks = -(-(90 + width + 1) // block_size)
        table = torch.randperm(batch * blocks, generator=generator).reshape(batch, blocks).int()
    ids = torch.randint(0, 1000, (2, batch), generator=generator)
    seq_lens = torch.randint(0, 90, (batch,), generator=generator)
    emitted = (torch.rand(batch, generator=generator) * (lens + 2)).int().clamp(max=lens + 1)
    dtype = pick(generator, torch.float32, torch.bfloat16, torch.int8, torch.float64, torch.bool)
    shape = pick(generator, (), (1,), (3, 5), (64,), (20000,))
    values = torch.randint(0, 2, (max_rows, *shape), generator=generator).to(dtype)
    slots = torch.randint(-1, batch + 3, (batch,), generator=generator).int()
    counters = [
        torch.randint(0, 9, (batch + 3, n), generator=generator) for n in (width, width, width + 1)
    ]
    return {
        "pack": (
            *(ids[0], torch.randint(-1, 1000, (batch, width), generator=generator), seq_lens),
            *(lens, starts, max_rows, table, block_size, rows_per_request),
        ),
        "unpack": (values, values.new_ones(()), starts, width, rows_per_request),
        "commit": (emitted, ids[1], seq_lens, starts, max_rows, rows_per_request),
        "accumulate_stats": (
            *(lens, (emitted - 1).clamp(min=0)),
            *(pick(generator, None, slots, slots // 2), *counters),
        ),
    }
