"""The small operators of a decoder layer against torch, and their row-invariance."""

import pytest
import torch

from dspark_ext import decoder


def test_rms_norm_matches_float64():
    generator = torch.Generator().manual_seed(0)
    for width in (1, 63, 64, 65, 576):
        x = torch.randn(7, width, generator=generator)
        weight = torch.randn(width, generator=generator)
        exact = x.double()
        exact = weight.double() * exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        torch.testing.assert_close(
            decoder.rms_norm(x, weight, 1e-5).double(), exact, rtol=2e-6, atol=0
        )


def test_silu_mul_matches_float64_from_tail_to_tail():
    gate = torch.cat([torch.linspace(-120, 120, 4801), torch.tensor([0.0, -0.0, 1e-30, -1e-30])])
    up = torch.full_like(gate, 0.75)
    got = decoder.silu_mul(torch.cat([gate, up])[None])[0]
    exact = torch.nn.functional.silu(gate.double()) * 0.75
    seen = exact.abs() > 1e-35  # below, the exponent of the kernel is clamped
    bound = 1e-6 * exact.abs() * (1 + gate.abs() / 8)
    assert ((got - exact).abs() <= bound)[seen].all()
    assert (got[~seen].abs() < 1e-34).all()


def test_routed_silu_mul_matches_torch():
    generator = torch.Generator().manual_seed(3)
    rows, experts, size, shared, top_k, limit = 9, 5, 6, 4, 2, 1.5
    gate, up = (3 * torch.randn(rows, experts * size + shared, generator=generator) for _ in "gu")
    logits, bias = torch.randn(rows, experts, generator=generator), torch.linspace(0, 0.4, experts)
    scores = torch.nn.functional.softplus(logits.double()).sqrt()
    ids = (scores + bias).topk(top_k, -1).indices
    weights = torch.zeros_like(scores).scatter(-1, ids, scores.gather(-1, ids))
    weights = weights / weights.sum(-1, keepdim=True) * 2.5
    weights = torch.cat([weights.repeat_interleave(size, -1), torch.ones(rows, shared)], -1)
    clamped = torch.nn.functional.silu(gate.double().clamp(max=limit)) * up.clamp(-limit, limit)
    got = decoder.routed_silu_mul(
        torch.cat([gate, up], -1),
        logits,
        bias,
        expert_size=size,
        top_k=top_k,
        scaling=2.5,
        limit=limit,
    )
    torch.testing.assert_close(got.double(), clamped * weights, rtol=2e-6, atol=0)


def test_routing_ties_take_the_lower_expert():
    got = decoder.routed_silu_mul(
        torch.ones(1, 6),
        torch.zeros(1, 3),
        torch.zeros(3),
        expert_size=1,
        top_k=2,
        scaling=1.0,
        limit=9.0,
    )
    assert (got[0, :2] > 0).all() and got[0, 2] == 0


def reference_rope_store(qkv, cos, sin, positions, slots, key_cache, value_cache, num_heads):
    num_kv_heads = key_cache.shape[2]
    query, key, value = qkv.split([num_heads, num_kv_heads, num_kv_heads], 1)

    def rotate(x):
        low, high = x.chunk(2, -1)
        return x * cos[positions][:, None] + torch.cat([-high, low], -1) * sin[positions][:, None]

    key_cache[slots.long(), positions] = rotate(key)
    value_cache[slots.long(), positions] = value
    return rotate(query)


