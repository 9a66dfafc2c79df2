"""The device kernels, as the emulator runs them, against the CPU backend: every bit."""

import emulated
import pytest
import sampling_sweep as sweep
from kit import same

from dspark_ext import sampling

VOCABS = [1, 2, 31, 255, 256, 257, 4097, 32000]
LARGE_VOCABS = [129280, 151936]


def as_tuple(out) -> tuple:
    return tuple(out) if isinstance(out, tuple) else (out,)


def agree(function, inputs: dict, **settings) -> None:
    """One call on both backends, which leave the inputs alone."""
    want = as_tuple(function(**inputs))
    before = sweep.snapshot(inputs)
    with emulated.operators(**settings):
        got = as_tuple(function(**inputs))
    assert sweep.snapshot(inputs) == before
    assert same(want, got), f"{settings}: {[(w, g) for w, g in zip(want, got, strict=True)]}"


def check_all(seed: int, vocab: int, settings: dict, **limits) -> None:
    """The four operators on the inputs of one seed."""
    case = sweep.verify_case(seed, vocab, **limits)
    agree(sampling.rejection_sample, {**case, "return_logprobs": seed % 3 != 0}, **settings)
    agree(sampling.block_acceptance, sweep.acceptance_case(case), **settings)
    rows = sweep.row_case(seed, vocab)
    agree(sampling.target_probs, rows, **settings)
    draw = sweep.draw_case(seed, len(rows["logits"]))
    agree(sampling.sample, {**rows, **draw}, **settings)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("vocab", VOCABS[:6], ids=lambda v: f"V={v}")
def test_small_vocabularies(vocab, warp_size):
    for seed in range(6):
        settings = {"warp_size": warp_size, "seed": seed, "level": emulated.FULL}
        check_all(1000 * warp_size + seed, vocab, settings)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES[1:])
@pytest.mark.parametrize("vocab", VOCABS[6:], ids=lambda v: f"V={v}")
def test_vocabularies_of_several_tiles(vocab, warp_size):
    for seed in range(3 if vocab < 10_000 else 2):
        settings = {"warp_size": warp_size, "seed": seed}
        check_all(2000 * warp_size + seed, vocab, settings, max_batch=3, max_drafts=3)


@pytest.mark.slow
@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("vocab", VOCABS, ids=lambda v: f"V={v}")
def test_more_of_everything(vocab, warp_size):
    for seed in range(10, 60 if vocab < 4097 else 20):
        settings = {"warp_size": warp_size, "seed": seed}
        check_all(seed, vocab, settings, max_batch=8 if vocab < 4097 else 3, max_drafts=16)


@pytest.mark.slow
@pytest.mark.parametrize("vocab", LARGE_VOCABS, ids=lambda v: f"V={v}")
def test_large_vocabularies(vocab):
    for seed in range(4):
        settings = {"warp_size": (32, 64)[seed % 2], "seed": seed // 2}
        check_all(seed, vocab, settings, max_batch=2, max_drafts=5)


@pytest.mark.slow
@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
def test_large_batches(warp_size):
    for seed in range(4):
        settings = {"warp_size": warp_size, "seed": seed, "level": emulated.FULL}
        check_all(seed, 300, settings, max_batch=64, max_drafts=16)
