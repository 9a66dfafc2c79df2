"""dspark_ext AcceptanceEstimator: confidences from earlier blocks, and why they are lossless."""

import itertools
from fractions import Fraction

import pytest
import torch

from dspark_ext import verify
from dspark_ext.calibration import AcceptanceEstimator


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def run(steps, rates, *, num_requests=8, seed=0, lens=None, **options):
    """Feeds `steps` steps in which x_k is accepted with the chances `rates` [R, K] or [K]."""
    generator = torch.Generator().manual_seed(seed)
    rates = torch.as_tensor(rates).expand(num_requests, -1)
    stats = verify.AcceptanceStats(num_requests, rates.shape[1])
    estimator = AcceptanceEstimator(stats, **options)
    for _ in range(steps):
        count(estimator, rates, generator, lens)
    return estimator


def count(estimator, rates, generator, lens=None):
    rates = torch.as_tensor(rates).expand(estimator.stats.num_requests, -1)
    passes = torch.rand(rates.shape, generator=generator) < rates
    accepted = passes.long().cumprod(1).sum(1)
    if lens is None:
        lens = torch.full_like(accepted, rates.shape[1])
    estimator.stats.update(lens.int(), accepted.minimum(lens).int())
    estimator.update()


def test_before_any_data_it_is_the_prior():
    stats = verify.AcceptanceStats(3, 4)
    assert (AcceptanceEstimator(stats, prior=0.6).confidence() == torch.tensor(0.6)).all()
    prior = torch.tensor([0.9, 0.8, 0.7, 0.6])
    estimator = AcceptanceEstimator(stats, prior=prior)
    assert torch.equal(estimator.confidence(), prior.expand(3, 4))
    estimator.update()  # nothing counted: the prior still
    assert torch.allclose(estimator.confidence(), prior)


def test_it_finds_conditional_rates():
    """Within four standard deviations of about 500 remembered steps (half life 64, 8 requests)."""
    rates = (0.9, 0.6, 0.8)
    estimator = run(400, rates, pool_weight=1e6)
    found = estimator.confidence()
    assert found.dtype == torch.float32 and found.shape == (8, 3)
    reached = 8 * 64 / 0.693 * torch.tensor([1.0, 0.9, 0.54]) / 2
    error = 4 * (0.25 / reached).sqrt()
    assert ((found - torch.tensor(rates)).abs() < error).all()


def test_requests_are_told_apart():
    rates = torch.tensor([[0.95, 0.95], [0.2, 0.2]])
    found = run(200, rates, num_requests=2).confidence()
    assert (found[0] > 0.8).all() and (found[1, 0] < 0.4)
    plan = verify.schedule(found, mode="threshold", threshold=0.6)
    assert plan.verify_lens.tolist() == [2, 0]


def test_one_step_by_hand():
    stats = verify.AcceptanceStats(2, 2)
    estimator = AcceptanceEstimator(stats, prior=0.5, prior_weight=2.0, pool_weight=1.0)
    stats.update(int32(2, 1), int32(1, 0))
    estimator.update()
    # x_1: reached 2, accepted 1; x_2: reached 1 (request 0), accepted 0
    pool = [(1 + 2 * 0.5) / (2 + 2), (0 + 2 * 0.5) / (1 + 2)]
    own = [[(1 + pool[0]) / 2, (0 + pool[1]) / 2], [(0 + pool[0]) / 2, pool[1]]]
    assert estimator.confidence().flatten().tolist() == pytest.approx(own[0] + own[1])


def test_old_steps_are_forgotten():
    """After half_life steps the same evidence weighs half: reached 1 -> 1/2."""
    stats = verify.AcceptanceStats(1, 1)
    estimator = AcceptanceEstimator(stats, half_life=4.0, prior=0.5, prior_weight=1.0)
    stats.update(int32(1), int32(1))
    estimator.update()
    pools = []
    for _ in range(5):
        pools.append(float(estimator.confidence(torch.tensor([-1]))))
        estimator.update()
    assert pools[0] == pytest.approx((1 + 0.5) / 2)
    assert pools[4] == pytest.approx((0.5 + 0.5) / 1.5)
    assert pools == sorted(pools, reverse=True)


def test_a_change_of_the_text_is_followed():
    generator = torch.Generator().manual_seed(3)
    estimator = run(200, (0.9,))
    for _ in range(200):
        count(estimator, (0.3,), generator)
    assert (estimator.confidence() < 0.5).all()


def test_a_position_that_is_never_verified_is_tried_again():
    """A bad spell takes x_2 below the threshold; unverified, it drifts back to the prior."""
    estimator = run(40, (0.95, 0.0), half_life=16.0, prior=0.7)
    assert (estimator.confidence()[:, 1] < 0.5).all()
    generator = torch.Generator().manual_seed(5)
    ones = torch.ones(8, dtype=torch.int64)
    for _ in range(200):
        count(estimator, (0.95, 0.0), generator, lens=ones)
    assert (estimator.confidence()[:, 1] > 0.65).all()


