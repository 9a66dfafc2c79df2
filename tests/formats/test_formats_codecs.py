"""Every code of every format, and every boundary between codes, against the definitions."""

import numpy as np
import pytest
import torch
from specification import BITS, FORMATS, HOSTILE, as_float, border_values, nearest_code

from dspark_ext import formats

TORCH = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e4m3fnuz": torch.float8_e4m3fnuz}
ALL_BYTES = torch.arange(256, dtype=torch.uint8)


def same_bits(a, b):
    """Bit-equal float32 tensors, all NaN alike."""
    a, b = a.float(), b.float()
    equal = (a.view(torch.int32) == b.view(torch.int32)) | (a.isnan() & b.isnan())
    return bool(equal.all()) and a.shape == b.shape


def unpacked(codes):
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2)


def encode_each(values, format):
    """One code per value, also for fp4."""
    values = torch.as_tensor(values, dtype=torch.float32)
    if format != "fp4_e2m1":
        return formats.encode(values, format)
    return unpacked(formats.encode(torch.nn.functional.pad(values, (0, len(values) % 2)), format))[
        : len(values)
    ]


@pytest.mark.parametrize("format", TORCH)
def test_all_256_codes_decode_as_defined_and_as_in_torch(format):
    got = formats.decode(ALL_BYTES, format)
    assert same_bits(got, torch.tensor([as_float(format, code) for code in range(256)]))
    assert same_bits(got, ALL_BYTES.view(TORCH[format]).float())


def test_all_16_fp4_codes_decode_as_defined_in_both_halves():
    expected = torch.tensor([as_float("fp4_e2m1", code) for code in range(16)])
    assert expected.tolist()[:8] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    got = formats.decode(ALL_BYTES[:, None], "fp4_e2m1")  # [256, 2]
    assert same_bits(got[:, 0], expected[ALL_BYTES.int() & 15])  # the even element is the low half
    assert same_bits(got[:, 1], expected[ALL_BYTES.int() >> 4])


def test_all_256_scales_decode_as_defined_and_as_in_torch():
    got = formats.decode(ALL_BYTES, "e8m0")
    powers = [np.ldexp(np.float32(1), code - 127) for code in range(255)]
    assert same_bits(got, torch.tensor([*powers, float("nan")]))
    assert same_bits(got, ALL_BYTES.view(torch.float8_e8m0fnu).float())


@pytest.mark.parametrize("format", FORMATS)
def test_encode_equals_the_search_at_every_boundary_and_on_hostile_values(format, rng):
    spread = np.exp2(rng.uniform(-20, 12, 2000)) * rng.choice([-1, 1], 2000)
    values = np.concatenate([border_values(format), HOSTILE, spread.astype(np.float32)])
    got = encode_each(values, format).tolist()
    wrong = [
        (x, code, nearest_code(format, x))
        for x, code in zip(values.tolist(), got)
        if code != nearest_code(format, x)
    ]
    assert not wrong


@pytest.mark.parametrize(("format", "largest"), [("fp8_e4m3", 448), ("fp8_e4m3fnuz", 240)])
def test_encode_equals_torch_on_all_bfloat16_numbers_in_range(format, largest):
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    values = bits.view(torch.bfloat16).float()
    values = values[values.abs() <= largest]
    assert len(values) > 30000
    got = formats.encode(values, format)
    assert torch.equal(got, values.to(TORCH[format]).view(torch.uint8))


@pytest.mark.parametrize("format", FORMATS)
def test_saturation_nan_and_signed_zero(format):
    largest = {"fp8_e4m3": 448.0, "fp8_e4m3fnuz": 240.0, "fp4_e2m1": 6.0}[format]
    values = [largest * 1.001, 1e30, float("inf"), -largest * 2, float("-inf")]
    codes = encode_each(values, format)
    back = torch.tensor([as_float(format, code) for code in codes.tolist()])
    assert back.tolist() == [largest] * 3 + [-largest] * 2
    zero = encode_each([-0.0, -1e-30], format).tolist()
    assert zero == ([0, 0] if format == "fp8_e4m3fnuz" else [1 << (BITS[format] - 1)] * 2)
    nan = as_float(format, int(encode_each([float("nan")], format)[0]))
    assert nan == 6.0 if format == "fp4_e2m1" else nan != nan


@pytest.mark.parametrize("format", FORMATS)
def test_codes_survive_the_round_trip(format):
    """decode then encode is the identity on numbers; the NaN codes become the one NaN made here."""
    codes = ALL_BYTES if format != "fp4_e2m1" else ALL_BYTES[:, None]
    back = formats.encode(formats.decode(codes, format), format)
    if format == "fp8_e4m3":
        codes = codes.clone()
        codes[255] = 0xFF  # the sign of a NaN is kept
    assert torch.equal(back, codes)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 1000])
def test_every_position_of_a_long_run_is_computed_alike(length, rng):
    """The vector path and its remainder give one result."""
    values = torch.from_numpy(rng.standard_normal(length).astype(np.float32) * 100)
    for format in TORCH:
        codes = formats.encode(values, format)
        alone = torch.cat([formats.encode(value[None], format) for value in values])
        assert torch.equal(codes, alone)
        each = torch.cat([formats.decode(code[None], format) for code in codes])
        assert same_bits(formats.decode(codes, format), each)


def test_strided_and_empty_inputs():
    square = torch.arange(256, dtype=torch.uint8).view(16, 16)
    assert same_bits(
        formats.decode(square.T, "fp8_e4m3"), formats.decode(square, "fp8_e4m3").T.contiguous()
    )
    assert formats.decode(square[:0], "fp4_e2m1").shape == (0, 32)
    assert formats.encode(torch.zeros(3, 0), "fp4_e2m1").shape == (3, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: formats.decode(torch.zeros(3), "e8m0"), "decode: codes: expected dtype uint8"),
        (lambda: formats.decode(ALL_BYTES, "fp8"), "decode: format: expected fp8_e4m3, .*got fp8$"),
        (lambda: formats.encode(ALL_BYTES, "fp8_e4m3"), "encode: values: expected dtype float32"),
        (lambda: formats.encode(torch.zeros(3), "e8m0"), "encode: format: .* got e8m0"),
        (lambda: formats.encode(torch.zeros(3), "fp4_e2m1"), "encode: values: expected an even"),
        (lambda: formats.decode(ALL_BYTES[0], "e8m0"), "decode: codes: expected at least one"),
    ],
)
def test_refusals_name_the_argument(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()


def test_operators_pass_opcheck():
    torch.library.opcheck(torch.ops.dspark_ext.decode, (ALL_BYTES, "fp4_e2m1"))
    torch.library.opcheck(torch.ops.dspark_ext.encode, (torch.randn(4, 6), "fp4_e2m1"))
    for format in TORCH:
        torch.library.opcheck(torch.ops.dspark_ext.encode, (torch.randn(4, 6), format))
