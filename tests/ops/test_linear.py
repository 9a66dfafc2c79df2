"""dspark_ext.linear: exact against its definition, and the same row whatever the batch."""

import numpy as np
import pytest
import torch
from torch import nn

from dspark_ext import linear
from dspark_ext.reference.numerics import fma32

DTYPES = [torch.float32, torch.bfloat16]
# (out_features, in_features): below, at and past the panel of 32 outputs, odd lengths
SHAPES = [(1, 1), (3, 5), (31, 17), (32, 64), (33, 100), (65, 257), (160, 96)]


def shape_id(shape):
    return f"out={shape[0]},in={shape[1]}"


def inputs(rows, shape, dtype, seed=0, bias=True):
    generator = torch.Generator().manual_seed(seed)
    out_features, in_features = shape
    x = torch.randn(rows, in_features, generator=generator)
    weight = (torch.randn(out_features, in_features, generator=generator) / 8).to(dtype)
    offset = torch.randn(out_features, generator=generator) if bias else None
    return x, weight, offset


def run(x, weight, bias):
    return linear.linear(x, linear.pack_linear(weight), bias, weight.shape[0])


def fma_chain(x, weight, bias):
    """One fused multiply-add per input feature, in order, from 0; then the bias."""
    x, weight = x.float().numpy(), weight.float().numpy()
    acc = np.zeros((x.shape[0], weight.shape[0]), np.float32)
    for k in range(x.shape[1]):
        acc = fma32(x[:, k : k + 1], weight[:, k], acc)
    acc = torch.from_numpy(acc)
    return acc if bias is None else acc + bias


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_equals_the_definition_to_the_bit(shape, dtype):
    for rows, bias in [(1, False), (2, True), (7, True), (50, False)]:
        x, weight, offset = inputs(rows, shape, dtype, seed=rows, bias=bias)
        assert torch.equal(run(x, weight, offset), fma_chain(x, weight, offset))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (576, 1536)], ids=shape_id)
def test_error_against_float64_is_bounded(shape, dtype):
    """|error| <= (in_features + 1) 2^-24 (|x| |w|^T + |b|), the bound of a rounded chain."""
    x, weight, bias = inputs(6, shape, dtype, seed=3)
    exact = x.double() @ weight.double().T + bias
    size = x.double().abs() @ weight.double().abs().T + bias.abs()
    error = (run(x, weight, bias).double() - exact).abs()
    assert bool((error <= (shape[1] + 1) * 2.0**-24 * size).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(33, 100), (97, 64)], ids=shape_id)
@pytest.mark.parametrize("rows_dtype", DTYPES, ids=lambda d: f"x={d}")
def test_a_row_does_not_depend_on_the_batch(shape, dtype, rows_dtype):
    """Row i of M = 1 .. 33 rows, and of 100, has the bits of that row alone, wherever it stands."""
    x, weight, bias = inputs(100, shape, dtype, seed=4)
    x = x.to(rows_dtype)
    packed = linear.pack_linear(weight)

    def layer(rows):
        return linear.linear(rows, packed, bias, shape[0])

    alone = torch.cat([layer(row) for row in x.split(1)])
    for rows in [*range(1, 34), 100]:
        assert torch.equal(layer(x[:rows]), alone[:rows]), f"{rows} rows"
        assert torch.equal(layer(x[-rows:]), alone[-rows:]), f"last {rows} rows"
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(layer(x[order]), alone[order])


def test_other_rows_may_hold_anything():
    x, weight, bias = inputs(5, (40, 30), torch.bfloat16)
    spoiled = x.clone()
    spoiled[1], spoiled[3] = float("nan"), float("inf")
    clean, mixed = run(x, weight, bias), run(spoiled, weight, bias)
    assert torch.equal(clean[[0, 2, 4]], mixed[[0, 2, 4]])
    assert mixed[1].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_padding_of_the_packed_weight_is_zero(dtype):
    weight = torch.full((33, 7), float("inf"), dtype=dtype)
    packed = linear.pack_linear(weight)
    assert packed.shape == (2, 7, 32) and packed.dtype == dtype
    assert int(packed[1].isinf().sum()) == 7 and int((packed[1] == 0).sum()) == 7 * 31


def test_leading_dimensions_and_strides():
    x, weight, bias = inputs(12, (40, 16), torch.float32)
    flat = run(x, weight, bias)
    assert torch.equal(run(x.reshape(3, 2, 2, 16), weight, bias), flat.reshape(3, 2, 2, 40))
    assert torch.equal(run(x[0], weight, bias), flat[0])
    wide = torch.zeros(12, 32)
    wide[:, ::2] = x
    assert torch.equal(run(wide[:, ::2], weight, bias), flat)
    assert torch.equal(run(x, weight.T.contiguous().T, bias), flat)


def test_bfloat16_rows_are_widened_exactly():
    x, weight, bias = inputs(4, (40, 16), torch.bfloat16)
    narrow = x.to(torch.bfloat16)
    result = run(narrow, weight, bias)
    assert result.dtype == torch.float32
    assert torch.equal(result, run(narrow.float(), weight, bias))


