"""Field cases of routing, each as it was reported, on every backend."""

import math

import pytest
import torch

from dspark_ext import moe
from dspark_ext.reference import router as reference


@pytest.fixture
def route(backend):
    """`moe.route` on each backend."""
    return moe.route


def close(weights, expected, rtol=1e-6):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return torch.allclose(weights.double(), expected.expand_as(weights), rtol=rtol, atol=0)


@pytest.mark.parametrize(("logit", "score"), [(-20, 4.54e-5), (89, 9.4340), (200, 14.1421)])
def test_br038_scores_far_from_zero(route, logit, score):
    """sqrt(log(1 + e^x)) neither rounds to 0 below -16.6 nor overflows above 88.7."""
    logits = torch.full((3, 8), float(logit))
    ids, weights = route(logits, 2, scoring="sqrtsoftplus", scale=1.5)
    assert ids.tolist() == [[0, 1]] * 3
    assert close(weights, 0.75)
    _, plain = route(logits, 2, scoring="sqrtsoftplus", renormalize=False)
    assert close(plain, score, rtol=2e-5)
    exact = max(logit, 0) + math.log1p(math.exp(-abs(logit)))
    assert close(plain, math.sqrt(exact))


def test_br038_scores_of_zero_give_weights_of_zero(route):
    """At -200 the score is 0 in float32; the weights are 0, not NaN, and the ids in order."""
    ids, weights, status = route(
        torch.full((2, 8), -200.0), 2, scoring="sqrtsoftplus", scale=1.5, return_status=True
    )
    assert ids.tolist() == [[0, 1]] * 2 and weights.tolist() == [[0.0, 0.0]] * 2
    assert status.tolist() == [0, 0]


def test_br038_mixture(route):
    logits = torch.tensor([[-20.0, -17, -20, -30, -20, -25, -17.5, -20]])
    ids, weights = route(logits, 2, scoring="sqrtsoftplus", scale=1.5)
    assert ids.tolist() == [[1, 6]]
    scores = [math.sqrt(math.log1p(math.exp(x))) for x in (-17, -17.5)]
    assert close(weights, [[1.5 * s / sum(scores) for s in scores]])


def test_br039_weights_do_not_pass_through_the_bias(route):
    """(score + 12) - 12 is 0 in float32; the weights come from the scores themselves."""
    logits = torch.tensor([[-18.0, -17, -18, -18]])
    ids, weights = route(logits, 2, scoring="sigmoid", bias=torch.tensor([12.0, 12, 0, 0]))
    assert sorted(ids[0].tolist()) == [0, 1]
    by_id = dict(zip(ids[0].tolist(), weights[0].tolist()))
    assert by_id[0] == pytest.approx(0.268941, abs=1e-6)
    assert by_id[1] == pytest.approx(0.731059, abs=1e-6)


def test_br040_groups_left_out_are_never_chosen(route):
    """All biased scores are negative: a group counted as 0 would win."""
    bias = torch.full((8,), -5.0)
    bias[:2] = -4
    ids, weights = route(
        torch.zeros(1, 8), 2, scoring="sigmoid", bias=bias, num_groups=4, topk_groups=1
    )
    assert ids.tolist() == [[0, 1]] and weights.tolist() == [[0.5, 0.5]]


def test_br040_a_group_has_the_score_of_its_two_best(route):
    """Group 1 has the best expert, group 0 the best pair, group 2 the largest sum."""
    logits = torch.zeros(1, 12)
    bias = torch.tensor([3.0, 3, 0, 0, 5, 0.5, 0, 0, 2.5, 2.5, 2.5, 2.5])
    ids, _ = route(logits, 2, scoring="sigmoid", bias=bias, num_groups=3, topk_groups=1)
    assert ids.tolist() == [[0, 1]]