def test_a_slot_used_again_starts_from_the_pool():
    rates = torch.tensor([[0.9], [0.9], [0.9], [0.1]])
    estimator = run(100, rates, num_requests=4)
    pool = estimator.confidence(torch.tensor([-1]))
    before = estimator.confidence()
    estimator.stats.reset(torch.tensor([3]))
    now = estimator.confidence()  # at once, before any update
    assert torch.equal(now[3], pool[0]) and torch.equal(now[:3], before[:3])
    estimator.stats.update(int32(1), int32(1), request_ids=int32(3))
    estimator.update()
    assert estimator.confidence()[3] > pool[0]
    # a slot that was used, reset and used as often again is a new request as well
    one = verify.AcceptanceStats(1, 1)
    estimator = AcceptanceEstimator(one, prior=0.5)
    one.update(int32(1), int32(0))
    estimator.update()
    one.reset(torch.tensor([0]))
    one.update(int32(1), int32(1))
    estimator.update()
    assert float(estimator._reached[0, 0]) == 1.0 and float(estimator._accepted[0, 0]) == 1.0


def test_a_full_reset_keeps_what_was_learned():
    estimator = run(100, (0.2,))
    pool = float(estimator.confidence(torch.tensor([-1])))
    estimator.stats.reset()
    estimator.update()
    assert float(estimator.confidence(torch.tensor([-1]))) == pytest.approx(pool, abs=0.02)
    estimator.stats.update(int32(*[1] * 8), int32(*[1] * 8))
    estimator.update()
    assert float(estimator.confidence(torch.tensor([-1]))) > pool


def test_request_ids_choose_rows():
    estimator = run(20, torch.linspace(0.1, 0.9, 8)[:, None].expand(8, 2))
    rows = estimator.confidence()
    chosen = estimator.confidence(int32(5, -1, 0))
    assert torch.equal(chosen[0], rows[5]) and torch.equal(chosen[2], rows[0])
    assert torch.equal(chosen[1], estimator.confidence(int32(-7))[0])
    assert estimator.confidence(int32()).shape == (0, 2)


def test_the_order_of_requests_does_not_matter():
    generator = torch.Generator().manual_seed(9)
    order = torch.randperm(6, generator=generator)
    both = [AcceptanceEstimator(verify.AcceptanceStats(6, 4)) for _ in range(2)]
    for _ in range(30):
        lens = torch.randint(0, 5, (6,), generator=generator)
        accepted = (torch.rand(6, generator=generator) * (lens + 1)).long()
        both[0].stats.update(lens.int(), accepted.int())
        both[1].stats.update(lens[order].int(), accepted[order].int())
        for estimator in both:
            estimator.update()
    assert torch.equal(both[0].confidence()[order], both[1].confidence())


@pytest.mark.parametrize("lag", [1, 2, 4])
def test_lag(lag):
    """With lag n the confidences are, to the bit, those of lag 1 before the last n - 1 updates."""
    generator = torch.Generator().manual_seed(1)
    now = AcceptanceEstimator(verify.AcceptanceStats(3, 2))
    late = AcceptanceEstimator(verify.AcceptanceStats(3, 2), lag=lag)
    history = [now.confidence()] * (lag - 1)
    for _ in range(12):
        lens = torch.randint(0, 3, (3,), generator=generator)
        accepted = (torch.rand(3, generator=generator) * (lens + 1)).long()
        for estimator in (now, late):
            estimator.stats.update(lens.int(), accepted.int())
            estimator.update()
        history.append(now.confidence())
        assert torch.equal(late.confidence(), history[-lag])


def test_it_reads_only_what_update_published():
    """Counting a block does not move the confidences that gate it."""
    estimator = run(10, (0.5, 0.5))
    before = estimator.confidence()
    estimator.stats.update(int32(*[2] * 8), int32(*[0] * 8))
    assert torch.equal(estimator.confidence(), before)
    estimator.update()
    assert not torch.equal(estimator.confidence(), before)