def rope_inputs(rows=5, num_heads=3, num_kv_heads=1, head_dim=16):
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(rows, num_heads + 2 * num_kv_heads, head_dim, generator=generator)
    angle = torch.rand(11, head_dim // 2, generator=generator).repeat(1, 2)
    positions = torch.tensor([3, 10, 0, 4, 10])[:rows]
    slots = torch.tensor([1, 1, 0, 1, 0], dtype=torch.int32)[:rows]
    caches = [torch.randn(2, 11, num_kv_heads, head_dim, generator=generator) for _ in range(2)]
    return [qkv, angle.cos(), angle.sin(), positions, slots, *caches, num_heads]


def rope_store(inputs, **norms):
    return decoder.rope_store(*inputs[:-1], num_heads=inputs[-1], **norms)


def test_rope_store_norms_heads_first():
    got, expected = rope_inputs(), rope_inputs()
    norms = [torch.linspace(0.5, 2, 16), torch.linspace(-1, 1, 16)]
    query = rope_store(got, query_norm=norms[0], key_norm=norms[1], eps=1e-5)
    q, k, v = expected[0].split([3, 1, 1], 1)
    q, k = (torch.nn.functional.rms_norm(x, (16,), w, 1e-5) for x, w in zip((q, k), norms))
    expected[0] = torch.cat([q, k, v], 1)
    torch.testing.assert_close(query, reference_rope_store(*expected))
    torch.testing.assert_close(got[5], expected[5])


def test_rope_store_of_keys_and_values_alone():
    got, expected = rope_inputs(), rope_inputs()
    got[0], got[-1] = got[0][:, 3:].contiguous(), 0
    assert rope_store(got).shape == (5, 0, 16)
    reference_rope_store(*expected)
    torch.testing.assert_close(got[5:7], expected[5:7])


def test_rope_store_rotates_and_writes_only_its_cells():
    got, expected = rope_inputs(), rope_inputs()
    query = rope_store(got)
    torch.testing.assert_close(query, reference_rope_store(*expected))
    torch.testing.assert_close(got[5], expected[5])
    torch.testing.assert_close(got[6], expected[6])


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        (3, torch.tensor([3, 11, 0, 4, 10]), r"positions: expected values in \[0, 11\), got 11"),
        (3, torch.tensor([3, -1, 0, 4, 10]), r"positions: expected values in \[0, 11\), got -1"),
        (4, torch.tensor([0, 0, 2, 0, 0], dtype=torch.int32), r"slots: .* got 2 in row 2"),
        (4, torch.zeros(5), "^dspark_ext.rope_store: slots: expected dtype int32, got float32$"),
        (7, 4, r"qkv: expected 4 \+ 2 \* 1 heads, got 5"),
        (0, torch.zeros(5, 16, 5).mT, r"^dspark_ext.rope_store: qkv: .* contiguous .* strides \["),
        (6, torch.zeros(2, 11, 2, 16), r"value_cache: expected shape \[S=2, L=11, Hkv=1, D=16\]"),
        (2, torch.zeros(10, 16), r"sin: expected shape \[T=11, D=16\], got \[10, 16\]"),
        (0, None, "^dspark_ext.rope_store: qkv: expected a tensor, got None$"),
    ],
    ids=[
        "position too high",
        "position negative",
        "slot",
        "slots dtype",
        "heads",
        "strides",
        "value cache",
        "table",
        "none",
    ],
)
def test_rope_store_names_what_is_wrong(argument, value, message):
    inputs = rope_inputs()
    inputs[argument] = value
    with pytest.raises(RuntimeError, match=message):
        rope_store(inputs)


@pytest.mark.parametrize("width", [96, 100, 577], ids=lambda width: f"width={width}")
def test_a_row_does_not_depend_on_its_company(width):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(701, 2 * width, generator=generator)
    weight = torch.randn(2 * width, generator=generator)
    together = decoder.rms_norm(x, weight, 1e-6), decoder.silu_mul(x)
    for row in (0, 1, 350, 700):
        alone = x[row : row + 1].clone()
        assert torch.equal(decoder.rms_norm(alone, weight, 1e-6)[0], together[0][row])
        assert torch.equal(decoder.silu_mul(alone)[0], together[1][row])


def test_no_rows():
    assert decoder.rms_norm(torch.empty(0, 8), torch.ones(8), 1e-6).shape == (0, 8)
    assert decoder.silu_mul(torch.empty(0, 8)).shape == (0, 4)
    inputs = rope_inputs(rows=0)
    assert rope_store(inputs).shape == (0, 3, 16)


def test_opcheck():
    ops = torch.ops.dspark_ext
    torch.library.opcheck(ops.rms_norm, (torch.randn(3, 8), torch.ones(8), 1e-6))
    torch.library.opcheck(ops.silu_mul, (torch.randn(3, 8),))
    torch.library.opcheck(
        ops.routed_silu_mul,
        (torch.randn(3, 8), torch.randn(3, 2), torch.zeros(2), 1, 1, 1.0, 7.0),
    )
    torch.library.opcheck(ops.rope_store, (*rope_inputs(), torch.ones(16), None, 1e-5))
