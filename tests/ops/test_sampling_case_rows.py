"""Failures seen in the field: strides, ragged batches, ties, filters. tests/CASES.md lists them."""

import pytest
import torch
from kit import (
    FLOATS,
    METHODS,
    NEG_INF,
    bits_equal,
    log_rows,
    name,
    one_hot_row,
    random_batch,
    same,
    starts,
    verify,
    verify_many,
)

from dspark_ext import sampling

pytestmark = pytest.mark.usefixtures("backend")

ALL_METHODS = [*METHODS, "greedy"]
NAN = float("nan")

# --- 013: strides --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("method", METHODS)
def test_br013_padded_rows(method, dtype, generator):
    target, ids, draft = random_batch(generator, [2, 2], 300, 2, dtype)
    want = verify(target, ids, draft, method=method)
    padded_target = torch.full((6, 364), 1e4, dtype=dtype)[:, :300].copy_(target)
    padded_draft = torch.full((2, 3, 364), 1e4, dtype=dtype)[:, :2, :300].copy_(draft)
    padded_ids = torch.full((2, 7), 5)[:, 2:4].copy_(ids)
    assert same(want[:5], verify(padded_target, padded_ids, padded_draft, method=method)[:5])
    probs = draft.float().softmax(-1)
    padded_probs = torch.full((2, 3, 364), 1.0)[:, :2, :300].copy_(probs)
    assert same(
        verify(target, ids, draft_probs=probs, method=method)[:5],
        verify(padded_target, ids, draft_probs=padded_probs, method=method)[:5],
    )
    assert bits_equal(
        sampling.target_probs(target, temperature=1.0),
        sampling.target_probs(padded_target, temperature=1.0),
    )


@pytest.mark.parametrize("which", ["target_logits", "draft_logits", "draft_probs"])
def test_br013_column_stride_is_right_or_refused(which, generator):
    target, ids, draft = random_batch(generator, [2, 2], 50, 2)
    options = (
        {"draft_probs": draft.softmax(-1)} if which == "draft_probs" else {"draft_logits": draft}
    )
    want = verify(target, ids, **options)
    options["target_logits"] = target
    options[which] = options[which].mT.contiguous().mT
    assert options[which].stride(-1) != 1
    try:
        got = verify(options.pop("target_logits"), ids, **options)
    except (RuntimeError, ValueError) as error:
        assert which in str(error) and "contiguous" in str(error)
    else:
        assert same(want[:5], got[:5])


def test_br013_transposed_ids_and_overlapping_rows(generator):
    target, ids, draft = random_batch(generator, [2, 2], 50, 2)
    want = verify(target, ids, draft)
    try:
        got = verify(target, ids.T.contiguous().T, draft)
    except (RuntimeError, ValueError) as error:
        assert "draft_token_ids" in str(error)
    else:
        assert same(want[:5], got[:5])
    line = torch.randn(80, generator=generator)
    windows = line.as_strided((6, 50), (1, 1))
    assert same(verify(windows.contiguous(), ids, draft)[:5], verify(windows, ids, draft)[:5])


# --- 014 to 020 ----------------------------------------------------------------------------------


@pytest.mark.no_emulator
@pytest.mark.parametrize("method", METHODS)
def test_br014_zero_rows_and_zero_q(method, generator):
    rows = torch.randn(6, 4, generator=generator)
    probs = torch.rand(5, 4, generator=generator)
    probs /= probs.sum(1, keepdim=True)
    probs[3:] = 0
    out = verify_many(rows, [1, 0, 1, -1, -1], batch=10_000, draft_probs=probs, method=method)
    assert out.num_accepted.max() == 3 and (out.status == 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("p", "accepted"), [(0.0, 0), (0.25, 1)])
def test_br014_q_zero_accepts_iff_p_is_positive(p, accepted, method):
    rows = log_rows([[1 - p, p, 0]] * 2)
    out = verify_many(rows, [1], batch=500, draft_probs=[[0.5, 0.0, 0.5]], method=method)
    assert (out.num_accepted == accepted).all() and (out.status == 0).all()


