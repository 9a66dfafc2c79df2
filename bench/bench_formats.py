"""dequantize, quantize, decode and encode against torch, one weight of an expert, on a CPU.

python bench/bench_formats.py [--only fp8] [--threads 1] [--json bench/results/formats.json]

The baselines are torch's own conversions: float8 by its dtype, four bits by a table of 16 values,
scales spread by repeat_interleave. Results of this package are exact where torch rounds twice.
"""

import harness
import torch
from growth import Growth

from dspark_ext import formats

FP4 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
SHAPE = (4608, 5120)  # gate and up of an expert of DeepSeek-V4.1's drafter
BLOCKS = formats.DEFAULT_BLOCKS


def spread(scale: torch.Tensor, block: tuple, shape: tuple) -> torch.Tensor:
    """Scales of bytes (E8M0) as factors of every weight."""
    factors = torch.exp2(scale.float() - 127)
    rows = factors.repeat_interleave(block[0], -2)[: shape[0]]
    return rows.repeat_interleave(block[1], -1)[:, : shape[1]]


def torch_codes(codes: torch.Tensor, format: str) -> torch.Tensor:
    if format == "mxfp4":
        return FP4[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()]
    return codes.view(formats.CODE_DTYPES[format]).float()


def dequantize_case(format: str, shape: tuple = SHAPE) -> harness.Case:
    columns = shape[1] // 2 if format == "mxfp4" else shape[1]

    def make_inputs():
        codes = torch.randint(0, 0x78, (shape[0], columns), dtype=torch.uint8)
        scale = torch.randint(120, 130, formats.scale_shape(shape, BLOCKS[format]))
        return codes, scale.to(torch.uint8)

    def run(codes, scale):
        return formats.dequantize(codes, scale, format, dtype=torch.bfloat16)

    def baseline(codes, scale):
        values = torch_codes(codes, format) * spread(scale, BLOCKS[format], shape)
        return values.to(torch.bfloat16)

    size = shape[0] * columns + 2 * shape[0] * shape[1]
    return case(f"dequantize {format}", shape, make_inputs, run, baseline, size)


def quantize_case(format: str, shape: tuple = SHAPE) -> harness.Case:
    """Checked by the way back: within half a step of the largest code."""

    def check(inputs: tuple) -> None:
        codes, scale = formats.quantize(*inputs, format)
        back = formats.dequantize(codes, scale, format)
        error = (back - inputs[0].float()).abs().max()
        if not error < 0.3 * inputs[0].abs().max():
            raise AssertionError(f"quantize {format}: error {error}")

    bits = {"mxfp4": 4.25}.get(format, 8)
    return harness.Case(
        name=f"quantize {format} R={shape[0]} C={shape[1]}",
        make_inputs=lambda: (torch.randn(shape).bfloat16(),),
        run=lambda weight: formats.quantize(weight, format),
        baseline=None,
        baseline_name="-",
        check=check,
        floor_bytes=int(shape[0] * shape[1] * (2 + bits / 8)),
        moved_bytes=int(shape[0] * shape[1] * (2 + bits / 8)),  # what is between stays in the cache
    )


def encode_case(shape: tuple = SHAPE) -> harness.Case:
    return case(
        "encode fp8_e4m3",
        shape,
        lambda: (torch.randn(shape),),
        lambda values: formats.encode(values, "fp8_e4m3"),
        lambda values: values.to(torch.float8_e4m3fn).view(torch.uint8),
        5 * shape[0] * shape[1],
    )


def decode_case(shape: tuple = SHAPE) -> harness.Case:
    return case(
        "decode fp8_e4m3",
        shape,
        lambda: (torch.randint(0, 0x78, shape, dtype=torch.uint8),),
        lambda codes: formats.decode(codes, "fp8_e4m3"),
        lambda codes: codes.view(torch.float8_e4m3fn).float(),
        5 * shape[0] * shape[1],
    )


def case(name, shape, make_inputs, run, baseline, size) -> harness.Case:
    return harness.Case(
        name=f"{name} R={shape[0]} C={shape[1]}",
        make_inputs=make_inputs,
        run=run,
        baseline=baseline,
        baseline_name="torch",
        check=lambda inputs: torch.testing.assert_close(
            run(*inputs), baseline(*inputs), atol=0, rtol=0
        ),
        floor_bytes=size,
        moved_bytes=size,
    )


def make_cases(quick: bool = False) -> list[harness.Case]:
    shape = (64, 128) if quick else SHAPE
    cases = [make(f, shape) for make in (dequantize_case, quantize_case) for f in BLOCKS]
    return [*cases, decode_case(shape), encode_case(shape)]


GROWTHS = {
    "R": [
        Growth(
            f"dequantize {format} C=5120",
            (576, 1152, 2304, 4608, 9216),
            lambda value, f=format: dequantize_case(f, (value, 5120)),
        )
        for format in BLOCKS
    ]
}


if __name__ == "__main__":
    torch.manual_seed(0)
    harness.main(__doc__.partition("\n")[0], make_cases, GROWTHS)
