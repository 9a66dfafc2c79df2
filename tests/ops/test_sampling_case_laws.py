"""Failures seen in the field that broke the law of the output. tests/CASES.md lists them."""

import numpy as np
import pytest
import torch
from kit import METHODS, log_rows, starts, verify, verify_many
from lawkit import assert_law

from dspark_ext import sampling

LAW_008 = [0.5, 0.25, 0.25]


@pytest.mark.parametrize("method", METHODS)
def test_br008_one_hot_rejection_keeps_the_law(method):
    out = verify_many(log_rows([LAW_008] * 2), [0], batch=40_000, method=method)
    assert_law(out.token_ids[:, 0], LAW_008)


def test_br008_a_reused_uniform_is_seen():
    """Negative control: the same number for acceptance and replacement gives (.5, 0, .5)."""
    u = torch.rand(40_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    out = verify_many(log_rows([LAW_008] * 2), [0], batch=40_000, uniforms=u.repeat(1, 2))
    assert_law(out.token_ids[:, 0], [0.5, 0, 0.5])
    with pytest.raises(AssertionError):
        assert_law(out.token_ids[:, 0], LAW_008)


def test_br009_tail_below_2_to_minus_11_is_drawn_at_its_rate():
    """262144 ids share 3.28e-4; half of them lie before the likely one, half after."""
    vocab, middle = 262_145, 131_072
    row = torch.full((1, vocab), -20.5)
    row[0, middle] = 0
    tail = 262_144 * np.exp(-20.5)
    share = tail / (1 + tail)
    inside = np.linspace(2**-40, share / 2 * (1 - 1e-3), 40)
    uniforms = np.concatenate([inside, 1 - inside, [share / 2 * 1.01, 0.5, 1 - share / 2 * 1.01]])
    n = len(uniforms)
    ids, _ = sampling.sample(
        row.expand(n, vocab), temperature=1.0, uniforms=torch.tensor(uniforms),
        seeds=torch.zeros(n, dtype=torch.int64), positions=torch.zeros(n, dtype=torch.int64),
    )  # fmt: skip
    where = inside / (share / 2) * middle
    np.testing.assert_allclose(ids[:40], where, atol=middle * 2e-5 + 1)
    np.testing.assert_allclose(ids[40:80], vocab - 1 - where, atol=middle * 2e-5 + 1)
    assert ids[80:].tolist() == [middle] * 3


def test_br010_judged_q_is_the_softmax_of_what_was_sampled_from(generator):
    """q read back from the op: prefix = p / q with p = 1/32, so q = 1 / (32 prefix) where q > p."""
    vocab, temperature = 32, 0.7
    logits = (torch.randn(1, vocab, generator=generator) * 2).bfloat16()
    exact = (logits.double() / temperature).softmax(-1)[0]
    ids = torch.arange(vocab)[:, None]
    prefix = sampling.block_acceptance(
        torch.zeros(2 * vocab, vocab), ids, logits.expand(vocab, 1, vocab).contiguous(),
        query_start_loc=starts([1] * vocab), temperature=1.0, draft_temperature=temperature,
    ).prefix_prob[:, 0]  # fmt: skip
    above = exact > 1 / 32
    assert above.sum() > 5
    torch.testing.assert_close(1 / (32 * prefix[above]), exact[above], atol=1e-6, rtol=0)
    probs = sampling.target_probs(logits, temperature=temperature)[0]
    torch.testing.assert_close(probs.double(), exact, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_br010_bf16_draft_law(method, generator):
    rounds, vocab = 200_000, 32
    draft = (torch.randn(vocab, generator=generator) * 2).bfloat16()
    target = (torch.randn(vocab, generator=generator) * 2).bfloat16()
    seeds, positions = torch.arange(rounds), torch.full((rounds,), 3)
    ids, _ = sampling.sample(
        draft.expand(rounds, vocab),
        temperature=0.7,
        seeds=seeds,
        positions=positions,
        stream="draft",
    )
    out = verify(
        target.expand(2 * rounds, vocab), ids[:, None], draft.expand(rounds, 1, vocab),
        temperature=0.7, seeds=seeds, positions=positions, method=method,
    )  # fmt: skip
    assert_law(out.token_ids[:, 0], (target.double() / 0.7).softmax(-1))


P_011, Q_011 = [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize("method", METHODS)
def test_br011_residual_uses_the_whole_q(method):
    batch = 40_000
    uniforms = torch.rand(batch, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    uniforms[:, 0] = 0.9
    out = verify_many(
        log_rows([P_011] * 2), [3], log_rows([Q_011]), batch=batch, uniforms=uniforms, method=method
    )
    assert (out.num_accepted == 0).all()
    assert_law(out.token_ids[:, 0], [0.75, 0.25, 0, 0])


@pytest.mark.parametrize("method", METHODS)
def test_br011_overall_law(method):
    assert_law(first_tokens(P_011, Q_011, 200_000, method).token_ids[:, 0], P_011)


def first_tokens(p, q, rounds: int, method: str, **options):
    """K = 1 with x ~ q, drawn by the op itself from the draft stream."""
    seeds, positions = torch.arange(rounds), torch.zeros(rounds, dtype=torch.int64)
    draft = log_rows([q])
    ids, _ = sampling.sample(
        draft.expand(rounds, len(q)),
        temperature=1.0,
        seeds=seeds,
        positions=positions,
        stream="draft",
    )
    rows = log_rows([p]).expand(2 * rounds, len(p))
    return verify(rows, ids[:, None], draft.expand(rounds, 1, len(q)), method=method, **options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_br012_equal_distributions_accept_everything(width, method, generator):
    rows = torch.randn(width + 1, 4099, generator=generator) * 3
    ids = torch.randint(0, 4099, (width,), generator=generator).tolist()
    out = verify_many(rows, ids, rows[:width], batch=50, method=method)
    assert (out.num_accepted == width).all()


@pytest.mark.parametrize("method", METHODS)
def test_br021_acceptance_rate_is_the_overlap(method):
    out = first_tokens([0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], 100_000, method)
    assert abs(out.num_accepted.double().mean() - 0.4) <= 0.008


@pytest.mark.parametrize("width", range(8))
@pytest.mark.parametrize("method", METHODS)
def test_br064_any_number_of_drafts_is_lossless(method, width):
    generator = torch.Generator().manual_seed(3)
    target, draft = torch.randn(8, 5, generator=generator), torch.randn(7, 5, generator=generator)
    rounds = 5_000
    seeds, positions = torch.arange(rounds), torch.zeros(rounds, dtype=torch.int64)
    drawn = [
        sampling.sample(
            draft[i].expand(rounds, 5), temperature=1.0, seeds=seeds, positions=positions + i,
            stream="draft",
        )[0]
        for i in range(7)
    ]  # fmt: skip
    out = verify(
        target[: width + 1].repeat(rounds, 1), torch.stack(drawn, 1), draft.expand(rounds, 7, 5),
        num_drafts=[width] * rounds, method=method,
    )  # fmt: skip
    assert_law(out.token_ids[:, 0], target[0].double().softmax(-1))
    assert out.num_accepted.max() == width


def test_br065_acceptance_falls_with_temperature():
    rows = torch.tensor([[2.0, 1.0, 0.0]] * 2)
    assert (verify_many(rows, [0], batch=10, temperature=0.0).num_accepted == 1).all()
    rate = verify_many(rows, [0], batch=100_000).num_accepted.double().mean()
    assert abs(rate - 0.66524) < 0.0075


def test_br066_filtered_draft_has_the_same_law_and_is_accepted_more():
    p, q = [0.7, 0.3], [0.5, 0.5]
    loose = first_tokens(p, q, 20_000, "block", top_k=1)
    assert (loose.token_ids[:, 0] == 0).all()
    assert abs(loose.num_accepted.double().mean() - 0.5) < 0.02
    tight = first_tokens(p, [1.0, 0.0], 1000, "block", top_k=1)
    assert (tight.token_ids[:, 0] == 0).all() and (tight.num_accepted == 1).all()