def test_bfloat16_pairs_count_subnormals_as_zero():
    """Both sides bf16: operands and sums below 2^-126 are zero, everything else is the chain."""
    generator = torch.Generator().manual_seed(8)

    def wide(rows, low, high):
        sizes = torch.randint(low, high, (rows, 40), generator=generator).double()
        values = torch.randn(rows, 40, generator=generator) * torch.exp2(sizes)
        return values.to(torch.bfloat16)

    x, weight = wide(5, -8, 8), wide(33, -138, -110)

    def flushed(values):
        return np.where(np.abs(values) < np.float32(2.0**-126), np.float32(0), values)

    left, right = flushed(x.float().numpy()), flushed(weight.float().numpy())
    assert (right == 0).any() and (right != 0).any()
    acc = np.zeros((5, 33), np.float32)
    for k in range(40):
        acc = flushed(fma32(left[:, k : k + 1], right[:, k], acc))
    result = run(x, weight, None)
    assert torch.equal(result, torch.from_numpy(acc))


@pytest.mark.parametrize("rows", [1, 3, 6, 50], ids=lambda m: f"rows={m}")
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_bfloat16_pairs_equal_the_definition_to_the_bit(shape, rows):
    x, weight, bias = inputs(rows, shape, torch.bfloat16, seed=rows)
    x = x.to(torch.bfloat16)
    assert torch.equal(run(x, weight, bias), fma_chain(x, weight, bias))


@pytest.mark.parametrize("shape", [(0, 16), (2, 0, 16)], ids=str)
def test_no_rows(shape):
    _, weight, bias = inputs(1, (40, 16), torch.float32)
    assert run(torch.zeros(shape), weight, bias).shape == (*shape[:-1], 40)


def test_thread_count_changes_nothing():
    x, weight, bias = inputs(70, (300, 200), torch.bfloat16, seed=6)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            results.append(run(x, weight, bias))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_inputs_stay_as_they_are():
    x, weight, bias = inputs(5, (33, 20), torch.bfloat16)
    packed = linear.pack_linear(weight)
    before = [t.clone() for t in (x, weight, bias, packed)]
    linear.linear(x, packed, bias, 33)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, weight, bias, packed)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_packed_linear_replaces_a_layer(dtype, bias):
    torch.manual_seed(0)
    layer = nn.Linear(48, 70, bias=bias)
    weight = layer.weight.detach().clone()
    packed = linear.PackedLinear.from_linear(layer, dtype)
    x = torch.randn(5, 48)
    assert torch.equal(packed(x), run(x, weight.to(dtype), layer.bias if bias else None))
    assert torch.equal(layer.weight, weight)
    assert (packed.in_features, packed.out_features) == (48, 70)
    assert "packed_weight" in packed.state_dict()


def test_pack_module_keeps_subclasses_and_shares_tied_layers():
    class Own(nn.Linear):
        pass

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(Own(8, 8), nn.Linear(8, 4)))
    model.append(model[0])
    plain = nn.Sequential(*model[:1]).requires_grad_(False)
    x = torch.randn(3, 8)
    expected = run(x, plain[0].weight, plain[0].bias)
    assert linear.pack_module(model, torch.float32) is model
    assert torch.equal(model[0](x), expected)
    assert type(model[2][0]) is Own and isinstance(model[2][1], linear.PackedLinear)
    assert model[3] is model[0]


X, WEIGHT, BIAS = inputs(2, (40, 16), torch.float32)
PACKED = linear.pack_linear(WEIGHT)


@pytest.mark.parametrize(
    ("arguments", "operator", "word"),
    [
        ((X[:, :15], PACKED, BIAS, 40), "linear", "x"),
        ((X.double(), PACKED, BIAS, 40), "linear", "x"),
        ((X, PACKED[0], BIAS, 40), "linear", "packed_weight"),
        ((X, PACKED.half(), BIAS, 40), "linear", "packed_weight"),
        ((X, PACKED[:, :, :16], BIAS, 40), "linear", "packed_weight"),
        ((X, PACKED, BIAS[:39], 40), "linear", "bias"),
        ((X, PACKED, BIAS.double(), 40), "linear", "bias"),
        ((X, PACKED, BIAS, 65), "linear", "out_features|packed_weight"),
        ((X, PACKED, None, 32), "linear", "out_features|packed_weight"),
        ((X, PACKED, None, -1), "linear", "out_features|packed_weight"),
        ((X[0, 0], PACKED, None, 40), "linear", "x"),
        ((WEIGHT[0],), "pack_linear", "weight"),
        ((WEIGHT.half(),), "pack_linear", "weight"),
        ((WEIGHT.long(),), "pack_linear", "weight"),
    ],
)
def test_errors_name_operator_and_argument(arguments, operator, word):
    with pytest.raises(RuntimeError) as error:
        getattr(linear, operator)(*arguments)
    message = str(error.value)
    assert f"dspark_ext.{operator}: " in message
    assert any(f"{part}: " in message for part in word.split("|")), message


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype):
    x, weight, bias = inputs(3, (33, 20), dtype)
    packed = linear.pack_linear(weight)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.dspark_ext.pack_linear.default, (weight,), test_utils=tests)
    torch.library.opcheck(
        torch.ops.dspark_ext.linear.default, (x, packed, bias, 33), test_utils=tests
    )
    torch.library.opcheck(torch.ops.dspark_ext.linear.default, (x, packed, None, 33))


def test_compiles_in_one_graph():
    layer = linear.PackedLinear(PACKED, BIAS, 40)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (2, 5):
        x = torch.randn(rows, 16)
        assert torch.equal(compiled(x), layer(x))
