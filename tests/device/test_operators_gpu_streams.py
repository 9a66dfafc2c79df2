"""Every other operator on a stream that is not the default one, and on a GPU that is not the
current one (test_sampling_gpu_streams.py has those of sampling)."""

import draft_sweep
import expert_sweep
import pytest
import router_sweep
import torch
import verify_sweep
from backends import moved
from gpukit import GPU, on_cpu
from kit import bits_equal

from dspark_ext import moe

OPS = torch.ops.dspark_ext


def gemm_arguments() -> tuple:
    weights = expert_sweep.make_weights("mxfp4", (8, 64, 256), 1)
    plan = expert_sweep.make_plan(33, 3, 8, 1, 16, 1)
    x = expert_sweep.make_rows(33, 256, torch.bfloat16, 1)
    return expert_sweep.operator_arguments(x, weights, plan)


def rows_arguments() -> tuple:
    """Of permute and combine."""
    generator = torch.Generator().manual_seed(1)
    x, ids = torch.randn(50, 64, generator=generator), torch.arange(100).view(50, 2) % 8
    plan = moe.plan(ids, 8, alignment=4, tile_rows=16)
    return x, ids, plan, torch.rand(50, 2, generator=generator)


def permute_arguments() -> tuple:
    x, _, plan, _ = rows_arguments()
    return x, plan.sorted, plan.inverse


def combine_arguments() -> tuple:
    x, _, plan, weights = rows_arguments()
    return moe.permute(x, plan), plan.inverse, weights, x, None


CASES = {
    "markov_sample": lambda: tuple(draft_sweep.markov_case(1, "rnn", 6, 3).values()),
    "confidence": lambda: draft_sweep.confidence_case(1, 7, 5, 300, 256, False),
    "schedule": lambda: verify_sweep.schedule_case(1, "lagged", 600, 7),
    "pack": lambda: verify_sweep.rows_case(1, 13, 3)["pack"],
    "unpack": lambda: verify_sweep.rows_case(1, 13, 3)["unpack"],
    "commit": lambda: verify_sweep.rows_case(1, 13, 3)["commit"],
    "accumulate_stats": lambda: verify_sweep.rows_case(1, 13, 3)["accumulate_stats"],
    "route": lambda: router_sweep.case(1, 128, 33),
    "plan": lambda: (rows_arguments()[1], 8, 4, None, 16),
    "permute": permute_arguments,
    "combine": combine_arguments,
    "grouped_gemm": gemm_arguments,
    "swiglu": lambda: (expert_sweep.make_rows(100, 74, torch.bfloat16), 10.0, False),
}


def at(arguments, device) -> list:
    return [moved(x, device) if torch.is_tensor(x) else x for x in arguments]


def results(name: str, arguments: list) -> list:
    """What it returns, and its arguments, some of which it may change."""
    out = getattr(OPS, name)(*arguments)
    made = out if isinstance(out, tuple) else () if out is None else (out,)
    return [*made, *(x for x in arguments if torch.is_tensor(x))]


def wanted(name: str) -> list:
    return results(name, [x.clone() if torch.is_tensor(x) else x for x in CASES[name]()])


def same(mine, theirs) -> bool:
    mine, theirs = on_cpu(tuple(mine)), tuple(theirs)
    return all(bits_equal(a.reshape(-1), b.reshape(-1)) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_br058_current_stream(name):
    """What the stream writes just before the call is what the call reads."""
    want, fresh = wanted(name), at(CASES[name](), GPU)
    stream = torch.cuda.Stream()
    static = [x.clone() if torch.is_tensor(x) else x for x in fresh]
    for _ in range(10):
        for x in static:
            if torch.is_tensor(x):
                x.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            for old, new in zip(static, fresh, strict=True):
                if torch.is_tensor(new):
                    old.copy_(new)
            copies = [x.clone() for x in results(name, static)]
        assert same(copies, want)


@pytest.mark.parametrize("name", CASES)
def test_br057_other_device(name):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    torch.cuda.set_device(0)
    found = results(name, at(CASES[name](), "cuda:1"))
    assert torch.cuda.current_device() == 0
    assert {x.device for x in found} == {torch.device("cuda:1")}
    assert same(found, wanted(name))
