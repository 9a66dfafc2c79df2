"""Failures of expert layers seen in the field (tests/CASES.md), on every backend: the CPU, the
device kernels on the emulator and, where there is one, a GPU."""

import hashlib
import pathlib
import subprocess
import sys

import backends
import expert_sweep as sweep
import pytest
import torch
from kit import bits_equal

from dspark_ext import moe
from dspark_ext.reference import moe_gemm as reference

ROOT = pathlib.Path(__file__).resolve().parents[2]


# ---- 042: experts without tokens ----------------------------------------------------------------


def test_br042_experts_without_tokens(backend):
    """Rows of NaN lie where the next results are allocated."""
    ids = torch.tensor([1, 1, 4, 1, 4, 1, 4, 1])[:, None]
    weights = sweep.make_weights("bf16", (8, 64, 64))
    x = sweep.make_rows(8, 64, torch.bfloat16)
    first = None
    for _ in range(50 if backend == "cpu" else 5):
        for size in (8 * 64, 64 * 64, 8):
            torch.full((size,), torch.nan, dtype=torch.bfloat16)
        plan = moe.plan(ids, 8, tile_rows=16)
        out = moe.grouped_gemm(x, weights.weight, plan)
        assert plan.counts.tolist() == [0, 5, 0, 0, 3, 0, 0, 0]
        assert out.shape == (8, 64) and out.isfinite().all()
        assert first is None or bits_equal(out, first)
        first = out


# ---- 044: strides -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_br044_column_slices(backend, dtype):
    w13, w2 = sweep.make_weights("bf16", (5, 16, 24)), sweep.make_weights("bf16", (5, 24, 8))
    wide = torch.randint(0, 5, (6, 4), dtype=dtype)
    wide_weights = torch.rand(6, 4)
    x = sweep.make_rows(6, 48, torch.bfloat16)

    def run(rows, ids, weights):
        return moe.fused_moe(rows, w13.weight, w2.weight, ids, weights)

    for part in (slice(0, 2), slice(2, 4), slice(0, 4, 2)):
        given = x[:, 24:], wide[:, part], wide_weights[:, part]
        assert bits_equal(run(*given), run(*(value.contiguous() for value in given)))


# ---- 045: sizes that are no multiple of a tile --------------------------------------------------


@pytest.mark.parametrize("kind", ["bf16", "fp8-32", "fp8-128", "mxfp4"])
@pytest.mark.parametrize("columns", [8, 40, 72, 176, 224, 352, 384, 640, 704])
def test_br045_inner_sizes(backend, columns, kind):
    few = backend == "simt"
    for rows in (48,) if few else (48, 100, 704):
        weights = sweep.make_weights(kind, (3, rows, columns), columns)
        plan = sweep.make_plan(4 if few else 11, 2, 3, columns)
        x = sweep.make_rows(plan.inverse.shape[0], columns, torch.bfloat16)
        got = moe.grouped_gemm(x, weights.weight, plan, **weights.options(), dtype=torch.float32)
        want = reference.grouped_gemm(x, weights.exact, plan)
        assert sweep.relative_error(got, want) < 5e-7
        rounded = moe.grouped_gemm(x, weights.weight, plan, **weights.options())
        assert bits_equal(rounded, got.bfloat16())


# ---- 048: a second routing ----------------------------------------------------------------------


def test_br048_weights_as_given(backend):
    w13, w2 = sweep.make_weights("fp32", (4, 32, 24)), sweep.make_weights("fp32", (4, 24, 16))
    x, ids = sweep.make_rows(1, 24, torch.float32), torch.tensor([[2, 0]])

    def run(weights):
        return moe.fused_moe(x, w13.weight, w2.weight, ids, torch.tensor([weights]))

    plan = moe.plan(torch.tensor([[2]]), 4, tile_rows=8)
    f2 = moe.apply_experts(x, moe.ExpertWeights(w13.weight, w2.weight), plan)
    assert bits_equal(run([1.5, 0.0]), 1.5 * f2)
    assert bits_equal(run([3.0, 0.0]), 2 * run([1.5, 0.0]))
    assert not run([0.0, 0.0]).any()


# ---- 049: no tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_br049_no_tokens(backend, compiled):
    if compiled and backend != "cpu":
        pytest.skip("fakes are tested on the CPU; the emulator's operators have none")
    w13, w2 = sweep.make_weights("fp8-32", (4, 32, 24)), sweep.make_weights("fp8-32", (4, 24, 16))
    shared = moe.ExpertWeights(torch.zeros(8, 24), torch.zeros(24, 4))

    def step(x, ids, weights):
        return moe.fused_moe(
            x, w13.weight, w2.weight, ids, weights, w13_scales=w13.scales, w2_scales=w2.scales,
            block=(32, 32), shared=shared, residual=x,
        )  # fmt: skip

    run = torch.compile(step, backend="aot_eager") if compiled else step
    for k in (2, 0):
        x = torch.zeros(0, 24, dtype=torch.bfloat16)
        out = run(x, torch.zeros(0, k, dtype=torch.int32), torch.zeros(0, k))
        assert out.shape == (0, 24) and out.dtype == torch.bfloat16


