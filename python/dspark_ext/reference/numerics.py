"""docs/numerics.md in numpy, bit for bit: one row and one request at a time, nothing fast.

This is the arithmetic every backend has to reproduce exactly. For what the numbers mean, read
`reference/sampling.py` first; the steps have the same names here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

TILE = 4096
LANES = 256
FLT_MAX = np.finfo(np.float32).max
STREAMS = {"draft": 0, "accept": 1, "resample": 2, "synthetic": 3}

# Status bits (section 8).
NAN_ROW, BAD_DRAFT, EMPTY_ROW, ZERO_RESIDUAL, INVALID_ID = 1, 2, 4, 8, 16

# ln(2) and log2(e) to 40 digits, so that every coefficient below is correctly rounded.
LN2 = Fraction(6931471805599453094172321214581765680755, 10**40)
LOG2_E = 1 / LN2
EXP2_DOUBLE = [float(LN2**k / math.factorial(k)) for k in range(14)]
LOG2_DOUBLE = [float(2 / (LN2 * (2 * j + 1))) for j in range(12)]
SQRT_HALF = math.sqrt(0.5)
EXP2_FLOAT = [  # of f^6 .. f^0, float32
    float.fromhex(text)
    for text in (
        "0x1.4868a2p-13",
        "0x1.5fcd4ep-10",
        "0x1.3b2414p-7",
        "0x1.c6ad14p-5",
        "0x1.ebfbeap-3",
        "0x1.62e434p-1",
        "0x1p+0",
    )
]


# --- section 2: elementary functions -------------------------------------------------------------


def fma32(a, b, c):
    """Correctly rounded float32 a * b + c: exact product in float64, sum rounded to odd."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    c = np.asarray(c, np.float64)
    total = product + c
    t = total - product
    error = (product - (total - t)) + (c - t)  # exact (TwoSum)
    even = (total.view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, odd, total).astype(np.float32)


def fma64(a: float, b: float, c: float) -> float:
    return float(Fraction(a) * Fraction(b) + Fraction(c))


def exp2_nonpositive(z):
    """float32 2^z for z <= 0."""
    z = np.asarray(z, np.float32)
    small = z < -125
    z = np.where(small, np.float32(0), z)
    n = np.rint(z)
    f = z - n
    p = np.full(z.shape, EXP2_FLOAT[0], np.float32)
    for coefficient in EXP2_FLOAT[1:]:
        p = fma32(p, f, np.float32(coefficient))
    return np.where(small, np.float32(0), np.ldexp(p, n.astype(np.int32)))


def exp2_double(z: float) -> float:
    if z < -1000:
        return 0.0
    n = round(z)  # ties to even
    p = 0.0
    for coefficient in reversed(EXP2_DOUBLE):
        p = fma64(p, z - n, coefficient)
    return math.ldexp(p, n)


def log2_double(y: float) -> float:
    m, k = math.frexp(y)
    if m < SQRT_HALF:
        m, k = m * 2, k - 1
    s = (m - 1) / (m + 1)
    p = 0.0
    for coefficient in reversed(LOG2_DOUBLE):
        p = fma64(p, s * s, coefficient)
    return fma64(s, p, float(k))