@pytest.mark.parametrize("method", [*ALL_METHODS, "synthetic"])
@pytest.mark.parametrize("temperature", [0.0, 1e-3, 1.0, 50.0])
def test_br015_rows_after_a_placeholder_do_not_matter(temperature, method):
    rows = torch.stack([one_hot_row(8, x) for x in (3, 6, 1)])
    options = {"method": method, "temperature": temperature}
    if method == "synthetic":
        options["synthetic_acceptance_rates"] = torch.ones(2)
    out = verify_many(rows, [3, -1], batch=20, **options)
    assert out.token_ids.tolist() == [[3, 6, -1]] * 20
    rows[2] = NAN
    assert same(out[:5], verify_many(rows, [3, -1], batch=20, **options)[:5])


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("top_p", [0.9999999, 1.0, 1e-9])
def test_br016_top_p_near_its_ends(top_p, dtype, generator):
    rows = torch.randn(100, 32000, generator=generator).to(dtype)
    ids, _ = sampling.sample(
        rows, temperature=1.0, top_p=top_p, seeds=torch.arange(100), positions=torch.arange(100)
    )
    assert (ids >= 0).all() and (ids < 32000).all()
    if top_p < 0.5:
        lowest = (rows == rows.max(1, keepdim=True).values).int().argmax(1)
        assert torch.equal(ids, lowest)
    ends = torch.tensor([0.0, 1 - 2**-53, 1.0], dtype=torch.float64)
    last, _ = sampling.sample(
        rows[:3], temperature=1.0, top_p=top_p, uniforms=ends,
        seeds=torch.arange(3), positions=torch.arange(3),
    )  # fmt: skip
    assert (last >= 0).all() and (last < 32000).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize(
    ("vocab", "low", "high"), [(10, 3, 7), (8193, 4095, 4096), (8193, 0, 8192), (8193, 17, 273)]
)
def test_br017_ties_go_to_the_lowest_id(vocab, low, high, dtype):
    rows = torch.zeros(8, vocab, dtype=dtype)
    rows[:, [low, high]] = 5
    out = verify(rows, [[high]] * 4, temperature=0.0)
    assert out.token_ids.tolist() == [[low, -1]] * 4
    out = verify(rows, [[low]] * 4, temperature=0.0)
    assert out.token_ids.tolist() == [[low, low]] * 4
    kept = sampling.target_probs(rows[:1], temperature=1.0, top_k=1)[0].nonzero()
    assert kept.flatten().tolist() == [low]


def test_br018_ragged_rows_and_no_garbage():
    num_drafts, vocab = [1, 4, 0, 2], 30
    planted = torch.arange(11) * 2 + 3
    rows = torch.zeros(11, vocab)
    rows[torch.arange(11), planted] = 4
    ids = torch.full((4, 4), 29)
    for b, start in enumerate([0, 2, 7, 8]):
        ids[b, : num_drafts[b]] = planted[start : start + num_drafts[b]]
    ids[1, 2] = 0
    out = verify(rows, ids, num_drafts=num_drafts, temperature=0.0)
    assert out.num_accepted.tolist() == [1, 2, 0, 2]
    assert out.token_ids.tolist() == [
        [3, 5, -1, -1, -1], [7, 9, 11, -1, -1], [17, -1, -1, -1, -1], [19, 21, 23, -1, -1]
    ]  # fmt: skip
    assert out.last_token.tolist() == [5, 11, 17, 23]


@pytest.mark.parametrize("method", METHODS)
def test_br019_lowest_fp16_among_minus_infinity(method):
    row = torch.full((2, 50_000), NEG_INF, dtype=torch.float16)
    row[:, 2] = -65504
    for temperature in (0.0, 1.0):
        out = verify_many(row, [5], batch=10, method=method, temperature=temperature)
        assert (out.num_accepted == 0).all() and (out.last_token == 2).all()
    probs = sampling.target_probs(row, temperature=1.0)
    assert probs.nonzero().tolist() == [[0, 2], [1, 2]] and probs[0, 2] == 1


def test_br020_rows_together_equal_rows_alone(generator):
    width, vocab = 5, 4100
    rows = torch.randn(width + 1, vocab, generator=generator).bfloat16()
    best = rows.float().argmax(1)
    ids = best[:width][None]
    together = verify(rows, ids, temperature=0.0)
    alone = [
        verify(rows[i : i + 1], ids[:, :1], num_drafts=[0], temperature=0.0).last_token[0].item()
        for i in range(width + 1)
    ]
    assert together.token_ids[0].tolist() == alone
    many = verify(rows.repeat(64, 1), ids.repeat(64, 1), temperature=0.0)
    assert many.token_ids.tolist() == [alone] * 64


# --- of other kinds, as far as sampling is concerned ----------------------------------------------


