"""`moe.fused_moe` and `moe.apply_experts`: against float64, and what must not matter."""

import expert_sweep as sweep
import pytest
import torch
from kit import FLOATS, bits_equal, name

from dspark_ext import moe
from dspark_ext.reference import moe_gemm as reference

# Relative L2 against float64 with the steps rounded where the layer rounds: a sum that falls near
# the middle of two numbers may go the other way.
BOUND = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}


def make_layer(kind: str, experts: int = 6, width: int = 64, inner: int = 40):
    return (
        sweep.make_weights(kind, (experts, 2 * inner, width), 1),
        sweep.make_weights(kind, (experts, width, inner), 2),
    )


def options_of(w13, w2) -> dict:
    return {
        "w13_scales": w13.scales,
        "w2_scales": w2.scales,
        "format": w13.format,
        "block": w13.block,
    }


def run(x, layer, ids, weights, **options):
    w13, w2 = layer
    return moe.fused_moe(x, w13.weight, w2.weight, ids, weights, **options_of(*layer), **options)


def make_tokens(tokens: int, k: int = 3, experts: int = 6, width: int = 64, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :k]
    return sweep.make_rows(tokens, width, dtype), ids, torch.rand(tokens, k, generator=generator)


def one_expert(kind: str, width: int = 64, inner: int = 24) -> tuple:
    """A shared expert and its weights as (w13, w2) in float32."""
    w13, w2 = (w.of(0) for w in make_layer(kind, 1, width, inner))
    fields = moe.ExpertWeights(w13.weight, w2.weight, w13.scales, w2.scales, w13.format, w13.block)
    return fields, (w13.exact, w2.exact)


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("kind", ["fp32", "bf16", "fp8-128", "fp8-32", "fnuz-128", "mxfp4"])
def test_against_float64(kind, dtype):
    layer = make_layer(kind)
    x, ids, weights = make_tokens(19, dtype=dtype)
    ids[4], ids[5, 1] = -1, 6
    shared, exact_shared = one_expert("fp8-32" if kind == "mxfp4" else kind)
    residual = sweep.make_rows(19, 64, dtype, 7)
    for limit, options in ((None, {}), (0.5, {"shared": shared, "residual": residual})):
        want = reference.fused_moe(
            x, layer[0].exact, layer[1].exact, ids, weights, limit=limit, rounded=dtype,
            shared=exact_shared if options else None, residual=options.get("residual"),
        )  # fmt: skip
        got = run(x, layer, ids, weights, swiglu_limit=limit, **options)
        assert got.dtype == dtype and got.shape == x.shape
        assert sweep.relative_error(got, want) < BOUND[dtype]


def test_is_its_steps():
    layer = make_layer("fp8-32")
    x, ids, weights = make_tokens(30)
    plan = moe.plan(ids, 6, tile_rows=5)
    how = {"exact": True, "dtype": torch.float32}
    gate_up = moe.grouped_gemm(x, layer[0].weight, plan, **layer[0].options(), **how)
    hidden = moe.swiglu(gate_up, 2.0).to(x.dtype)
    options = {**layer[1].options(), "gather": False, "exact": True}
    y = moe.grouped_gemm(hidden, layer[1].weight, plan, **options)
    want = moe.combine(y, plan, weights)
    assert bits_equal(run(x, layer, ids, weights, swiglu_limit=2.0, exact=True), want)


@pytest.mark.parametrize("kind", ["bf16", "mxfp4"])
def test_a_token_does_not_depend_on_the_others(kind):
    layer = make_layer(kind)
    x, ids, weights = make_tokens(80)
    whole = run(x, layer, ids, weights, swiglu_limit=1.0)
    for t in (0, 41, 79):
        one = slice(t, t + 1)
        assert bits_equal(run(x[one], layer, ids[one], weights[one], swiglu_limit=1.0), whole[one])
    order = torch.randperm(80)
    assert bits_equal(run(x[order], layer, ids[order], weights[order], swiglu_limit=1.0),
                      whole[order])  # fmt: skip


def test_interleaved_gates():
    layer = make_layer("fp32")
    x, ids, weights = make_tokens(7, dtype=torch.float32)
    w13, w2 = (w.weight for w in layer)
    turns = w13.view(6, 2, 40, 64).transpose(1, 2).reshape(6, 80, 64).contiguous()
    got = moe.fused_moe(x, turns, w2, ids, weights, interleaved=True)
    assert bits_equal(got, run(x, layer, ids, weights))


def test_nobody_here_gives_zero():
    """Plus the shared expert and the residual, whatever the weights of the choices are."""
    layer = make_layer("bf16")
    x, ids, weights = make_tokens(4)
    nobody, weights = torch.full_like(ids, -1), weights * torch.nan
    out = run(x, layer, nobody, weights)
    assert not out.any() and not out.signbit().any()
    residual = sweep.make_rows(4, 64, torch.bfloat16, 5)
    assert torch.equal(run(x, layer, nobody, weights, residual=residual), residual)
    shared, _ = one_expert("bf16")
    alone = run(x, layer, nobody, weights, shared=shared)
    every = moe.fused_moe(
        x, shared.w13[None], shared.w2[None], torch.zeros(4, 1, dtype=torch.int64),
        torch.ones(4, 1),
    )  # fmt: skip
    assert torch.equal(alone, every)
    assert torch.equal(run(x, layer, nobody, weights, shared=tuple(shared)), alone)


