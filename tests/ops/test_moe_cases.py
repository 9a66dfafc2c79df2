"""Failures of dispatch kernels seen in the field (tests/CASES.md), on every backend: the CPU, the
device kernels on the emulator and, where there is one, a GPU."""

import hashlib
import json
import pathlib
import subprocess
import sys

import moe_sweep as sweep
import pytest
import torch
from kit import bits_equal
from moe_sweep import BACKENDS, Dispatch

from dspark_ext import moe

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(params=BACKENDS)
def dispatch(request) -> Dispatch:
    return Dispatch(request.param)


def same(a, b) -> bool:
    return all(bits_equal(x.reshape(-1), y.reshape(-1)) for x, y in zip(a, b, strict=True))


def check(dispatch, ids, experts, alignment=1, expert_map=None, tile_rows=0) -> moe.DispatchPlan:
    case = ids, experts, alignment, expert_map, tile_rows
    got = dispatch.plan(*case)
    sweep.check_plan(got, case)
    return got


# ---- 033: ids of -1 -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_br033_ids_of_minus_one(dispatch, dtype):
    ids = torch.tensor([[0, -1], [-1, -1], [3, 1]], dtype=dtype)
    plan = check(dispatch, ids, 4, 4, None, 4)
    assert plan.counts.tolist() == [1, 1, 0, 1] and plan.total == 12
    assert plan.inverse.tolist() == [[0, -1], [-1, -1], [8, 4]]
    y = torch.full((len(plan.sorted), 5), float("nan"))
    y[plan.inverse[plan.inverse >= 0]] = 2.0
    weights = torch.full((3, 2), 0.5)
    weights[0, 1] = weights[1] = float("nan")  # of slots that are not here
    out = dispatch.combine(y, plan, weights)
    assert out.tolist() == [[1.0] * 5, [0.0] * 5, [2.0] * 5]


def test_br033_all_ids_of_minus_one(dispatch):
    plan = check(dispatch, torch.full((3, 2), -1), 4, 4, None, 4)
    assert plan.total == 0 and plan.num_tiles == 0 and not plan.counts.any()
    assert not dispatch.permute(torch.ones(3, 5), plan).any()
    y = torch.full((len(plan.sorted), 5), float("nan"))
    out = dispatch.combine(y, plan, torch.ones(3, 2))
    assert out.shape == (3, 5) and not out.any() and not out.signbit().any()
    shared = torch.randn(3, 5)
    assert torch.equal(dispatch.combine(y, plan, torch.ones(3, 2), shared=shared), shared)


@pytest.mark.parametrize(
    "bad", [-1, -2, 4, 5, 2**31 - 1, -(2**31), 2**32, 2**32 + 1, 2**40, -(2**63)]
)
def test_br033_any_foreign_id(dispatch, bad):
    ids = torch.tensor([[bad, 1], [1, bad], [bad, bad], [0, 3]])
    plan = check(dispatch, ids, 4, 2, None, 3)
    assert plan.counts.tolist() == [1, 2, 0, 1]


def test_br033_entries_of_the_map(dispatch):
    expert_map = torch.tensor([-1, 1, 2**31 - 1, 0, 4, -9], dtype=torch.int32)
    ids = torch.tensor([[0, 1, 2], [3, 4, 5], [6, -1, 1]])
    plan = check(dispatch, ids, 4, 1, expert_map, 0)
    assert plan.counts.tolist() == [1, 2, 0, 0]
    assert plan.inverse.tolist() == [[-1, 1, -1], [0, -1, -1], [-1, -1, 2]]


# ---- 034, 035: more ids, more experts -----------------------------------------------------------