def test_br041_rows_of_nan_and_infinity(route):
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    logits[1] = torch.nan
    logits[2, 5] = torch.inf
    for scoring in ("softmax", "sigmoid", "sqrtsoftplus"):
        ids, weights, status = route(logits, 4, scoring=scoring, return_status=True)
        assert all(len(set(row)) == 4 and min(row) >= 0 and max(row) < 8 for row in ids.tolist())
        assert weights.isfinite().all()
        assert status.tolist() == [0, moe.NAN_ROW, 0]
        assert ids[1].tolist() == [0, 1, 2, 3] and weights[1].tolist() == [0.0] * 4
        assert ids[2, 0] == 5 and weights[2, 0] == weights[2].max()
        alone = route(logits[:1], 4, scoring=scoring)
        assert torch.equal(ids[:1], alone[0]) and torch.equal(weights[:1], alone[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_br044_a_slice_of_columns_is_read_as_such(route, dtype):
    wide = torch.randn(7, 40, generator=torch.Generator().manual_seed(2)).to(dtype)
    ids = torch.randint(0, 9, (7, 4), generator=torch.Generator().manual_seed(3))
    table = torch.randint(0, 16, (9, 6), generator=torch.Generator().manual_seed(4)).int()
    for rows in (wide[:, :16], wide[:, 3:19], wide.T[:16].T, wide[::2, 5:21], wide[:, ::2][:, :16]):
        for given, same in zip(route(rows, 3), route(rows.contiguous(), 3)):
            assert torch.equal(given, same)
        count = len(rows)
        options = {"hash_ids": ids[:count, 1], "hash_table": table[:, ::2]}
        dense = {key: value.contiguous() for key, value in options.items()}
        for given, same in zip(route(rows, 3, **options), route(rows, 3, **dense)):
            assert torch.equal(given, same)
        narrow = {**options, "hash_ids": ids[:count, 1].int()}
        for given, same in zip(route(rows, 3, **options), route(rows, 3, **narrow)):
            assert torch.equal(given, same)


def test_br047_experts_above_255(route):
    logits = torch.zeros(1, 512)
    logits[0, 300:310] = torch.arange(5.0, 15.0)
    ids, weights = route(logits, 10)
    assert ids.tolist() == [list(range(309, 299, -1))]
    assert close(weights, torch.softmax(torch.arange(14.0, 4.0, -1, dtype=torch.float64), 0))
    for experts in (257, 384):
        logits = torch.zeros(1, experts)
        logits[0, -1] = 1
        assert route(logits, 1)[0].tolist() == [[experts - 1]]


def test_br049_no_tokens(route):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for options in ({}, {"shared_expert_weight": 1.0}, {"bias": torch.zeros(8)}):
            out = route(torch.zeros(0, 8, dtype=dtype), 2, return_status=True, **options)
            slots = 2 + ("shared_expert_weight" in options)
            assert [x.shape for x in out] == [(0, slots), (0, slots), (0,)]
            assert [x.dtype for x in out] == [torch.int32, torch.float32, torch.int32]


@pytest.mark.parametrize("num_groups", [None, 0, 1])
def test_br069_square_root_of_softplus_with_bias(route, num_groups):
    """384 experts, top 6, scale 1.5: against float64, but for ties below 1e-6."""
    generator = torch.Generator().manual_seed(69)
    logits = torch.randn(64, 384, generator=generator) * 4
    bias = torch.randn(384, generator=generator) * 0.1
    options = {"scoring": "sqrtsoftplus", "bias": bias, "scale": 1.5, "num_groups": num_groups}
    ids, weights = route(logits, 6, **options)
    _, expected, biased = reference.route(logits, 6, **options)
    best = biased.topk(6).values
    assert (biased.gather(1, ids.long()) - best).abs().max() < 1e-6
    scores = reference.scores(logits, "sqrtsoftplus").gather(1, ids.long())
    own = 1.5 * scores / scores.sum(1, keepdim=True)
    assert (weights - own).abs().max() < 1e-6 and (own - expected).abs().max() < 1e-6
    assert (weights.double().sum(1) - 1.5).abs().max() < 1e-6
