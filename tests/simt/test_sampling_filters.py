"""Filters on the emulator give the CPU backend's bits, and read a peaked row once."""

import emulated
import numpy as np
import pytest
import torch
from emulated import FULL, WARP_SIZES
from kit import FLOATS, bits_equal, name

from dspark_ext import sampling

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def row_of(kind: str, vocab: int, rng) -> np.ndarray:
    row = (rng.standard_normal(vocab) * 3).astype(np.float32)
    at = rng.integers(vocab)
    if kind == "flat":
        row /= 3
    elif kind == "peaked":  # as a language model's: a power law, in any order
        row = (-1.6 * np.log(rng.permutation(vocab) + 1) + 0.1 * row).astype(np.float32)
    elif kind == "confident":
        row[at] = 40
    elif kind == "ties":
        row = np.round(row)
    elif kind == "equal":
        row[:] = 0.5
    elif kind == "zeros":
        row = np.copysign(np.zeros(vocab, np.float32), row)
    elif kind in ("masked", "few", "lowest"):
        row[rng.random(vocab) < (0.99 if kind == "few" else 0.7)] = (
            -3e38 if kind == "lowest" else -np.inf
        )
        row[at] = 1
    elif kind == "front":  # frequent tokens first
        row[: vocab // 20] += 8
    elif kind == "nan":
        row[at] = np.nan
    if kind in ("infinite", "nan"):
        row[rng.integers(vocab, size=2)] = np.inf
    return row


KINDS = [
    "normal", "flat", "peaked", "confident", "ties", "equal", "zeros", "masked", "few", "lowest",
    "front", "infinite", "nan",
]  # fmt: skip


def filters_of(vocab: int, rng) -> list[dict]:
    """Each filter alone at its ends and in between, then all of them at random."""
    some = [{"top_k": k} for k in (1, 2, 50, vocab // 2, vocab - 1)]
    some += [{"top_p": p} for p in (0.0, 1e-9, 0.1, 0.5, 0.9, 0.9999, 1 - 2**-24)]
    some += [{"min_p": p} for p in (1e-6, 0.05, np.exp(-1), 1.0)]  # of rounded rows: a tie
    for _ in range(6):
        some.append(
            {"top_k": int(rng.integers(vocab + 1)), "top_p": float(rng.random())}
            | ({"min_p": float(rng.random() / 3)} if rng.random() < 0.5 else {})
        )
    return [OFF | f for f in some]


def check(kinds, vocab, dtype, rng, filters=None, shift=0, **emulation):
    filters = filters or filters_of(vocab, rng)
    for kind in kinds:
        memory = torch.zeros(len(filters) * vocab + shift, dtype=dtype)
        logits = memory[shift:].view(len(filters), vocab)  # from an odd address on
        logits[:] = torch.tensor(row_of(kind, vocab, rng)).to(dtype)
        settings = {key: torch.tensor([f[key] for f in filters]) for key in OFF}
        temperature = float(rng.choice([0.01, 0.3, 1.0, 50.0]))
        want = sampling.target_probs(logits, temperature=temperature, **settings)
        with emulated.operators(**emulation):
            got = sampling.target_probs(logits, temperature=temperature, **settings)
        for i, f in enumerate(filters):
            assert bits_equal(got[i], want[i]), (kind, temperature, f)


def third(number: int) -> list[str]:
    """Of the kinds, so that three numbers in a row give them all."""
    return KINDS[number % 3 :: 3]


def small_rows(kinds_of, dtype, warp_size, rng):
    for number, vocab in enumerate((1, 2, 31, 255, 256, 257, 1500, 4097)):
        seed, shift = int(rng.integers(100)), int(rng.integers(8))
        how = {"warp_size": warp_size, "seed": seed, "level": FULL}
        check(kinds_of(number), vocab, dtype, rng, shift=shift, **how)


@pytest.mark.parametrize("warp_size", WARP_SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_small_rows(dtype, warp_size, rng):
    """Every kind and length with every dtype once, and with every warp size once."""
    first = FLOATS.index(dtype) + WARP_SIZES.index(warp_size)
    small_rows(lambda number: third(first + number), dtype, warp_size, rng)


@pytest.mark.slow
@pytest.mark.parametrize("warp_size", WARP_SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_small_rows_of_every_kind(dtype, warp_size, rng):
    small_rows(lambda number: KINDS, dtype, warp_size, rng)


def large_rows(kinds, vocab, warp_size, rng):
    filters = filters_of(vocab, rng)
    for kind in kinds:
        dtype = FLOATS[int(rng.integers(len(FLOATS)))]
        some = [filters[i] for i in rng.choice(len(filters), 4, replace=False)]
        check([kind], vocab, dtype, rng, some, warp_size=warp_size)


LARGE = pytest.mark.parametrize("vocab", [32000, 129280], ids=lambda v: f"V={v}")


@pytest.mark.parametrize("warp_size", WARP_SIZES)
@LARGE
def test_large_rows(vocab, warp_size, rng):
    """Every kind and length once."""
    large_rows(third(WARP_SIZES.index(warp_size)), vocab, warp_size, rng)


@pytest.mark.slow
@pytest.mark.parametrize("warp_size", WARP_SIZES)
@LARGE
def test_large_rows_of_every_kind(vocab, warp_size, rng):
    large_rows(KINDS, vocab, warp_size, rng)


@pytest.mark.parametrize("warp_size", WARP_SIZES)
@pytest.mark.parametrize("spread", [0.0, 1e-3], ids=["equal", "distinct"])
@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_as_many_entries_as_the_list_holds(surplus, spread, warp_size, rng):
    """Or one more, or less, far above the others, in tiles of very different shares."""
    count, vocab = 4096 + surplus, 20_001
    row = np.full(vocab, -60, np.float32)
    at = np.concatenate([rng.permutation(4096)[:3000], [vocab - 1], np.arange(5000, 9000)])[:count]
    row[at] = 5 + spread * rng.standard_normal(count)
    filters = [OFF | {"top_k": k} for k in (1, count // 2, count - 1, count, count + 1)]
    filters += [OFF | {"top_p": p} for p in (0.5, 1 - 1e-4, 1 - 1e-7)]
    filters += [OFF | {"top_k": count, "top_p": 0.9}, OFF | {"min_p": 0.5}]
    logits = torch.tensor(row).expand(len(filters), -1).contiguous()
    settings = {key: torch.tensor([f[key] for f in filters]) for key in OFF}
    want = sampling.target_probs(logits, **settings)
    with emulated.operators(warp_size=warp_size, level=FULL):
        got = sampling.target_probs(logits, **settings)
    for i, f in enumerate(filters):
        assert bits_equal(got[i], want[i]), f


def test_the_longest_row(rng):
    """That a device takes: 1024 tiles, of which the last holds one entry."""
    vocab = 1023 * 4096 + 1
    filters = [OFF | {"top_k": 50}, OFF | {"top_k": 5000, "top_p": 0.9, "min_p": 0.01}]
    check(["flat", "ties"], vocab, torch.bfloat16, rng, filters)


def passes(logits, **filters) -> float:
    """Over a row, besides its statistics, in loads of 16 bytes."""
    moved = emulated.counters(lambda: sampling.target_probs(logits, **filters))
    return moved["kernels"]["filter_laws"]["accesses_16"] * 16 / (logits.numel() * 4)


@pytest.mark.parametrize("kind", ["peaked", "confident", "flat", "few"])
def test_top_k_reads_a_row_once(kind, rng):
    logits = torch.tensor(row_of(kind, 129280, rng))[None]
    assert passes(logits, top_k=50, top_p=0.9) <= 1


@pytest.mark.parametrize("width", [1.0, 2.2, 4.0])
def test_top_p_reads_a_flat_row_a_few_times(width, rng):
    logits = torch.tensor(width * rng.standard_normal((1, 129280)), dtype=torch.float32)
    assert passes(logits, top_p=0.9) <= 3
    assert passes(logits, top_p=0.9999) <= 6


@pytest.mark.parametrize("kind, most", [("ties", 6), ("equal", 6), ("lowest", 6), ("infinite", 20)])
def test_rows_that_mislead_the_profile_are_read_a_few_times(kind, most, rng):
    """Thousands of equal entries, or entries whose weights are all 0."""
    logits = torch.tensor(row_of(kind, 129280, rng))[None]
    for filters in ({"top_k": 3000}, {"top_k": 129280 // 2}, {"top_p": 0.99}):
        assert passes(logits, **filters) <= most, filters