def test_br022_no_drafts_at_all(generator):
    target = torch.randn(5, 64, generator=generator)
    ids = torch.zeros(5, 7, dtype=torch.int64)
    out = verify(target, ids, num_drafts=[0] * 5, seeds=torch.arange(5), positions=torch.arange(5))
    assert (out.num_emitted == 1).all() and (out.token_ids[:, 1:] == -1).all()
    drawn, _ = sampling.sample(
        target, temperature=1.0, seeds=torch.arange(5), positions=torch.arange(5)
    )
    assert torch.equal(out.last_token, drawn)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_br024_slots_without_rows(method, generator):
    """Two equal entries of query_start_loc: no request there, the others as if it did not exist."""
    target, ids, draft = random_batch(generator, [2, 3, 1], 64, 3)
    used = [1, 2, 4]
    wide = {"draft_token_ids": torch.full((6, 3), 7), "draft_logits": torch.full((6, 3, 64), NAN)}
    wide["draft_token_ids"][used], wide["draft_logits"][used] = ids, draft
    common = {"method": method, "temperature": 0.9, "return_logprobs": True}
    want = sampling.rejection_sample(
        target, ids, draft, query_start_loc=torch.tensor([0, 3, 7, 9]),
        seeds=torch.tensor([5, 6, 7]), positions=torch.tensor([1, 2, 3]), **common,
    )  # fmt: skip
    out = sampling.rejection_sample(
        target, **wide, query_start_loc=torch.tensor([0, 0, 3, 7, 7, 9, 9]),
        seeds=torch.tensor([0, 5, 6, 0, 7, 0]), positions=torch.tensor([0, 1, 2, 0, 3, 0]),
        **common,
    )  # fmt: skip
    assert same([x[used] for x in out], want)
    for b in (0, 3, 5):
        numbers = out.num_emitted[b], out.num_accepted[b], out.status[b]
        assert [int(x) for x in numbers] == [0, 0, 0] and out.last_token[b] == -1
        assert (out.token_ids[b] == -1).all() and (out.logprobs[b] == 0).all()
    masses = sampling.block_acceptance(
        target, **wide, query_start_loc=torch.tensor([0, 0, 3, 7, 7, 9, 9]), temperature=0.9
    )
    assert all((x[[0, 3, 5]] == 0).all() for x in masses)


def test_br025_irregular_lengths_equal_single_calls(generator):
    num_drafts = [5, 5, 5, 5, 5, 5, 4, 0]
    target, ids, draft = random_batch(generator, num_drafts, 64, 5)
    out = verify(target, ids, draft, num_drafts=num_drafts)
    begin = starts(num_drafts).tolist()
    for b, n in enumerate(num_drafts):
        single = verify(
            target[begin[b] : begin[b + 1]], ids[b : b + 1], draft[b : b + 1], num_drafts=[n],
            seeds=torch.tensor([b]),
        )  # fmt: skip
        assert same([x[b : b + 1] for x in out[:5]], single[:5])


@pytest.mark.parametrize(
    "vocab",
    [8, *(pytest.param(v, marks=pytest.mark.no_emulator) for v in (4097, 129280))],
    ids=lambda v: f"V={v}",
)
@pytest.mark.parametrize("method", ["block", "greedy"])
def test_br026_every_depth_stops_at_the_planted_mismatch(method, vocab):
    """Rows are windows of a line with one peak: row i has its argmax at peak - i."""
    for width in range(1, 17):
        count = (width + 1) ** 2
        if vocab > 3 * count:
            line = torch.zeros(vocab + count)
            line[count] = 5
            rows, best = line.as_strided((count, vocab), (1, 1)), count - torch.arange(count)
        else:
            best = torch.arange(count) % vocab
            rows = torch.nn.functional.one_hot(best, vocab).float()
        best = best.reshape(width + 1, width + 1)  # request b, row i
        ids = best[:, :width].clone()
        for b in range(width):  # request b has its first mismatch at slot b, the last has none
            ids[b, b] = (ids[b, b] + 1) % vocab
        for size in (1, 3, 12):
            for first in range(0, width + 1, size):
                part = slice(first, first + size)
                begin, end = first * (width + 1), min(first + size, width + 1) * (width + 1)
                out = verify(rows[begin:end], ids[part], temperature=0.0, method=method)
                planted = torch.arange(width + 1)[part]
                assert torch.equal(out.num_accepted.long(), planted), (width, size)
                assert torch.equal(out.last_token, best[part].diagonal(first)), (width, size)
            if vocab == 129280:
                break  # one batch size here, all of them at the small sizes


def test_br062_accepted_counts_per_request():
    rows = torch.stack([one_hot_row(8, x) for x in (1, 2, 3, 4)]).repeat(4, 1)
    ids = torch.tensor([[0, 2, 3], [1, 0, 3], [7, 2, 3], [1, 2, 3]])
    out = verify(rows, ids)
    assert out.num_accepted.dtype == torch.int32 and out.num_accepted.tolist() == [0, 1, 0, 3]
    assert torch.bincount(out.num_accepted, minlength=4).tolist() == [2, 1, 0, 1]


@pytest.mark.no_emulator
@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_br067_filters_act_on_every_row(method, slot):
    rows = log_rows([[0.6, 0.3, 0.1]] * 4)
    ids = [0, 0, 0]
    ids[slot] = 2
    out = verify_many(rows, ids, batch=6000, min_p=0.4, method=method)
    assert out.num_accepted.max() == slot and not (out.token_ids == 2).any()
    probs = sampling.target_probs(rows, temperature=1.0, min_p=0.4)
    torch.testing.assert_close(probs, torch.tensor([[2 / 3, 1 / 3, 0]] * 4))
    biased = rows.clone()
    biased[:, 1] += 100
    out = verify_many(biased, [1, 1, 1], batch=20, min_p=0.4, method=method)
    assert (out.token_ids == 1).all()