def test_br049_no_slots(backend):
    x = torch.ones(3, 8)
    out = moe.fused_moe(
        x, torch.ones(2, 4, 8), torch.ones(2, 8, 2), torch.zeros(3, 0, dtype=torch.int32),
        torch.zeros(3, 0),
    )  # fmt: skip
    assert torch.equal(out, torch.zeros(3, 8))


# ---- 050: borders finer than a tile -------------------------------------------------------------


@pytest.mark.parametrize("tile_rows", [1, 16, 64, 128])
@pytest.mark.parametrize("counts", [(1, 2, 128, 65), (1, 2, 0, 65)], ids=str)
def test_br050_every_row_meets_its_expert(backend, counts, tile_rows):
    """W_e = 2^e I, in every format."""
    if backend == "simt" and tile_rows in (1, 64):
        pytest.skip("the emulator is slow: 16 and 128 rows stand for the others")
    ids = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))[:, None]
    plan = moe.plan(ids, 4, tile_rows=tile_rows)
    x = sweep.make_rows(len(ids), 32, torch.bfloat16)
    factor = 2.0 ** ids.float()
    identity = torch.eye(32) * 2.0 ** torch.arange(4)[:, None, None]
    got = moe.grouped_gemm(x, identity.bfloat16(), plan)
    assert torch.equal(got, (x.float() * factor).bfloat16())
    codes = (torch.eye(32) * 56).to(torch.uint8).expand(4, 32, 32).contiguous()  # 56: 1.0
    scales = (127 + torch.arange(4)).to(torch.uint8).view(4, 1, 1)
    got = moe.grouped_gemm(x, codes, plan, scales=scales, format="fp8_e4m3", block=(32, 32))
    assert torch.equal(got, (x.float() * factor).bfloat16())


def test_br050_one_hot_rows_and_constant_experts(backend):
    """One-hot rows pick the columns of the weights; the weights of expert e are all e + 1."""
    weights = sweep.make_weights("bf16", (3, 20, 12))
    ids = (torch.arange(12) % 3)[:, None]
    plan = moe.plan(ids, 3, tile_rows=3)
    got = moe.grouped_gemm(torch.eye(12), weights.weight, plan)[plan.inverse[:, 0]]
    want = torch.stack([weights.exact[t % 3, :, t] for t in range(12)])
    assert torch.equal(got, want)
    constant = torch.arange(1.0, 4.0)[:, None, None].expand(3, 20, 12).contiguous()
    got = moe.grouped_gemm(torch.ones(12, 12), constant, plan)[plan.inverse[:, 0]]
    assert torch.equal(got, 12.0 * (ids + 1).expand(12, 20))


# ---- 068: a fixed order -------------------------------------------------------------------------


def layer_of(k: int, width: int, exact: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(k)
    w13 = (torch.randn(16, 64, width, generator=generator) / width**0.5).bfloat16()
    w2 = (torch.randn(16, width, 32, generator=generator) / 32**0.5).bfloat16()
    ids = torch.rand(64, 16, generator=generator).argsort(1)[:, :k]
    x = torch.randn(64, width, generator=generator).bfloat16()
    weights = torch.rand(64, k, generator=generator)
    return moe.fused_moe(x, w13, w2, ids, weights, exact=exact)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("k", [1, 8])
def test_br068_repeats_and_processes(backend, k):
    width = 2048 if backend != "simt" else 32
    first = layer_of(k, width)
    for _ in range(50 if backend != "simt" else 1):
        assert bits_equal(layer_of(k, width), first)
    if backend != "cpu":
        exact = layer_of(k, width, exact=True)
        with backends.running("cpu"), backends.operators_replaced(torch.ops.dspark_ext):
            assert bits_equal(layer_of(k, width, exact=True), exact)
        return
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        f"from test_experts_cases import digest, layer_of\n"
        f"print(digest(layer_of({k}, {width})))"
    )
    folder = pathlib.Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=folder, check=True
    )
    assert done.stdout.strip() == digest(first)


def test_br068_the_docs_say_what_repeats():
    text = (ROOT / "docs/moe.md").read_text().partition("## What repeats")[2]
    assert "`grouped_gemm`" in text and "`fused_moe`" in text
