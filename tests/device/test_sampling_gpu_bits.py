"""The GPU against the CPU backend: every bit of every output."""

import backends
import pytest
import sampling_sweep as sweep
from kit import same

from dspark_ext import sampling

VOCABS = [1, 2, 31, 255, 256, 257, 4097, 32000, 129280, 151936]


def agree(function, inputs: dict) -> None:
    want = function(**inputs)
    before = sweep.snapshot(inputs)
    with backends.running("cuda"):
        got = function(**inputs)
    assert sweep.snapshot(inputs) == before
    if not isinstance(want, tuple):
        want, got = (want,), (got,)
    assert same(want, got), f"{want} != {got}"


def check_all(seed: int, vocab: int, **limits) -> None:
    case = sweep.verify_case(seed, vocab, **limits)
    agree(sampling.rejection_sample, {**case, "return_logprobs": seed % 3 != 0})
    agree(sampling.block_acceptance, sweep.acceptance_case(case))
    rows = sweep.row_case(seed, vocab)
    agree(sampling.target_probs, rows)
    agree(sampling.sample, {**rows, **sweep.draw_case(seed, len(rows["logits"]))})


@pytest.mark.parametrize("vocab", VOCABS, ids=lambda v: f"V={v}")
def test_random_batches(vocab):
    for seed in range(20 if vocab <= 4097 else 6):
        check_all(seed, vocab, max_drafts=5 if seed % 2 else 16)


@pytest.mark.parametrize("vocab", [300, 32000], ids=lambda v: f"V={v}")
def test_large_batches(vocab):
    for seed in range(3):
        check_all(seed, vocab, max_batch=64, max_drafts=16 if vocab == 300 else 5)


@pytest.mark.slow
@pytest.mark.parametrize("vocab", VOCABS, ids=lambda v: f"V={v}")
def test_more_batches(vocab):
    for seed in range(100, 400 if vocab <= 4097 else 120):
        check_all(seed, vocab, max_batch=8, max_drafts=16)


def test_run_to_run():
    """The same call twice, with other work in between."""
    case = sweep.verify_case(8, 32000, max_batch=16)
    with backends.running("cuda"):
        first = sampling.rejection_sample(**case)
        check_all(9, 4097)
        with backends.running("cuda"):
            assert same(first[:5], sampling.rejection_sample(**case)[:5])