# --- section 5: random numbers -------------------------------------------------------------------


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC 2011)."""
    mask = 0xFFFFFFFF
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & mask, (a >> 32) ^ c3 ^ k1, a & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0, c1, c2, c3


def uniform(seed: int, position: int, stream: str, slot: int = 0) -> float:
    mask = 0xFFFFFFFF
    counter = (position & mask, position >> 32 & mask, STREAMS[stream], slot)
    w0, w1, _, _ = philox(counter, (seed & mask, seed >> 32 & mask))
    return (((w1 << 32 | w0) >> 11) | 1) * 2.0**-53


# --- sections 1 to 4: a row, its weights, its sum, its filters ------------------------------------


def tiles(size: int) -> list[slice]:
    return [slice(start, min(start + TILE, size)) for start in range(0, size, TILE)]


def tile_sum(values: np.ndarray) -> np.float32:
    """256 lanes in index order, then a halving tree."""
    padded = np.zeros(TILE, np.float32)
    padded[: len(values)] = values
    lanes = np.zeros(LANES, np.float32)
    for row in padded.reshape(-1, LANES):
        lanes = lanes + row
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes[0]


@dataclass
class Law:
    """A filtered row. `probability(i)` and `tile_totals()` are section 3."""

    x: np.ndarray  # [V] float32, as read
    kept: np.ndarray  # [V] bool
    weight: np.ndarray  # [V] float32, 0 where not kept
    tile_scale: list[float]  # e_t
    maximum: float  # M
    c: float
    total: float  # Z
    has_nan: bool
    is_empty: bool
    is_greedy: bool

    def tile_totals(self) -> list[float]:
        sums = [float(tile_sum(self.weight[t])) for t in tiles(len(self.x))]
        return [s * e for s, e in zip(sums, self.tile_scale)]

    def probability(self, i: int) -> float:
        if self.is_empty or i >= len(self.x):
            return 0.0
        return float(self.weight[i]) * self.tile_scale[i // TILE] / self.total

    def probabilities(self) -> np.ndarray:
        return np.array([self.probability(i) for i in range(len(self.x))])

    def log_probability(self, i: int) -> np.float32:
        if self.is_empty or not self.kept[i]:
            return np.float32(-np.inf)
        if self.is_greedy:
            return np.float32(0)
        log2_p = (float(self.x[i]) - self.maximum) * self.c - log2_double(self.total)
        return np.float32(log2_p * float(LN2)) + np.float32(0)  # -0 becomes +0


def read_row(logits: np.ndarray) -> tuple[np.ndarray, bool]:
    x = np.asarray(logits, np.float32)
    nan = np.isnan(x)
    return np.where(nan, np.float32(-np.inf), np.minimum(x, FLT_MAX)), bool(nan.any())


def add_in_order(values) -> float:
    """Plain float64 additions (`sum` compensates since Python 3.12)."""
    total = 0.0
    for value in values:
        total += value
    return total


def row_total(weight, tile_scale) -> float:
    sums = (float(tile_sum(weight[t])) for t in tiles(len(weight)))
    return add_in_order(s * e for s, e in zip(sums, tile_scale))


def row_statistics(logits, temperature) -> Law:
    """The unfiltered law; a one-hot at the argmax if `temperature` is 0."""
    x, has_nan = read_row(logits)
    maximum, is_empty = float(x.max()), bool(x.max() == -np.inf)
    weight, tile_scale, c = np.zeros_like(x), [], 1.0
    if temperature == 0 and not is_empty:
        kept = np.arange(len(x)) == np.argmax(x)
        scales = [1.0 if kept[t].any() else 0.0 for t in tiles(len(x))]
        return Law(x, kept, kept.astype(np.float32), scales, maximum, c, 1.0, has_nan, False, True)
    if temperature != 0:
        c32 = np.float32(float(LOG2_E) / float(np.float32(temperature)))
        c = float(np.clip(c32, np.float32(2.0**-100), np.float32(2.0**100)))
    for t in tiles(len(x)):
        top = x[t].max()
        if top == -np.inf:
            tile_scale.append(0.0)
            continue
        with np.errstate(over="ignore"):
            w = exp2_nonpositive((x[t] - top) * np.float32(c))
        weight[t] = np.where(x[t] == -np.inf, np.float32(0), w)
        tile_scale.append(exp2_double((float(top) - maximum) * c))
    total = row_total(weight, tile_scale)
    kept = x > -np.inf
    return Law(x, kept, weight, tile_scale, maximum, c, total, has_nan, is_empty, temperature == 0)


def filter_cut(law: Law, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Law:
    """Section 4: what the filters keep, renormalised."""
    if law.is_empty or law.is_greedy:
        return law
    x, size = law.x, len(law.x)
    order = np.lexsort((np.arange(size), -x))  # x descending, id ascending
    kept = x > -np.inf
    if 0 < top_k < size:
        kept[order[top_k:]] = False
    if top_p < 1:
        kept = keep_top_p(law, kept, order, float(np.float32(top_p)))
    if min_p > 0:
        bound = log2_double(float(np.float32(min_p))) if min_p < 1 else 0.0
        kept &= (x.astype(np.float64) - law.maximum) * law.c >= bound
    weight = np.where(kept, law.weight, np.float32(0))
    total = row_total(weight, law.tile_scale)
    return Law(
        x, kept, weight, law.tile_scale, law.maximum, law.c, total, law.has_nan, False, False
    )


def keep_top_p(law: Law, kept, order, top_p: float) -> np.ndarray:
    x = law.x
    if top_p <= 0:
        return kept & (np.arange(len(x)) == order[0])

    def mass(keep) -> float:
        return row_total(np.where(keep, law.weight, np.float32(0)), law.tile_scale)

    need = top_p * mass(kept)
    values = np.unique(x[kept])[::-1]
    low, high = 0, len(values) - 1  # G(values[i]) grows with i and G(last) is all there is
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if mass(kept & (x >= values[middle])) >= need else (middle + 1, high)
        )
    cut = values[low]
    keep = kept & (x > cut)
    reached = mass(keep)
    for i in np.flatnonzero(kept & (x == cut)):
        keep[i] = True
        reached += float(law.weight[i]) * law.tile_scale[i // TILE]
        if reached >= need:
            break
    return keep


# --- section 6: draws ----------------------------------------------------------------------------


def draw(weight: np.ndarray, totals: list[float], u: float) -> int:
    """Inverse CDF: first the tile, then the entry inside it."""
    target = u * add_in_order(totals)
    before, chosen, chosen_before = 0.0, None, 0.0
    for t, total in enumerate(totals):
        if total > 0:
            chosen, chosen_before = t, before
            if before + total > target:
                break
        before += total
    w = weight[tiles(len(weight))[chosen]].astype(np.float64)
    exponent = math.frexp(float(w.max()))[1]
    q = np.floor(w * 2.0 ** (50 - exponent)).astype(np.int64)
    whole = int(q.sum())
    k = math.floor(max((target - chosen_before) / totals[chosen], 0.0) * float(whole))
    inside = int(np.searchsorted(np.cumsum(q), min(k, whole - 1), side="right"))
    return chosen * TILE + inside
