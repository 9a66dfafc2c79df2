"""docs/numerics.md sections 2, 3 and 5: known answers; _C and the numpy oracle agree to the bit."""

import math
from fractions import Fraction

import numpy as np
import pytest

from dspark_ext import _C
from dspark_ext.reference import numerics

# Random123's kat_vectors: counter, key, output.
PHILOX_KNOWN_ANSWERS = {
    "zeros": ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    "ones": ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    "pi": (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
}


@pytest.mark.parametrize(
    ("counter", "key", "answer"), PHILOX_KNOWN_ANSWERS.values(), ids=PHILOX_KNOWN_ANSWERS
)
def test_philox_known_answers(counter, key, answer):
    assert list(numerics.philox(tuple(counter), tuple(key))) == answer
    assert list(_C.philox4x32(counter, key)) == answer


@pytest.mark.parametrize("stream", numerics.STREAMS)
def test_uniform_equals_oracle(stream, rng):
    for _ in range(200):
        seed, position = (int(rng.integers(-(2**63), 2**63)) for _ in range(2))
        slot = int(rng.integers(0, 17))
        u = _C.uniform(seed, position, numerics.STREAMS[stream], slot)
        assert u == numerics.uniform(seed, position, stream, slot)
        assert 0 < u < 1


def test_br021_uniforms_are_open_varied_and_finer_than_2_to_minus_26():
    u = np.array([_C.uniform(seed, 0, 1, 0) for seed in range(200_000)])
    assert 0 < u.min() and u.max() < 1 and np.isfinite(np.log(u)).all()
    assert len(np.unique(u)) == len(u)
    assert abs(u.mean() - 0.5) < 5 / math.sqrt(12 * len(u))
    scaled = u * 2.0**53
    assert (scaled == np.floor(scaled)).all() and (scaled % 2 == 1).all()
    assert (np.floor(scaled) % 2.0**26 != 1).mean() > 0.99  # the low bits are used


def test_uniform_depends_on_every_argument():
    base = (5, 10, 1, 2)
    values = {_C.uniform(*base)}
    for i in range(4):
        for delta in (1, 2):
            changed = list(base)
            changed[i] += delta
            values.add(_C.uniform(*changed))
    for seed, position in ((5 + 2**32, 10), (5, 10 + 2**32), (-5, 10), (5, -10)):
        values.add(_C.uniform(seed, position, 1, 2))
    assert len(values) == 1 + 8 + 4


def exp2_inputs() -> np.ndarray:
    """Every exponent, its seams at halves and their neighbours, and a fine grid of fractions."""
    halves = -np.arange(0, 252, dtype=np.float32) / 2
    seams = [halves, np.nextafter(halves, np.float32(-np.inf)), np.nextafter(halves, np.float32(0))]
    grid = -np.linspace(0, 1, 200_001, dtype=np.float32)
    spread = -np.geomspace(1e-38, 126, 50_001).astype(np.float32)
    far = np.array([-0.0, -125.5, -126, -150, -1e9, -3e38, -np.inf], np.float32)
    return np.concatenate([*seams, grid, grid - 37, spread, far])


def test_exp2_nonpositive_equals_oracle_and_is_within_one_ulp():
    z = exp2_inputs()
    got = np.array(_C.exp2_nonpositive(z.tolist()), np.float32)
    np.testing.assert_array_equal(got.view(np.int32), numerics.exp2_nonpositive(z).view(np.int32))
    alive = z >= -125
    exact = np.exp2(z[alive].astype(np.float64))
    assert (np.abs(got[alive] - exact) <= np.spacing(exact.astype(np.float32))).all()
    assert (got[~alive] == 0).all()
    assert got[alive].min() >= np.finfo(np.float32).tiny  # no denormal


def test_exp2_nonpositive_is_exact_at_integers():
    n = np.arange(0, 126)
    assert _C.exp2_nonpositive((-n).astype(float).tolist()) == (2.0**-n).tolist()
    assert _C.exp2_nonpositive(0.0) == 1.0


def test_exp2_nonpositive_scalar_and_vector_paths_agree():
    z = exp2_inputs()[::97]
    assert _C.exp2_nonpositive(z.tolist()) == [_C.exp2_nonpositive(float(v)) for v in z]


def test_fma32_oracle_is_correctly_rounded(rng):
    """The oracle's own fma against exact fractions, with halfway cases made likely."""
    a, b, c = rng.standard_normal((3, 2000)).astype(np.float32)
    c[:1000] = (-(a * b) * (1 + rng.integers(-2, 3, 2000) * 2.0**-23)).astype(np.float32)[:1000]
    for x, y, z, got in zip(a, b, c, numerics.fma32(a, b, c), strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        neighbours = [np.nextafter(got, np.float32(s)) for s in (-np.inf, np.inf)]
        error = abs(Fraction(float(got)) - exact)
        assert all(error <= abs(Fraction(float(n)) - exact) for n in neighbours)


def test_exp2_double_equals_oracle_and_math(rng):
    for z in [0.0, -0.5, -1.5, -999.5, -1000.0, -1000.1, -np.inf, *(-rng.random(500) * 1000)]:
        got = _C.exp2_double(z)
        assert got == numerics.exp2_double(z)
        if z >= -1000:
            assert abs(got / 2.0 ** float(z) - 1) < 4e-16


def test_log2_double_equals_oracle_and_math(rng):
    values = [1.0, 2.0, 0.25, math.sqrt(0.5), np.nextafter(1.0, 0), np.nextafter(1.0, 2), 1e-300]
    for y in [*values, *np.exp(rng.uniform(-600, 600, 500)), *rng.random(500)]:
        got = _C.log2_double(float(y))
        assert got == numerics.log2_double(float(y))
        assert abs(got - math.log2(y)) <= 4e-16 * max(1, abs(math.log2(y)))


def test_tile_sum_is_the_written_order():
    """The oracle's lanes and tree, spelled out one addition at a time."""
    values = np.exp2(np.random.default_rng(1).uniform(-20, 0, 1000)).astype(np.float32)
    lanes = [np.float32(0)] * 256
    for i, value in enumerate(values):
        lanes[i % 256] = np.float32(lanes[i % 256] + value)
    h = 128
    while h >= 1:
        for lane in range(h):
            lanes[lane] = np.float32(lanes[lane] + lanes[lane + h])
        h //= 2
    assert numerics.tile_sum(values) == lanes[0]
