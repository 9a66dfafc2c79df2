"""Weights with block scales: dequantize against its definition, quantize against its promise."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from specification import as_float

from dspark_ext import formats

CODES = {"fp8_e4m3": "fp8_e4m3", "fp8_e4m3fnuz": "fp8_e4m3fnuz", "mxfp4": "fp4_e2m1"}
# (rows, columns), block: whole blocks, partial last ones in either direction, one-off shapes
SHAPES = [
    ((128, 128), (128, 128)),
    ((130, 258), (128, 128)),
    ((64, 96), (32, 32)),
    ((33, 70), (32, 32)),
    ((1, 2), (32, 32)),
    ((5, 64), (1, 32)),
    ((3, 98), (1, 32)),
    ((7, 10), (3, 4)),
]
CASES = [
    (format, shape, block)
    for format in formats.FORMATS
    for shape, block in SHAPES
    if format != "mxfp4" or block[0] == 1 or shape == (7, 10)
]


def case_id(value):
    return str(value).replace(" ", "") if isinstance(value, tuple) else str(value)


each_case = pytest.mark.parametrize(("format", "shape", "block"), CASES, ids=case_id)


def random_codes(shape, format, generator):
    width = shape[1] // 2 if format == "mxfp4" else shape[1]
    return torch.randint(0, 256, (shape[0], width), generator=generator, dtype=torch.uint8)


def defined(codes, scale, format, shape, block, dtype):
    """One weight at a time, from the definition of the codes."""
    numbers = np.empty(shape, np.float32)
    for row in range(shape[0]):
        for column in range(shape[1]):
            if format == "mxfp4":
                byte = int(codes[row, column // 2])
                code = byte >> 4 if column % 2 else byte & 15
            else:
                code = int(codes[row, column])
            number = np.float32(as_float(CODES[format], code))
            numbers[row, column] = number * scale[row // block[0], column // block[1]].numpy()
    return torch.from_numpy(numbers).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale_dtype", [torch.float8_e8m0fnu, torch.float32], ids=str)
@each_case
def test_dequantize_equals_its_definition(format, shape, block, scale_dtype, dtype):
    generator = torch.Generator().manual_seed(7)
    codes = random_codes(shape, format, generator)
    size = formats.scale_shape(shape, block)
    if scale_dtype == torch.float32:
        scale = torch.randn(size, generator=generator)
    else:
        exponents = torch.randint(115, 140, size, generator=generator, dtype=torch.uint8)
        scale = exponents.view(scale_dtype)
    got = formats.dequantize(codes, scale, format, block=block, dtype=dtype)
    expected = defined(codes, scale.float(), format, shape, block, dtype)
    assert got.dtype == dtype and got.shape == expected.shape
    assert torch.equal(got.nan_to_num(nan=1e4), expected.nan_to_num(nan=1e4))


def test_scales_at_their_ends():
    """2^-127 and 2^127 are scales like any other; the code 255 makes its block NaN."""
    codes = torch.tensor([[0x38, 0xB8, 0x01, 0x7E]], dtype=torch.uint8)  # 1, -1, 2^-9, 448
    for code, power in [(0, 2.0**-127), (254, 2.0**127)]:
        scale = torch.tensor([[code]], dtype=torch.uint8)
        got = formats.dequantize(codes, scale, "fp8_e4m3", block=(32, 32)).double()
        exact = torch.tensor([[1, -1, 2.0**-9, 448]], dtype=torch.float64) * power
        assert torch.equal(got, torch.where(exact > 3.5e38, torch.inf, exact))
    nan = torch.tensor([[255]], dtype=torch.uint8)
    assert formats.dequantize(codes, nan, "fp8_e4m3", block=(32, 32)).isnan().all()


@each_case
def test_stacked_matrices_are_dequantized_one_by_one(format, shape, block):
    generator = torch.Generator().manual_seed(3)
    codes = torch.stack([random_codes(shape, format, generator) for _ in range(3)])[None]
    scale = torch.rand(1, 3, *formats.scale_shape(shape, block), generator=generator)
    got = formats.dequantize(codes, scale, format, block=block)
    each = [formats.dequantize(codes[0, i], scale[0, i], format, block=block) for i in range(3)]
    assert torch.equal(got.nan_to_num(9e9), torch.stack(each)[None].nan_to_num(9e9))


@each_case
def test_plain_torch_route_has_the_same_bits(format, shape, block):
    """What serves devices without the compiled operator."""
    generator = torch.Generator().manual_seed(4)
    codes = random_codes(shape, format, generator)
    scale = torch.randint(100, 150, formats.scale_shape(shape, block), generator=generator)
    scale = scale.to(torch.uint8)
    for dtype in (torch.float32, torch.bfloat16):
        got = formats._dequantize_elsewhere(codes, scale, format, block, dtype)
        expected = formats.dequantize(codes, scale, format, block=block, dtype=dtype)
        assert torch.equal(got.nan_to_num(9e9), expected.nan_to_num(9e9))


@pytest.mark.parametrize("spread", [0, 20], ids=["even", "many magnitudes"])
@each_case
def test_quantize_is_within_half_a_step_and_never_saturates(format, shape, block, spread):
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(shape, generator=generator)
    weight *= torch.exp2(spread * torch.randn(shape, generator=generator))
    codes, scale = formats.quantize(weight, format, block=block)
    back = formats.dequantize(codes, scale, format, block=block)
    step = scale.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    step = step[: shape[0], : shape[1]]
    mantissa, unit = {"fp8_e4m3": (3, 2**-9), "fp8_e4m3fnuz": (3, 2**-10), "mxfp4": (1, 0.5)}[
        format
    ]
    bound = torch.maximum(weight.abs() * 2.0 ** -(mantissa + 1), step * unit / 2)
    assert bool(((back - weight).abs() <= bound).all())
    tiles = (weight.abs() / step).max()
    assert formats.LARGEST[format] / 2 < tiles <= formats.LARGEST[format]


@each_case
def test_what_quantize_made_survives_the_round_trip(format, shape, block):
    generator = torch.Generator().manual_seed(6)
    weight = torch.randn(shape, generator=generator)
    codes, scale = formats.quantize(weight, format, block=block)
    once = formats.dequantize(codes, scale, format, block=block)
    for scale_dtype in formats.SCALE_DTYPES[: 1 if format == "mxfp4" else 2]:
        again = formats.quantize(once, format, block=block, scale_dtype=scale_dtype)
        if scale_dtype == torch.float8_e8m0fnu:  # exact: a power of two times the same codes
            assert torch.equal(formats.dequantize(*again, format, block=block), once)
        else:
            error = (formats.dequantize(*again, format, block=block) - once).abs()
            assert bool((error <= once.abs() * 2.0**-4 + once.abs().max() * 2.0**-17).all())


@pytest.mark.parametrize("chunk", [1, 300, 4096])
def test_quantize_gives_the_same_in_chunks_of_any_size(chunk, monkeypatch):
    weight = torch.randn(3, 7, 70, 98, generator=torch.Generator().manual_seed(11))
    for format, block in (("fp8_e4m3", (16, 32)), ("fp8_e4m3fnuz", (100, 7)), ("mxfp4", (1, 32))):
        whole = formats.quantize(weight, format, block=block)
        monkeypatch.setattr(formats, "_CHUNK", chunk)
        parts = formats.quantize(weight, format, block=block)
        monkeypatch.undo()
        for a, b in zip(whole, parts, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_pair_of_fp4_codes_under_every_scale(dtype):
    codes = torch.arange(256, dtype=torch.uint8).expand(256, 256).contiguous()
    scale = torch.arange(256, dtype=torch.uint8)[:, None]
    got = formats.dequantize(codes, scale, "mxfp4", block=(1, 512), dtype=dtype)
    expected = formats.decode(codes, "fp4_e2m1") * formats.decode(scale, "e8m0")
    assert torch.equal(got.isnan(), expected.isnan())
    expected = expected.to(dtype)
    kept = ~expected.isnan()
    assert torch.equal(got[kept].view(torch.int16), expected[kept].view(torch.int16))


def test_quantize_at_the_ends_of_float32():
    tiny = torch.full((1, 32), 1e-45)
    huge = torch.full((1, 32), 1.5 * 2.0**127)
    zeros = torch.tensor([[0.0, -0.0] * 16])
    for format in formats.FORMATS:
        codes, scale = formats.quantize(torch.cat([tiny, huge, zeros]), format, block=(1, 32))
        back = formats.dequantize(codes, scale, format, block=(1, 32))
        assert bool(back.isfinite().all())
        assert bool((back[1] / huge[0] - 1).abs().max() <= 2.0**-2)
        assert scale[2].float().item() == 1.0 and bool((back[2] == 0).all())
        assert bool((back[0] <= 2.0**-126).all())


def test_quantize_keeps_the_sign_of_zero_where_the_format_has_one():
    weight = torch.tensor([[-0.0, 0.0, 1.0, -1.0]])
    for format, kept in [("fp8_e4m3", True), ("fp8_e4m3fnuz", False), ("mxfp4", True)]:
        back = formats.dequantize(*formats.quantize(weight, format), format)
        assert bool(torch.signbit(back[0, 0])) == kept and not bool(torch.signbit(back[0, 1]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_quantize_refuses_what_is_not_finite(bad):
    weight = torch.zeros(4, 32)
    weight[3, 31] = bad
    for format in formats.FORMATS:
        with pytest.raises(ValueError, match="weight: expected finite"):
            formats.quantize(weight, format)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((torch.zeros(4, 4), "fp9"), {}, ValueError, "format: expected one of"),
        ((torch.zeros(4), "fp8_e4m3"), {}, ValueError, "weight: expected shape"),
        ((torch.zeros(4, 4).long(), "fp8_e4m3"), {}, ValueError, "dtype float32.*, got int64"),
        ((torch.zeros(4, 4, device="meta"), "mxfp4"), {}, ValueError, "on the CPU, got meta"),
        ((torch.zeros(4, 3), "mxfp4"), {}, ValueError, "even columns"),
        ((torch.zeros(4, 4), "fp8_e4m3"), {"block": (0, 4)}, ValueError, "block: expected"),
        ((torch.zeros(4, 4), "mxfp4"), {"block": (1, 3)}, ValueError, "even columns for mxfp4"),
        ((torch.zeros(4, 4), "fp8_e4m3"), {"block": (1, 2**40)}, ValueError, r"from 1 to 2\^30"),
        ((torch.zeros(4, 4), "mxfp4"), {"scale_dtype": torch.float32}, ValueError, "scale_dtype"),
        ((torch.zeros(4, 4), "fp8_e4m3"), {"scale_dtype": torch.half}, ValueError, "scale_dtype"),
    ],
)
def test_quantize_refuses_and_says_why(arguments, options, error, message):
    with pytest.raises(error, match=message):
        formats.quantize(*arguments, **options)


@pytest.mark.parametrize(
    ("codes", "scale", "options", "message"),
    [
        ((40, 40), (2, 1), {}, r"scale: expected shape \[2, 2\], one for each block, got \[2, 1\]"),
        ((40, 40), (2, 2, 1), {}, r"scale: expected shape \[2, 2\]"),
        ((40,), (2,), {}, "weight: expected shape"),
        ((40, 40), (2, 2), {"block": (32, 0)}, "block: expected two positive"),
        ((40, 40), (2, 2), {"dtype": torch.float64}, "dtype: expected float32"),
        ((40, 40), (2, 2), {"format": "fp8_e5m2"}, "format: expected"),
        ((40, 40), (2, 2), {"format": "mxfp4", "block": (32, 31)}, "block: expected an even"),
    ],
)
def test_dequantize_refuses_and_says_why(codes, scale, options, message):
    arguments = {"format": "fp8_e4m3", "block": (32, 32), **options}
    with pytest.raises(RuntimeError, match=message):
        formats.dequantize(torch.zeros(codes, dtype=torch.uint8), torch.ones(scale), **arguments)


def test_codes_of_another_format_are_refused():
    """The dtype says which numbers the bytes are; read as other ones they are silently wrong."""
    codes, scale = formats.quantize(torch.ones(4, 4), "fp8_e4m3")
    fnuz = codes.view(torch.float8_e4m3fnuz)
    message = "expected dtype uint8 or float8_e4m3fn, got float8_e4m3fnuz"
    with pytest.raises(RuntimeError, match=r"dspark_ext\.dequantize: weight: " + message):
        formats.dequantize(fnuz, scale, "fp8_e4m3")
    with pytest.raises(RuntimeError, match=r"dspark_ext\.decode: codes: " + message):
        formats.decode(fnuz, "fp8_e4m3")
    with pytest.raises(RuntimeError, match="scale: expected dtype uint8 or float8_e8m0fnu or fl"):
        formats.dequantize(codes, scale.view(torch.float8_e4m3fn), "fp8_e4m3")


def test_a_block_larger_than_the_weight_takes_no_memory():
    weight = torch.randn(5, 6)
    whole, huge = (formats.quantize(weight, "fp8_e4m3", block=b) for b in ((5, 6), (2**30, 2**30)))
    for a, b in zip(whole, huge, strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_one_byte_dtypes_are_the_same_codes():
    codes = torch.randint(0, 256, (4, 16), dtype=torch.uint8)
    scale = torch.randint(120, 130, (4, 1), dtype=torch.uint8)
    expected = formats.dequantize(codes, scale, "mxfp4")
    for dtype in (torch.int8, torch.float4_e2m1fn_x2):
        same = formats.dequantize(codes.view(dtype), scale.view(torch.float8_e8m0fnu), "mxfp4")
        assert torch.equal(same, expected)


def test_empty_weights():
    for shape in [(0, 64), (64, 0), (0, 0)]:
        out = formats.dequantize(
            torch.zeros(shape, dtype=torch.uint8),
            torch.ones(formats.scale_shape(shape, (32, 32))),
            "fp8_e4m3",
            block=(32, 32),
        )
        assert out.shape == shape


def test_dequantize_passes_opcheck():
    for format, width in [("fp8_e4m3", 64), ("mxfp4", 32)]:
        codes = torch.randint(0, 127, (33, width), dtype=torch.uint8)
        arguments = (codes, torch.rand(2, 2), format, [32, 32], torch.bfloat16)
        torch.library.opcheck(torch.ops.dspark_ext.dequantize, arguments)


def test_every_instruction_set_gives_the_same_bits():
    script = (
        "import torch, hashlib; from dspark_ext import formats as f\n"
        "codes = torch.arange(256, dtype=torch.uint8).repeat(67)[:16965].view(65, 261)\n"
        "g = torch.Generator().manual_seed(1); scale = torch.randn(3, 9, generator=g)\n"
        "x = torch.randn(9999, generator=g) * torch.exp2(9 * torch.randn(9999, generator=g))\n"
        "parts = [f.encode(x, n) for n in ('fp8_e4m3', 'fp8_e4m3fnuz')]\n"
        "parts += [f.encode(x[1:], 'fp4_e2m1')]\n"
        "parts += [f.dequantize(codes, scale, n, block=(32, 32), dtype=d).nan_to_num(3.0)\n"
        "          for n in ('fp8_e4m3', 'fp8_e4m3fnuz') for d in (torch.half, torch.float)]\n"
        "print(hashlib.sha256(b''.join(p.contiguous().view(torch.uint8).numpy().tobytes()\n"
        "                              for p in parts)).hexdigest())"
    )
    digests = set()
    for isa in ("baseline", "avx2", "avx512"):
        environment = {**os.environ, "DSPARK_CPU_ISA": isa, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=environment
        )
        if f"DSPARK_CPU_ISA={isa}: this machine supports at most" in run.stderr:
            continue
        assert run.returncode == 0, run.stderr
        digests.add(run.stdout)
    assert len(digests) == 1
