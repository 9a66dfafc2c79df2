"""The number formats in exact arithmetic, written from their definitions (OCP MX 1.0, FNUZ)."""

import bisect
import functools
from fractions import Fraction

import numpy as np

# bits of the mantissa, bias, codes that are NaN
FORMATS = {
    "fp8_e4m3": (3, 7, {0x7F, 0xFF}),
    "fp8_e4m3fnuz": (3, 8, {0x80}),
    "fp4_e2m1": (1, 1, set()),
}
BITS = {"fp8_e4m3": 8, "fp8_e4m3fnuz": 8, "fp4_e2m1": 4}


def value(format, code):
    """Magnitude with sign of a code as (negative, Fraction), or None for NaN."""
    mantissa_bits, bias, nans = FORMATS[format]
    if code in nans:
        return None
    top = 1 << (BITS[format] - 1)
    exponent, mantissa = divmod(code & (top - 1), 1 << mantissa_bits)
    if exponent == 0:
        magnitude = Fraction(mantissa) * Fraction(2) ** (1 - bias - mantissa_bits)
    else:
        whole = (1 << mantissa_bits) + mantissa
        magnitude = Fraction(whole) * Fraction(2) ** (exponent - bias - mantissa_bits)
    return bool(code & top), magnitude


def as_float(format, code):
    number = value(format, code)
    if number is None:
        return float("nan")
    negative, magnitude = number
    return -float(magnitude) if negative else float(magnitude)


@functools.cache
def positive_codes(format):
    """(code, magnitude) of all numbers with a clear sign bit, ascending."""
    top = 1 << (BITS[format] - 1)
    numbers = [(code, value(format, code)) for code in range(top)]
    return [(code, number[1]) for code, number in numbers if number is not None]


def nearest_code(format, x):
    """Code of a float by search: nearest, ties to the even code, saturating."""
    top = 1 << (BITS[format] - 1)
    negative = bool(np.signbit(x))
    if x != x:
        return {"fp8_e4m3": 0xFF if negative else 0x7F, "fp8_e4m3fnuz": 0x80, "fp4_e2m1": 7}[format]
    codes = positive_codes(format)
    if abs(x) >= codes[-1][1]:
        code = codes[-1][0]
    else:
        exact = Fraction(abs(float(x)))
        above = bisect.bisect_right(codes, exact, key=lambda item: item[1])
        neighbours = codes[above - 1 : above + 1]
        code = min(neighbours, key=lambda item: (abs(item[1] - exact), item[0] % 2))[0]
    if format == "fp8_e4m3fnuz" and code == 0:
        return 0
    return code | top if negative else code


def border_values(format):
    """All numbers of the format, the midpoints of neighbours, and the float32 next to each."""
    magnitudes = [float(m) for _, m in positive_codes(format)]
    middles = [(a + b) / 2 for a, b in zip(magnitudes, magnitudes[1:])]
    beyond = [magnitudes[-1] * f for f in (1.01, 1.0357142857, 1.0625, 1.5, 2, 1e30)]
    points = np.array([*magnitudes, *middles, *beyond], np.float32)
    around = [points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(1e38))]
    positive = np.concatenate(around)
    return np.concatenate([positive, -positive])


HOSTILE = np.array(
    [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, -1.1754942e-38,
     1.1754944e-38, 3.4028235e38, -3.4028235e38],
    np.float32,
)  # fmt: skip
