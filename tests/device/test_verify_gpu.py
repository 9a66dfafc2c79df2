"""The verify operators on the GPU: every bit of the CPU backend, also captured and replayed."""

import pytest
import torch
import verify_sweep as sweep
from backends import moved
from gpukit import GPU, capture, on_cpu
from kit import bits_equal

from dspark_ext import verify

SIZES = [(0, 5), (1, 1), (13, 3), (64, 5), (256, 16), (585, 7), (586, 7), (4096, 16), (17, 256)]


def same_bits(mine, theirs) -> bool:
    mine, theirs = on_cpu(mine), on_cpu(theirs)
    return all(
        a.dtype == b.dtype and a.shape == b.shape and bits_equal(a.reshape(-1), b.reshape(-1))
        for a, b in zip(mine, theirs, strict=True)
        if torch.is_tensor(a)
    )


def agree(name: str, arguments: tuple) -> None:
    operator = getattr(torch.ops.dspark_ext, name)
    here = [x.clone() if torch.is_tensor(x) else x for x in arguments]
    there = [moved(x, GPU) if torch.is_tensor(x) else x for x in arguments]
    want, got = operator(*here), operator(*there)
    if want is not None:
        assert same_bits(got, want), (name, got, want)
    assert same_bits(tuple(there), tuple(here)), name  # counters; all other inputs as they were


@pytest.mark.parametrize("mode", sweep.MODES)
@pytest.mark.parametrize(("batch", "width"), SIZES, ids=str)
def test_schedules(batch, width, mode):
    for seed in range(40 if batch * width <= 4096 else 8):
        agree("schedule", sweep.schedule_case(seed, mode, batch, width))


@pytest.mark.parametrize("name", ["pack", "unpack", "commit", "accumulate_stats"])
def test_rows(name):
    for seed in range(40):
        batch, width = SIZES[seed % 5]
        agree(name, sweep.rows_case(seed, batch, width)[name])


def step_of(static, mode):
    """Schedule, rows and statistics of one step, with everything on the device."""
    needs = {
        "early_stop": {"cost": static["cost"]},
        "budget": {"budget": static["budget"]},
        "lagged": {"cost": static["cost"], "lagged_confidence": static["lagged"]},
        "uniform": {"cost": static["cost"]},
    }[mode]
    plan = verify.schedule(
        static["confidence"],
        mode=mode,
        capacity=static["capacity"],
        num_requests=static["live"],
        max_rows=192,
        **needs,
    )
    batch = verify.pack(static["anchor"], static["drafts"], static["seq_lens"], plan, max_rows=200)
    return (*plan, *batch[:4], batch.sample_rows, verify.unpack(batch.positions, batch, -7))


def step_inputs(seed, live):
    generator = torch.Generator().manual_seed(seed)
    return {
        "confidence": torch.rand(48, 7, generator=generator).sqrt(),
        "lagged": torch.rand(48, 7, generator=generator).sqrt(),
        "cost": 1 + torch.rand(400, generator=generator, dtype=torch.float64).cumsum(0) / 90,
        "budget": torch.randint(0, 192, (), generator=generator).int(),
        "capacity": torch.randint(0, 8, (48,), generator=generator).int(),
        "live": torch.tensor(live, dtype=torch.int32),
        "anchor": torch.randint(0, 999, (48,), generator=generator),
        "drafts": torch.randint(0, 999, (48, 7), generator=generator),
        "seq_lens": torch.randint(0, 999, (48,), generator=generator),
    }


@pytest.mark.parametrize("mode", ["early_stop", "budget", "lagged", "uniform"])
def test_br024_replay_with_other_numbers_of_requests(mode):
    static = {key: value.to(GPU) for key, value in step_inputs(0, 48).items()}
    graph, out = capture(lambda: step_of(static, mode))
    for seed, live in enumerate([48, 0, 1, 16, 32, 48, 99]):
        inputs = step_inputs(seed, live)
        for key, value in inputs.items():
            static[key].copy_(value)
        for x in out:
            x.fill_(77)
        graph.replay()
        assert same_bits(out, step_of(inputs, mode)), live


def test_a_step_does_not_synchronise():
    static = {key: value.to(GPU) for key, value in step_inputs(0, 30).items()}
    stats = verify.AcceptanceStats(48, 7, device=GPU)
    step_of(static, "lagged")
    torch.cuda.set_sync_debug_mode("error")
    try:
        lens = step_of(static, "lagged")[0]
        stats.update(lens, lens // 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert stats.read().drafted == int(lens.sum())