@pytest.mark.parametrize("experts", [256, 512])
def test_br034_more_than_65535_slots(dispatch, experts):
    ids, *_ = sweep.plan_case(34, 8193, 8, experts, "uniform")
    plan = check(dispatch, ids, experts, 64, None, 64)
    counts = torch.bincount(ids.flatten(), minlength=experts)
    assert torch.equal(plan.counts, counts)
    assert plan.total == (-(-counts // 64) * 64).sum()


@pytest.mark.parametrize("tokens", [3, 4096])
@pytest.mark.parametrize("experts", [1025, 2048, 4096])
def test_br035_more_than_1024_experts(dispatch, experts, tokens):
    ids, *_ = sweep.plan_case(35, tokens, 8, experts, "distinct")
    check(dispatch, ids, experts)


def test_br035_the_limit_is_named(dispatch):
    with pytest.raises(RuntimeError, match=r"dspark_ext\.plan: num_experts: expected 1 to 4096"):
        dispatch.plan(torch.zeros(1, 1, dtype=torch.int64), 4097)


# ---- 036: shared memory -------------------------------------------------------------------------


@pytest.mark.parametrize("experts", [64, 128, 256, 384, 512])
def test_br036_sizes(dispatch, experts):
    check(dispatch, sweep.plan_case(36, 333, 8, experts, "distinct")[0], experts, 16, None, 16)


def test_br036_shared_memory_does_not_grow_with_the_experts():
    """It is a constant of the kernel, at most 48 KiB on every architecture."""
    table = json.loads((ROOT / "tests/machine_code/resources.json").read_text())
    seen = 0
    for backend, key in (("cuda", "shared"), ("hip", "lds")):
        for kernels in table[backend]["kernels"].values():
            for kernel, resources in kernels.items():
                if kernel.startswith(("plan_kernel", "count_slots_kernel", "place_slots_kernel")):
                    assert 0 < resources[key] <= 48 * 1024
                    seen += 1
    assert seen >= 3 * 8  # kernels, architectures


# ---- 037: offsets past 2^31 ---------------------------------------------------------------------


def test_br037_the_last_tokens_of_a_long_prefill(dispatch):
    """y has 300,000 rows of 7168, of which only those of the last 100 tokens are ever touched."""
    if dispatch.backend == "cuda":
        pytest.skip("4.3 GB would be copied")
    tokens, k, width = 100, 8, 7168
    y = torch.empty(37_500 * k, width, dtype=torch.bfloat16)
    plan = moe.plan(sweep.plan_case(37, tokens, k, 16, "distinct")[0], 16)
    near = torch.randn(tokens * k, width).bfloat16()
    y[-tokens * k :] = near
    far = plan._replace(inverse=plan.inverse + len(y) - tokens * k)
    weights = torch.rand(tokens, k)
    if dispatch.backend == "simt":  # the emulator is slow
        far, plan = (p._replace(inverse=p.inverse[-3:]) for p in (far, plan))
        weights = weights[-3:]
    assert int(far.inverse.max()) * width > 2**31
    assert bits_equal(dispatch.combine(y, far, weights), moe.combine(near, plan, weights))


def test_br037_rows_of_x_past_2_to_31(dispatch):
    if dispatch.backend == "cuda":
        pytest.skip("6.4 GB would be copied")
    memory = torch.empty(3 * 2**31 + 64, dtype=torch.int8)
    x = memory.as_strided((4, 64), (2**31, 1))
    x.copy_(torch.arange(256).reshape(4, 64).to(torch.int8))
    plan = moe.plan(torch.tensor([[3, 1], [0, 3], [2, 2], [1, 0]]), 4)
    assert torch.equal(dispatch.permute(x, plan), moe.permute(x.clone(), plan))


def available_bytes() -> int:
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


@pytest.mark.slow
def test_br037_for_real():
    if available_bytes() < 12 << 30:
        pytest.skip("needs 12 GiB of memory")
    tokens, k, width = 37_500, 8, 7168
    ids, *_ = sweep.plan_case(37, tokens, k, 128, "distinct")
    plan = moe.plan(ids, 128)
    x = torch.randint(-(2**15), 2**15, (tokens, width), dtype=torch.int16).view(torch.bfloat16)
    x = torch.where(x.isnan() | x.isinf(), torch.ones_like(x), x)
    weights = torch.rand(tokens, k)
    rows = moe.permute(x, plan)
    out = moe.combine(rows, plan, weights)
    few = slice(-100, None)
    alone = moe.plan(ids[few], 128)
    want = moe.combine(moe.permute(x[few], alone), alone, weights[few])
    assert bits_equal(out[few], want)
    assert bits_equal(rows[plan.inverse[-1]], x[-1].expand(k, width))


# ---- 042: experts without tokens ----------------------------------------------------------------


def test_br042_nothing_is_left_uninitialised(dispatch):
    """The allocator hands out memory that held NaN."""
    ids = torch.tensor([1, 4, 1, 1, 4, 1, 1, 4]).reshape(8, 1)
    x, weights = torch.randn(8, 64), torch.rand(8, 1)
    first = None
    for _ in range(50 if dispatch.backend == "cpu" else 5):
        for size in (8, 9, 64, 72, 8 * 64, 64 * 64):
            torch.full((size,), float("nan")), torch.full((size,), float("nan"), dtype=torch.double)
        plan = dispatch.plan(ids, 8)
        rows = dispatch.permute(x, plan)
        out = dispatch.combine(rows, plan, weights)
        assert plan.counts.tolist() == [0, 5, 0, 0, 3, 0, 0, 0]
        assert rows.shape == (8, 64) and rows.isfinite().all()
        got = (*plan, rows, out)
        first = got if first is None else first
        assert same(got, first)


# ---- 043: order inside an expert ----------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "k", "experts"), [(4097, 16, 128), (128, 2, 32)], ids=str)
def test_br043_the_order_never_changes(dispatch, tokens, k, experts):
    ids, *_ = sweep.plan_case(43, tokens, k, experts, "uniform")
    first = check(dispatch, ids, experts, 64, None, 64)
    repeats = 100 if dispatch.backend != "simt" else 2
    assert all(same(dispatch.plan(ids, experts, 64, None, 64), first) for _ in range(repeats))
    slots = first.sorted[: int(first.total)]
    for e in range(experts):
        mine = slots[first.offsets[e] : first.offsets[e] + first.counts[e]]
        assert (mine.diff() > 0).all() and (ids.flatten()[mine] == e).all()


def test_br043_sums_never_change(dispatch):
    tokens, k = (4097, 16) if dispatch.backend != "simt" else (65, 16)
    ids, *_ = sweep.plan_case(43, tokens, k, 128, "uniform")
    plan = moe.plan(ids, 128)
    y, weights = torch.randn(tokens * k, 64).bfloat16(), torch.rand(tokens, k)
    first = dispatch.combine(y, plan, weights)
    repeats = 100 if dispatch.backend != "simt" else 3
    assert all(bits_equal(dispatch.combine(y, plan, weights), first) for _ in range(repeats))


# ---- 044: column slices -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_br044_columns_of_a_wider_tensor(dispatch, dtype):
    tokens, k, experts = 37, 4, 9
    wide = torch.randint(0, experts, (tokens, 2 * k), dtype=dtype)
    wide_weights = torch.rand(tokens, 2 * k)
    y = torch.randn(tokens * k, 24)
    for part in (slice(0, k), slice(k, 2 * k), slice(0, 2 * k, 2)):
        plan = check(dispatch, wide[:, part], experts)
        assert same(plan, dispatch.plan(wide[:, part].contiguous(), experts))
        out = dispatch.combine(y, plan, wide_weights[:, part])
        assert bits_equal(out, dispatch.combine(y, plan, wide_weights[:, part].contiguous()))


def test_br044_int64_ids_are_not_pairs_of_int32(dispatch):
    ids = torch.tensor([[3, 2], [1, 0], [2, 2]])
    assert same(dispatch.plan(ids, 4), dispatch.plan(ids.int(), 4))


# ---- 046: wave sizes ----------------------------------------------------------------------------


def test_br046_every_warp_size_gives_the_same():
    """No hardware here: the emulator has warps of 4, 32 and 64, and launches ask it for its own.
    machine_code/ sees that gfx942 and gfx1100, built together, have the waves they should."""
    dispatch = Dispatch("simt")
    case = sweep.plan_case(46, 700, 12, 300, "holes")
    given = sweep.rows_case(46, sweep.plan_case(46, 9, 70, 30, "holes"), 40, torch.bfloat16)
    for warp_size in dispatch.emulated.WARP_SIZES:
        with dispatch.emulated.operators(warp_size=warp_size):
            ops = torch.ops.dspark_simt
            sweep.check_plan(ops.plan(*case), case)
            out = ops.combine(given["y"], given["plan"].inverse, given["weights"], None, None)
        assert bits_equal(out, moe.combine(given["y"], given["plan"], given["weights"]))


def test_br046_host_code_assumes_no_wave_size():
    launch = (ROOT / "csrc/ops/moe/launch.cu").read_text()
    assert launch.count("with_warp_size(") == 3
    for name in ("op.cpp", "op.h", "checks.h", "workspace.h"):
        text = (ROOT / "csrc/ops/moe" / name).read_text()
        assert "warp" not in text.lower() and "wave" not in text.lower(), name


# ---- 049: no tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_br049_no_tokens(dispatch, dtype, compiled):
    def step(ids, x, weights):
        plan = dispatch.plan(ids, 6, 16, None, 16)
        rows = dispatch.permute(x, plan)
        return plan, rows, dispatch.combine(rows, plan, weights, shared=x, residual=x)

    if compiled and dispatch.backend != "cpu":
        pytest.skip("fakes are tested on the CPU; the emulator's operators have none")
    run = torch.compile(step, backend="aot_eager") if compiled else step
    for k in (4, 0):
        ids = torch.zeros(0, k, dtype=torch.int64)
        plan, rows, out = run(ids, torch.zeros(0, 24, dtype=dtype), torch.zeros(0, k))
        assert plan.total == 0 and plan.num_tiles == 0
        assert plan.counts.tolist() == [0] * 6 and plan.offsets.tolist() == [0] * 7
        assert plan.sorted.shape == (0,) and plan.inverse.shape == (0, k)
        assert rows.shape == out.shape == (0, 24) and rows.dtype == out.dtype == dtype


def test_br049_no_slots_and_no_columns(dispatch):
    plan = check(dispatch, torch.zeros(3, 0, dtype=torch.int64), 6, 4, None, 4)
    x = torch.randn(3, 8)
    assert dispatch.permute(x, plan).shape == (0, 8)
    assert torch.equal(dispatch.combine(torch.zeros(0, 8), plan, torch.zeros(3, 0), x), x)
    plan = dispatch.plan(torch.tensor([[0], [1]]), 2)
    assert dispatch.permute(torch.zeros(2, 0), plan).shape == (2, 0)
    assert dispatch.combine(torch.zeros(2, 0), plan, torch.ones(2, 1)).shape == (2, 0)


def test_br049_no_launch_of_size_zero():
    dispatch = Dispatch("simt")
    ops = torch.ops.dspark_simt

    def step():
        plan = ops.plan(torch.zeros(0, 4, dtype=torch.int64), 6, 1, None, 0)
        rows = ops.permute(torch.zeros(0, 24), plan[2], plan[3])
        ops.combine(rows, plan[3], torch.zeros(0, 4), None, None)

    kernels = dispatch.emulated.counters(step)["kernels"]
    assert {name: k["blocks"] for name, k in kernels.items()} == {"plan": 1}


# ---- 051: one expert gets all -------------------------------------------------------------------


def test_br051_one_expert(dispatch):
    plan = check(dispatch, torch.zeros(4, 1, dtype=torch.int64), 1, 16, None, 16)
    assert plan.sorted.tolist() == [0, 1, 2, 3] + [4] * 12
    assert plan.total == 16 and plan.num_tiles == 1
    assert (plan.tile_expert[0], plan.tile_row[0], plan.tile_size[0]) == (0, 0, 4)


@pytest.mark.parametrize("hot", [17, 0, 255])
def test_br051_a_hot_expert(dispatch, hot):
    plan = check(dispatch, torch.full((5000, 1), hot), 256, 64, None, 64)
    assert plan.sorted[:5000].unique().numel() == 5000 and plan.total == 5056
    assert plan.num_tiles == 79 and (plan.tile_expert[:79] == hot).all()


# ---- 068: a fixed order of the sum --------------------------------------------------------------


def finalise(dispatch: Dispatch, k: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(68)
    ids = torch.rand(64, 16, generator=generator).argsort(1)[:, :k]
    x = torch.randn(64, 2048, generator=generator).bfloat16()
    weights = torch.rand(64, k, generator=generator)
    plan = dispatch.plan(ids, 16)
    return dispatch.combine(dispatch.permute(x, plan), plan, weights)


@pytest.mark.parametrize("k", [1, 8])
def test_br068_repeats_and_processes(dispatch, k):
    first = finalise(dispatch, k)
    repeats = 50 if dispatch.backend != "simt" else 2
    assert all(bits_equal(finalise(dispatch, k), first) for _ in range(repeats))
    if dispatch.backend != "cpu":
        assert bits_equal(first, finalise(Dispatch("cpu"), k))
        return
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        f"from test_moe_cases import digest, finalise, Dispatch\n"
        f"print(digest(finalise(Dispatch('cpu'), {k})))"
    )
    folder = pathlib.Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=folder, check=True
    )
    assert done.stdout.strip() == digest(first)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()


def test_br068_the_docs_say_what_repeats():
    text = (ROOT / "docs/moe.md").read_text()
    assert "## What repeats" in text and "slot order, accumulated in float32" in text
    assert "slot order" in text and "float32" in (moe.combine.__doc__ or "")
