"""Failures seen in the field, each kind whole. tests/CASES.md lists them."""

import mmap

import numpy as np
import pytest
import torch
from kit import (
    METHODS,
    NEG_INF,
    bits_equal,
    log_rows,
    one_hot_row,
    random_batch,
    same,
    verify,
    verify_many,
)
from lawkit import assert_law

from dspark_ext import sampling

pytestmark = pytest.mark.usefixtures("backend")

ALL_METHODS = [*METHODS, "greedy"]
NAN = float("nan")


def emitted(out, b: int) -> list[int]:
    return out.token_ids[b, : out.num_emitted[b]].tolist()


# --- 001: placeholders and foreign ids -----------------------------------------------------------


def placeholder_rows() -> torch.Tensor:
    quarter = log_rows([[0.25] * 4 + [0] * 4])[0]
    return torch.stack([one_hot_row(8, 2), quarter, one_hot_row(8, 6), one_hot_row(8, 7)])


@pytest.mark.no_emulator
@pytest.mark.parametrize("bad_id", [-1, -7, 8, 9, 2**40, -(2**62)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("draft", ["dense", "onehot"])
def test_br001_placeholder_ends_the_block(draft, method, bad_id):
    probs = torch.full((3, 8), 1 / 8) if draft == "dense" else None
    out = verify_many(
        placeholder_rows(), [2, bad_id, 5], batch=4000, draft_probs=probs, method=method
    )
    assert (out.num_emitted == 2).all() and (out.num_accepted == 1).all()
    assert (out.token_ids[:, 0] == 2).all() and (out.token_ids[:, 2:] == -1).all()
    assert_law(out.token_ids[:, 1], [0.25] * 4 + [0] * 4)
    assert (out.status == (0 if bad_id == -1 else 16)).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("slot", [0, 1, 2])
def test_br001_placeholder_at_every_slot(slot, temperature):
    ids = [2, 5, 6]
    rows = torch.stack([one_hot_row(8, x) for x in (2, 5, 6, 7)])
    ids[slot] = -1
    out = verify_many(rows, ids, batch=2, temperature=temperature)
    expected = [2, 5, 6][: slot + 1]
    assert [emitted(out, b) for b in range(2)] == [expected, expected]


def test_br001_greedy_placeholder_takes_the_lowest_argmax():
    out = verify_many(placeholder_rows(), [2, -1, 5], batch=3, temperature=0.0)
    assert [emitted(out, b) for b in range(3)] == [[2, 0]] * 3


# --- 002: rows that hold NaN ---------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [1000, 4097], ids=lambda v: f"V={v}")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("nan", ["all", "one"])
@pytest.mark.parametrize("method", ALL_METHODS)
def test_br002_nan_row_is_flagged(method, nan, temperature, vocab, generator):
    target, ids, draft = random_batch(generator, [1, 1], vocab, 1)
    healthy = verify(
        target[2:], ids[1:], draft[1:], method=method, temperature=temperature,
        seeds=torch.tensor([9]),
    )  # fmt: skip
    if nan == "all":
        target[:2] = NAN
    else:
        target[:2, 3] = NAN
    out = verify(
        target, ids, draft, method=method, temperature=temperature, seeds=torch.tensor([8, 9]),
    )  # fmt: skip
    assert out.num_accepted[0] == 0 and out.num_emitted[0] == 1
    assert 0 <= out.last_token[0] < vocab and out.last_token[0] != 3
    assert out.status[0] == (1 | 4 if nan == "all" else 1)
    for got, alone in zip(out[:5], healthy[:5], strict=True):
        assert bits_equal(got[1:], alone)


@pytest.mark.no_emulator
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", ["nan logits", "empty logits", "nan prob", "negative", "above 1"])
def test_br002_invalid_draft_distribution_is_no_proposal(bad, method):
    rows = log_rows([[0.1, 0.2, 0.3, 0.4]] * 2)
    draft = torch.zeros(1, 4)
    if "logits" in bad:
        draft[0, 2] = NAN
        draft = torch.full((1, 4), NEG_INF) if bad == "empty logits" else draft
        out = verify_many(rows, [1], draft, batch=5000, method=method)
    else:
        draft[0, 1] = {"nan prob": NAN, "negative": -0.5, "above 1": 1.5}[bad]
        out = verify_many(rows, [1], batch=5000, draft_probs=draft, method=method)
    assert (out.num_accepted == 0).all() and (out.status == 2).all()
    assert_law(out.last_token, [0.1, 0.2, 0.3, 0.4])


def test_br002_row_without_mass_yields_id_zero():
    rows = torch.full((2, 9), NEG_INF)
    for temperature in (0.0, 1.0):
        out = verify_many(rows, [0], batch=2, temperature=temperature, return_logprobs=True)
        assert out.last_token.tolist() == [0, 0] and out.num_accepted.tolist() == [0, 0]
        assert (out.status == 4).all() and (out.logprobs[:, 0] == NEG_INF).all()


# --- 003: offsets past 2^31 ----------------------------------------------------------------------

BIG_ROWS, BIG_STRIDE, SMALL_VOCAB = 963 * 16, 151936, 64


@pytest.fixture(scope="module")
def far_rows() -> torch.Tensor:
    """[15408, 64] bf16 with a row stride of 151936: 4.7 GB of address space, one page per row."""
    memory = mmap.mmap(-1, BIG_ROWS * BIG_STRIDE * 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    flat = torch.from_numpy(np.frombuffer(memory, np.int16)).view(torch.bfloat16)
    rows = flat.as_strided((BIG_ROWS, SMALL_VOCAB), (BIG_STRIDE, 1))
    index = torch.arange(BIG_ROWS)
    rows[index, 7919 * index % SMALL_VOCAB] = 10
    return rows


@pytest.mark.no_emulator
def test_br003_target_offsets_past_2_to_31(far_rows):
    peaks = (7919 * torch.arange(BIG_ROWS) % SMALL_VOCAB).reshape(963, 16)
    out = verify(far_rows, peaks[:, :15].contiguous(), temperature=0.0)
    assert (out.num_accepted == 15).all()
    assert torch.equal(out.token_ids, peaks)


@pytest.mark.no_emulator
def test_br003_filters_and_samples_past_2_to_31(far_rows):
    options = {"temperature": 1.0, "top_k": 5, "top_p": 0.9}
    near = far_rows[-100:].clone()
    assert bits_equal(
        sampling.target_probs(far_rows, **options)[-100:], sampling.target_probs(near, **options)
    )
    seeds, positions = torch.arange(BIG_ROWS), torch.zeros(BIG_ROWS, dtype=torch.int64)
    far = sampling.sample(far_rows, seeds=seeds, positions=positions, **options)[0][-100:]
    assert torch.equal(
        far, sampling.sample(near, seeds=seeds[-100:], positions=positions[-100:], **options)[0]
    )


@pytest.mark.no_emulator
@pytest.mark.parametrize("method", METHODS)
def test_br003_draft_offsets_past_2_to_31(far_rows, method):
    draft = far_rows[: 963 * 15].unflatten(0, (963, 15))
    target = far_rows[:BIG_ROWS]
    ids = (7919 * torch.arange(963 * 15) % SMALL_VOCAB).reshape(963, 15)
    out = verify(target, ids, draft, method=method)
    few = slice(-10, None)
    near = verify(
        target[-160:].clone(), ids[few], draft[few].clone(), method=method,
        seeds=torch.arange(963)[few],
    )  # fmt: skip
    for got, want in zip(out[:5], near[:5], strict=True):
        assert bits_equal(got[few], want)


# --- 004: zero mass ------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [1.0, 1e-38, 0.0])
@pytest.mark.parametrize("method", METHODS)
def test_br004_zero_mass_is_never_accepted(method, q):
    uniforms = torch.tensor([[0.0, u] for u in (0.0, 0.5, 1 - 2**-53)], dtype=torch.float64)
    probs = torch.tensor([[1 - q if q < 1 else 0.0, 0, q, 0]])
    out = verify_many(
        log_rows([[0, 1, 0, 0]] * 2), [2], batch=3, draft_probs=probs, method=method,
        uniforms=uniforms,
    )  # fmt: skip
    assert out.num_accepted.tolist() == [0, 0, 0] and out.last_token.tolist() == [1, 1, 1]


@pytest.mark.parametrize("u", [0.0, 2**-53, 0.5, 1 - 2**-53, 1.0])
def test_br004_draws_skip_zero_mass(u):
    uniforms = torch.tensor([[1.0, u]], dtype=torch.float64)
    rows = log_rows([[0, 0.2, 0, 0.5, 0.3, 0]] * 2)
    probs = torch.tensor([[0, 0.3, 0.1, 0.5, 0.0, 0.1]])
    out = verify_many(rows, [2], batch=1, draft_probs=probs, uniforms=uniforms, method="token")
    assert emitted(out, 0) == [4]
    zero = torch.zeros(1, dtype=torch.int64)
    final = uniforms[0, 1:].contiguous()
    ids, _ = sampling.sample(rows[:1], temperature=1.0, uniforms=final, seeds=zero, positions=zero)
    assert ids[0] in (1, 3, 4)


# --- 005 to 007: temperature 0, seeds, history ----------------------------------------------------


def test_br005_mixed_temperatures_at_the_edge_of_fp16(generator):
    target = (torch.randn(9, 16, generator=generator).clamp(-3, 3) * 2e4).half()
    ids = torch.randint(0, 16, (3, 2), generator=generator)
    out = verify(target, ids, temperature=torch.tensor([0.0, 1.0, -0.0]))
    best = target.float().argmax(1).reshape(3, 3)
    for b in (0, 2):
        accepted = 0
        while accepted < 2 and ids[b, accepted] == best[b, accepted]:
            accepted += 1
        assert emitted(out, b) == best[b, : accepted + 1].tolist()
    assert (out.num_emitted >= 1).all()
    alone = verify(target[3:6], ids[1:2], temperature=1.0, seeds=torch.tensor([1]))
    assert emitted(out, 1) == emitted(alone, 0)


@pytest.mark.parametrize("method", METHODS)
def test_br006_seed_decides_and_nothing_else(method):
    batch, vocab, width = 8, 64, 4
    target, draft = torch.zeros(batch * 5, vocab), torch.zeros(batch, width, vocab)
    ids = torch.arange(32).reshape(8, 4)
    seeds = torch.arange(1, 9)
    out = verify(target, ids, draft, seeds=seeds, method=method)
    assert same(out[:5], verify(target, ids, draft, seeds=seeds, method=method)[:5])
    order = torch.tensor([3, 0, 7, 5, 1, 2, 6, 4])
    permuted = verify(target, ids[order], draft, seeds=seeds[order], method=method)
    assert same([x[order] for x in out[:5]], permuted[:5])
    for b in range(batch):
        single = verify(
            target[:5], ids[b : b + 1], draft[:1], seeds=seeds[b : b + 1], method=method
        )
        assert same([x[b : b + 1] for x in out[:5]], single[:5])
    changed = seeds.clone()
    changed[2] = 12345
    other = verify(target, ids, draft, seeds=changed, method=method)
    kept = torch.arange(batch) != 2
    assert same([x[kept] for x in out[:5]], [x[kept] for x in other[:5]])
    assert len({tuple(row) for row in out.token_ids[:, -1:].tolist()}) > 1


@pytest.mark.parametrize("method", METHODS)
def test_br007_no_draft_step_consumes_nothing(method, generator):
    target, ids, draft = random_batch(generator, [3], 64, 3)
    call = {"method": method, "seeds": torch.tensor([5]), "positions": torch.tensor([11])}
    before = verify(target, ids, draft, **call)
    verify(
        target[:1],
        ids,
        draft,
        num_drafts=[0],
        seeds=torch.tensor([5]),
        positions=torch.tensor([10]),
    )
    assert same(before[:5], verify(target, ids, draft, **call)[:5])
    both = verify(
        torch.cat([target[:1], target]), ids.repeat(2, 1), draft.repeat(2, 1, 1), num_drafts=[0, 3],
        method=method, seeds=torch.tensor([5, 5]), positions=torch.tensor([10, 11]),
    )  # fmt: skip
    assert same(before[:5], [x[1:] for x in both[:5]])