def test_state_is_changed_in_place():
    """What a captured graph would hold keeps its address."""
    estimator = run(2, (0.5,))
    tensors = [v for v in vars(estimator).values() if isinstance(v, torch.Tensor)]
    tensors += [v for v in vars(estimator.stats).values() if isinstance(v, torch.Tensor)]
    addresses = [t.data_ptr() for t in tensors]
    estimator.stats.reset(torch.tensor([1]))
    estimator.stats.update(int32(*[1] * 8), int32(*[1] * 8))
    estimator.update()
    assert [t.data_ptr() for t in tensors] == addresses


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"lag": 0}, "lag: .*not lossless"),
        ({"half_life": 0.0}, "half_life"),
        ({"half_life": float("nan")}, "half_life"),
        ({"prior": 1.5}, "prior"),
        ({"prior": float("nan")}, "prior"),
        ({"prior": torch.tensor([0.5, 0.5, 0.5])}, "prior"),
        ({"prior_weight": 0.0}, "prior_weight"),
        ({"pool_weight": -1.0}, "pool_weight"),
    ],
)
def test_errors_name_the_argument(options, word):
    with pytest.raises(ValueError, match=f"dspark_ext.AcceptanceEstimator: {word}"):
        AcceptanceEstimator(verify.AcceptanceStats(1, 2), **options)


# --- the law -------------------------------------------------------------------------------------

TOTAL = 4  # tokens looked at; more than two rounds can be sure to emit is continued by the target
OPTIONS = {"prior": 0.6, "prior_weight": 1.0, "pool_weight": 1.0}


def target(prefix):
    return (
        (Fraction(7, 10), Fraction(3, 10))
        if sum(prefix) % 2 == 0
        else (Fraction(1, 5), Fraction(4, 5))
    )


def drafter(prefix):
    return (
        (Fraction(1, 2), Fraction(1, 2))
        if len(prefix) % 2 == 0
        else (Fraction(2, 3), Fraction(1, 3))
    )


def length_after(history):
    """Drafts that the estimator lets through after rounds of (verified, accepted)."""
    stats = verify.AcceptanceStats(1, 2)
    estimator = AcceptanceEstimator(stats, **OPTIONS)
    for verified, accepted in history:
        stats.update(int32(verified), int32(accepted))
        estimator.update()
    plan = verify.schedule(estimator.confidence(), mode="threshold", threshold=0.6)
    return int(plan.verify_lens)


def outcomes(prefix, drafts, length):
    """(emitted, chance, accepted) of the token rule on the first `length` drafts."""
    alive = Fraction(1)
    for i, x in enumerate((*drafts[:length], None)):
        here = prefix + drafts[:i]
        p, q = target(here), drafter(here)
        if x is None:
            yield from ((drafts[:i] + (y,), alive * p[y], i) for y in (0, 1))
            return
        chance = min(Fraction(1), p[x] / q[x])
        rest = [max(p[y] - q[y], Fraction(0)) for y in (0, 1)]
        for y in (0, 1):
            if chance < 1:
                yield drafts[:i] + (y,), alive * (1 - chance) * rest[y] / sum(rest), i
        alive *= chance


def emitted_law(choose_length):
    """Law of the first TOTAL tokens after two rounds; choose_length(history, prefix, drafts)."""
    law = {}
    rounds = [((), Fraction(1), ())]
    for _ in range(2):
        after = []
        for prefix, weight, history in rounds:
            for drafts in itertools.product((0, 1), repeat=2):
                chance = (
                    weight * drafter(prefix)[drafts[0]] * drafter(prefix + drafts[:1])[drafts[1]]
                )
                for length, share in choose_length(history, prefix, drafts):
                    for emitted, part, accepted in outcomes(prefix, drafts, length):
                        after.append(
                            (
                                prefix + emitted,
                                chance * share * part,
                                (*history, (length, accepted)),
                            )
                        )
        rounds = after
    for prefix, weight, _ in rounds:
        for tail in itertools.product((0, 1), repeat=max(0, TOTAL - len(prefix))):
            text, share = prefix + tail, weight
            for i in range(len(prefix), len(text)):
                share *= target(text[:i])[text[i]]
            law[text[:TOTAL]] = law.get(text[:TOTAL], Fraction(0)) + share
    return law


def target_law():
    law = {}
    for text in itertools.product((0, 1), repeat=TOTAL):
        law[text] = Fraction(1)
        for i in range(TOTAL):
            law[text] *= target(text[:i])[text[i]]
    return law


def test_lengths_from_earlier_blocks_leave_the_law():
    """Exact, over every draft and every outcome of two rounds: the second round's length depends on
    the first round's acceptance, and the text keeps the target's law."""
    cache = {}

    def choose(history, prefix, drafts):
        if history not in cache:
            cache[history] = length_after(history)
        return [(cache[history], Fraction(1))]

    assert emitted_law(choose) == target_law()
    assert len({n for history, n in cache.items() if history}) > 1  # it did adapt


def test_lengths_from_the_block_itself_would_not():
    """The reason for `lag >= 1`: an estimator that has seen how the block fares spoils the law."""

    def choose(history, prefix, drafts):
        fates = {}
        for _, part, accepted in outcomes(prefix, drafts, 2):
            fates[accepted] = fates.get(accepted, Fraction(0)) + part
        return [(length_after((*history, (2, n))), share) for n, share in fates.items()]

    assert emitted_law(choose) != target_law()