def test_a_rank_without_experts():
    """No expert at all, whatever the ids are: the shared expert and the residual alone."""
    x, ids, weights = make_tokens(5)
    for kind in ("bf16", "fp8-32", "mxfp4"):
        w13, w2 = (w.of(slice(0, 0)) for w in make_layer(kind))
        shared, _ = one_expert(kind)
        for choices in (ids, ids[:, :0]):
            share = weights[:, : choices.shape[1]]
            assert not run(x, (w13, w2), choices, share).any()
            got = run(x, (w13, w2), choices, share, shared=shared, residual=x)
            nobody = torch.full_like(choices, -1)
            want = run(x, make_layer(kind), nobody, share, shared=shared, residual=x)
            assert bits_equal(got, want)


def test_a_shared_expert_with_a_dimension_too_many_is_named():
    x, ids, weights = make_tokens(3)
    shared, _ = one_expert("bf16")
    for wrong in (
        shared._replace(w13=shared.w13[None], w2=shared.w2[None]),
        shared._replace(w2=shared.w2[:-1]),
    ):
        with pytest.raises(RuntimeError, match=r"fused_moe: shared: expected w13 \[2N, d\] and w2"):
            run(x, make_layer("bf16"), ids, weights, shared=wrong)


def test_experts_without_tokens_are_not_read():
    layer = make_layer("fp32")
    x, ids, weights = make_tokens(9, dtype=torch.float32)
    ids = ids % 2 * 3
    want = run(x, layer, ids, weights)
    for part in layer:
        part.weight[[1, 2, 4, 5]] = torch.nan
    assert bits_equal(run(x, layer, ids, weights), want)


def test_expert_map():
    """The experts of a rank, with the ids of all."""
    layer = make_layer("bf16", 4)
    x, ids, weights = make_tokens(12)
    expert_map = torch.tensor([-1, 2, 0, -1, 3, 1], dtype=torch.int32)
    got = run(x, layer, ids, weights, expert_map=expert_map)
    assert bits_equal(got, run(x, layer, expert_map[ids], weights))


def test_the_number_of_experts_is_checked():
    layer = make_layer("bf16")
    x, ids, weights = make_tokens(2)
    assert bits_equal(run(x, layer, ids, weights, num_experts=6), run(x, layer, ids, weights))
    with pytest.raises(ValueError, match="num_experts: expected E=6 of w13, got 5"):
        run(x, layer, ids, weights, num_experts=5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w2": torch.zeros(5, 64, 40)}, "fused_moe: w2: expected"),
        ({"w2": torch.zeros(6, 64, 41)}, "grouped_gemm: x: expected shape .*K=41"),
        ({"w2": torch.zeros(7, 64, 40)}, r"fused_moe: w2: .*got \[6, 80, 64\] and \[7, 64, 40\]"),
        ({"w2": torch.zeros(6, 65, 40)}, "fused_moe: w2: expected"),
        ({"w13": torch.zeros(80, 64)}, "fused_moe: w2: expected"),
        ({"w13": torch.zeros(6, 81, 64)}, "grouped_gemm: activation: expected an even number"),
        ({"layout": "panels"}, "fused_moe: w2: expected"),
        ({"ids": torch.zeros(3, 3)}, "plan: ids: expected dtype int32 or int64"),
        ({"ids": torch.zeros(4, 3).int()}, r"grouped_gemm: x: expected shape \[T=4"),
        ({"weights": torch.ones(3, 2)}, r"combine: weights: expected shape \[T=3, k=3\]"),
        ({"residual": torch.ones(3, 64).half()}, "combine: residual: expected dtype"),
    ],
)
def test_refusals_name_the_argument(change, message):
    ids = torch.tensor([[0, 1, 5]] * 3, dtype=torch.int32)
    given = {"x": torch.zeros(3, 64), "w13": torch.zeros(6, 80, 64), "ids": ids}
    given |= {"w2": torch.zeros(6, 64, 40), "weights": torch.ones(3, 3)} | change
    with pytest.raises(RuntimeError, match=r"dspark_ext\." + message):
        moe.fused_moe(**given)


@pytest.mark.parametrize("kind", ["bf16", "fp8-32", "mxfp4"])
def test_compiled_for_every_batch(kind):
    """One compilation, without a graph break, for any number of tokens."""
    layer = make_layer(kind)
    shared, _ = one_expert(kind)
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    def step(x, ids, weights):
        return run(x, layer, ids, weights, swiglu_limit=1.0, shared=shared, residual=x)

    compiled = torch.compile(step, backend=backend, dynamic=True, fullgraph=True)
    for tokens in (5, 9, 17):
        given = make_tokens(tokens)
        assert bits_equal(compiled(*given), step(*given))
    assert len(compilations) == 1
