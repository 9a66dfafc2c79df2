"""QuantizedLinear: its parameters, its product, and what moving and loading leave intact."""

import copy

import pytest
import torch

from dspark_ext import formats
from dspark_ext.draft_head.quantized import FLOAT_DTYPES, FORMATS, QuantizedLinear

OPTIONS = {"fp8_e4m3": {"block": (32, 32)}, "mxfp4": {}}


def filled(format, in_features=70, out_features=45, **options):
    layer = QuantizedLinear(
        in_features, out_features, format=format, **{**OPTIONS.get(format, {}), **options}
    )
    layer.set_weight(torch.randn(out_features, in_features, generator=seeded()) / 8)
    return layer


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def wide(layer):
    if not layer.is_quantized:
        return layer.weight.detach()
    return formats.dequantize(layer.weight, layer.scale, layer.format, block=layer.block)


@pytest.mark.parametrize("format", FORMATS)
def test_is_a_matrix_product_with_the_widened_weight(format):
    layer = filled(format)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(3, 2, 70, generator=seeded(1)).to(dtype)
        expected = torch.nn.functional.linear(x, wide(layer).to(dtype))
        assert torch.equal(layer(x), expected) and layer(x).dtype == dtype
        assert layer.dequantized(dtype).dtype == dtype
    assert layer.dequantized().dtype == FLOAT_DTYPES.get(format, torch.bfloat16)


@pytest.mark.parametrize(
    ("format", "options", "weight", "scale"),
    [
        ("bf16", {}, ((45, 70), torch.bfloat16), None),
        ("fp16", {}, ((45, 70), torch.float16), None),
        ("fp32", {}, ((45, 70), torch.float32), None),
        ("fp8_e4m3", {}, ((45, 70), torch.float8_e4m3fn), ((1, 1), torch.float8_e8m0fnu)),
        (
            "fp8_e4m3",
            {"block": (32, 32), "scale_dtype": torch.float32},
            ((45, 70), torch.float8_e4m3fn),
            ((2, 3), torch.float32),
        ),
        ("mxfp4", {}, ((45, 35), torch.uint8), ((45, 3), torch.float8_e8m0fnu)),
    ],
)
def test_state_is_that_of_released_checkpoints(format, options, weight, scale):
    state = QuantizedLinear(70, 45, format=format, **options).state_dict()
    assert list(state) == (["weight"] if scale is None else ["weight", "scale"])
    for name, expected in (("weight", weight), ("scale", scale)):
        if expected is not None:
            assert (tuple(state[name].shape), state[name].dtype) == expected


@pytest.mark.parametrize("format", FORMATS)
def test_state_dict_round_trip_is_bit_equal(format):
    layer, other = filled(format), filled(format, cache=True)
    other.set_weight(torch.zeros(45, 70))
    assert not other(torch.ones(1, 70)).any()  # fills the cache
    other.load_state_dict(layer.state_dict())
    x = torch.randn(2, 70)
    assert torch.equal(other(x), layer(x))
    assert torch.equal(
        other.weight.detach().view(torch.uint8), layer.weight.detach().view(torch.uint8)
    )


@pytest.mark.parametrize("format", ["fp8_e4m3", "mxfp4"])
def test_cache_keeps_one_widened_weight_and_is_off_by_default(format):
    x = torch.randn(2, 70)
    plain, cached = filled(format), filled(format, cache=True)
    assert plain.dequantized(torch.float32) is not plain.dequantized(torch.float32)
    first = cached.dequantized(torch.float32)
    assert cached.dequantized(torch.float32) is first
    assert torch.equal(cached(x), plain(x))
    assert cached.dequantized(torch.bfloat16).dtype == torch.bfloat16
    cached.set_weight(torch.zeros(45, 70))
    assert not cached(x).any()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("move", [lambda m: m.to(torch.bfloat16), lambda m: m.half()])
def test_casts_leave_codes_and_scales_alone(format, move):
    layer = filled(format)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    moved = move(copy.deepcopy(layer))
    for name, value in moved.state_dict().items():
        if layer.is_quantized:
            assert value.dtype == before[name].dtype
            assert torch.equal(value.view(torch.uint8), before[name].view(torch.uint8))
        else:
            assert value.dtype in (torch.bfloat16, torch.float16)


def test_a_float_format_may_be_kept_in_another_float_dtype():
    layer = QuantizedLinear(4, 3, format="bf16", dtype=torch.float32)
    assert layer.weight.dtype == layer.dequantized().dtype == torch.float32
    assert QuantizedLinear(4, 3, format="fp8_e4m3", dtype=torch.float32).weight.dtype.itemsize == 1


def test_the_block_is_that_of_fp8():
    assert QuantizedLinear(64, 64, format="mxfp4", block=(32, 32)).scale.shape == (64, 2)
    assert QuantizedLinear(64, 64, format="fp8_e4m3", block=(32, 32)).scale.shape == (2, 2)


def test_only_float_weights_are_trained():
    assert [p.requires_grad for p in filled("bf16").parameters()] == [True]
    for format in ("fp8_e4m3", "mxfp4"):
        layer = filled(format)
        assert [p.requires_grad for p in layer.parameters()] == [False, False]
        x = torch.randn(2, 70, requires_grad=True)
        layer(x).sum().backward()
        assert torch.equal(x.grad[0], wide(layer).sum(0))


def test_builds_on_the_meta_device():
    for format in FORMATS:
        layer = QuantizedLinear(64, 32, format=format, device="meta")
        assert all(p.is_meta for p in layer.parameters())
        assert layer(torch.empty(3, 64, device="meta")).shape == (3, 32)


@pytest.mark.parametrize("format", ["fp8_e4m3", "mxfp4"])
def test_compiles_into_one_graph(format):
    layer = filled(format)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 70)
    assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "int8"}, "format: expected one of bf16"),
        ({"format": "mxfp4", "scale_dtype": torch.float32}, "scale_dtype: expected"),
        ({"format": "fp8_e4m3", "block": (0, 1)}, "block: expected"),
        ({"format": "mxfp4", "in_features": 5}, "in_features: expected an even number"),
    ],
)
def test_refuses_what_does_not_go_together(options, message):
    arguments = {"in_features": 64, "out_features": 2, **options}
    with pytest.raises(ValueError, match=message):
        QuantizedLinear(arguments.pop("in_features"), arguments.pop("out_features"), **arguments)


def test_set_weight_refuses_another_shape():
    with pytest.raises(ValueError, match=r"expected shape \[45, 70\], got \[70, 45\]"):
        filled("fp8_e4m3").set_weight(torch.zeros(70, 45))
