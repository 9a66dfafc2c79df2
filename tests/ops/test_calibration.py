"""dspark_ext.calibration: fitting temperatures, and what ECE, AUC and Brier say."""

import math
import warnings

import numpy as np
import pytest
import torch
from calibration_data import TRUE, blocks
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_ext import calibration

GRID_STEP = 10 ** (1 / 20)  # 41 temperatures over two decades
SETTINGS = settings(max_examples=40, deadline=None)


def close(temperatures, true, steps):
    ratio = torch.as_tensor(temperatures).double() / torch.tensor(true, dtype=torch.float64)
    return bool((ratio.log().abs() <= (steps + 0.01) * math.log(GRID_STEP)).all())


# --- fit_sts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "steps"), [("log_loss", 1), ("ece", 1.5)], ids=["log_loss", "ece"]
)
@pytest.mark.parametrize("seed", range(3))
def test_the_fit_finds_the_temperatures(objective, steps, seed):
    """Within one step of the grid (12 %) and the rounding of the truth to it: half a step more for
    the ECE, whose bins are noisier than the likelihood."""
    logits, accepted = blocks(30000, seed=seed)
    found = calibration.fit_sts(logits, accepted, objective=objective)
    assert found.dtype == torch.float32 and found.shape == (5,)
    assert close(found, TRUE, steps), found


def test_the_fit_lowers_the_ece_of_blocks_it_has_not_seen():
    logits, accepted = blocks(20000)
    temperatures = calibration.fit_sts(logits, accepted)
    fresh, fresh_accepted = blocks(20000, seed=1)
    raw = calibration.calibration_report(torch.sigmoid(fresh), fresh_accepted)
    better = calibration.calibration_report(
        calibration.calibrate(fresh, temperatures), fresh_accepted
    )
    off = torch.tensor([k for k, t in enumerate(TRUE) if t != 1.0])
    assert (better.ece[off] < 0.6 * raw.ece[off]).all() and (better.ece < 0.02).all()
    assert (better.brier <= raw.brier + 1e-3).all()


@pytest.mark.filterwarnings("ignore:dspark_ext.fit_sts.*edge")
def test_the_fit_is_sequential():
    """T_k is fitted to the survival under T_1..T_{k-1}: exactly the best of the grid, given them;
    later positions do not matter."""
    logits, accepted = blocks(3000, seed=4)
    grid = [0.5, 1.0, 2.0, 4.0]
    found = calibration.fit_sts(logits, accepted, grid=grid)
    for k in range(5):
        losses = []
        for t in grid:
            scale = torch.tensor([*found[:k].tolist(), t]).double()
            report = calibration.calibration_report(
                torch.sigmoid(logits[:, : k + 1].double() / scale), accepted.clamp(max=k + 1)
            )
            losses.append(float(report.ece[k]))
        assert grid[losses.index(min(losses))] == found[k]
        shorter = calibration.fit_sts(logits[:, : k + 1], accepted.clamp(max=k + 1), grid=grid)
        assert torch.equal(shorter, found[: k + 1])


def test_the_ece_can_be_fooled_where_the_log_loss_is_not():
    """At a base rate of one half a constant 1/2 (T = 10, logits squashed to 0) has an ECE of 0, so
    the ECE may like it better than the truth. It is why objective log_loss exists."""
    logits, accepted = blocks(20000, [2.0, 1.0, 0.5, 1.6, 1.25], mean=0.0, spread=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fooled = calibration.fit_sts(logits, accepted, objective="ece")
    assert not close(fooled, TRUE, 6)
    assert close(calibration.fit_sts(logits, accepted, objective="log_loss"), TRUE, 1)


def test_accepted_may_be_a_prefix_mask():
    logits, accepted = blocks(500)
    mask = torch.arange(5) < accepted[:, None]
    expected = calibration.fit_sts(logits, accepted)
    for form in (mask, mask.float(), mask.long(), accepted.to(torch.int32)):
        assert torch.equal(calibration.fit_sts(logits, form), expected)


def test_cut_blocks_do_not_bias_the_fit():
    """Blocks cut by a rule that reads confidences only (threshold): a block cut before x_k is left
    out at k even if it was rejected earlier, else the rejected ones would be over-represented."""
    logits, accepted = blocks(60000, seed=2)
    keep = (torch.sigmoid(logits) >= 0.55).long().cumprod(1).sum(1)
    found = calibration.fit_sts(
        logits, accepted.minimum(keep), verify_lens=keep, objective="log_loss"
    )
    assert close(found, TRUE, 2), found


def test_the_fit_reports_what_it_could_not_see():
    logits, accepted = blocks(400)
    lens = torch.full((400,), 3)
    with pytest.warns(UserWarning, match=r"fit_sts: positions \[4, 5\].*stays 1"):
        found = calibration.fit_sts(logits, accepted.clamp(max=3), verify_lens=lens)
    assert found[3:].tolist() == [1.0, 1.0]
    with pytest.warns(UserWarning, match="edge of the grid"):
        calibration.fit_sts(logits.abs(), torch.full((400,), 5))
    with pytest.warns(UserWarning, match="stays 1"):
        assert calibration.fit_sts(torch.zeros(0, 2), torch.zeros(0).long()).tolist() == [1.0, 1.0]
    assert calibration.fit_sts(torch.zeros(3, 0), torch.zeros(3).long()).shape == (0,)


def test_equals_go_to_the_temperature_nearest_to_one():
    """Logits of 0 are one half at every temperature."""
    found = calibration.fit_sts(torch.zeros(10, 1), torch.arange(10) % 2)
    assert found.tolist() == [1.0]


def test_inputs_are_not_changed():
    logits, accepted = blocks(50)
    before = logits.clone(), accepted.clone()
    calibration.fit_sts(logits, accepted)
    calibration.calibration_report(torch.sigmoid(logits), accepted)
    assert torch.equal(logits, before[0]) and torch.equal(accepted, before[1])


TWO = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("logits", "accepted", "options", "word"),
    [
        (torch.zeros(3), torch.zeros(3).long(), {}, "conf_logits"),
        (torch.zeros(2, 3).long(), torch.zeros(2).long(), {}, "conf_logits"),
        (TWO + float("nan"), torch.zeros(2).long(), {}, "conf_logits.*row 0"),
        (TWO, torch.zeros(3).long(), {}, "accepted"),
        (TWO, torch.zeros(2), {}, "accepted"),
        (TWO, torch.tensor([0, 4]), {}, "accepted.*got 4 in row 1"),
        (TWO, torch.tensor([-1, 0]), {}, "accepted.*got -1 in row 0"),
        (TWO, torch.tensor([[1, 0, 0], [0, 1, 0]]), {}, "accepted.*row 1"),
        (TWO, torch.tensor([[1, 0, 0], [0.5, 0, 0]]), {}, "accepted.*row 1"),
        (TWO, torch.zeros(2, 2), {}, "accepted"),
        (TWO, torch.tensor([0, 2]), {"verify_lens": torch.tensor([3, 1])}, "verify_lens.*row 1"),
        (TWO, torch.tensor([0, 0]), {"verify_lens": torch.tensor([4, 1])}, "verify_lens"),
        (TWO, torch.tensor([0, 0]), {"objective": "brier"}, "objective"),
        (TWO, torch.tensor([0, 0]), {"num_bins": 0}, "num_bins"),
        (TWO, torch.tensor([0, 0]), {"grid": []}, "grid"),
        (TWO, torch.tensor([0, 0]), {"grid": [1.0, 0.0]}, "grid"),
        (TWO, torch.tensor([0, 0]), {"grid": [float("nan")]}, "grid"),
    ],
)
def test_errors_name_the_argument(logits, accepted, options, word):
    with pytest.raises(ValueError, match=f"dspark_ext.fit_sts: .*{word}"):
        calibration.fit_sts(logits, accepted, **options)


# --- calibration_report --------------------------------------------------------------------------


def test_the_report_by_hand():
    """Two bins. Survivals of x_1: .2, .4 (lower bin), .6, .8; of x_2: half of that."""
    confidence = torch.tensor([[0.2, 0.5], [0.4, 0.5], [0.6, 0.5], [0.8, 0.5]])
    report = calibration.calibration_report(confidence, torch.tensor([0, 1, 2, 1]), num_bins=2)
    assert report.num_samples.tolist() == [4, 4]
    assert report.predicted.tolist() == pytest.approx([0.5, 0.25])
    assert report.observed.tolist() == [0.75, 0.25]
    assert report.bin_count.tolist() == [[2, 2], [4, 0]]
    assert report.bin_predicted[0].tolist() == pytest.approx([0.3, 0.7])
    assert report.bin_observed[0].tolist() == [0.5, 1.0]
    assert report.ece.tolist() == pytest.approx([(0.2 + 0.3) / 2, 0.0], abs=1e-7)
    assert report.auc.tolist() == [1.0, 2 / 3]  # .3 against .1, .2, .4
    squares = [0.04, 0.36, 0.16, 0.04]
    assert float(report.brier[0]) == pytest.approx(sum(squares) / 4)
    assert "survival" in str(report) and len(str(report).splitlines()) == 3
    inner = calibration.calibration_report(
        confidence, torch.tensor([0, 1, 2, 1]), num_bins=2, kind="conditional"
    )
    assert inner.num_samples.tolist() == [4, 3]  # x_2 is judged where x_1 was accepted
    assert inner.predicted.tolist() == pytest.approx([0.5, 0.5])
    assert inner.observed.tolist() == pytest.approx([0.75, 1 / 3])


def test_honest_confidences_have_a_small_ece():
    logits, accepted = blocks(20000, seed=5)
    honest = torch.sigmoid(logits / torch.tensor(TRUE))
    for kind in ("survival", "conditional"):
        report = calibration.calibration_report(honest, accepted, kind=kind)
        assert (report.ece < 0.03).all()
        assert ((report.predicted - report.observed).abs() < 0.02).all()


def test_without_data_there_is_no_number():
    report = calibration.calibration_report(torch.zeros(0, 2), torch.zeros(0).long())
    for column in (report.predicted, report.observed, report.ece, report.auc, report.brier):
        assert column.isnan().all() and column.shape == (2,)
    assert report.num_samples.tolist() == [0, 0] and report.bin_count.shape == (2, 15)
    assert calibration.calibration_report(torch.rand(3, 0), torch.zeros(3).long()).ece.shape == (0,)
    one_class = calibration.calibration_report(torch.rand(5, 1), torch.ones(5).long())
    assert one_class.auc.isnan().all() and not one_class.ece.isnan().any()


def test_bad_confidences_count_as_the_scheduler_counts_them():
    nan = float("nan")
    report = calibration.calibration_report(
        torch.tensor([[nan, 0.5], [-1.0, 0.5], [7.0, 0.5]]), torch.tensor([0, 0, 1])
    )
    assert float(report.predicted[0]) == pytest.approx(1 / 3)
    assert float(report.brier[0]) == 0.0


@st.composite
def judged(draw):
    rows = draw(st.integers(1, 40))
    width = draw(st.integers(1, 4))
    sixteenths = st.lists(st.integers(0, 16), min_size=width, max_size=width)
    values = draw(st.lists(sixteenths, min_size=rows, max_size=rows))
    accepted = draw(st.lists(st.integers(0, width), min_size=rows, max_size=rows))
    return torch.tensor(values) / 16.0, torch.tensor(accepted)


@SETTINGS
@given(judged(), st.integers(1, 20))
def test_laws_of_the_report(given_blocks, num_bins):
    confidence, accepted = given_blocks
    report = calibration.calibration_report(confidence, accepted, num_bins=num_bins)
    survival = confidence.double().cumprod(1)
    event = torch.arange(confidence.shape[1]) < accepted[:, None]
    assert (report.bin_count.sum(1) == len(accepted)).all()
    # one bin: the distance of the means; more bins can only find more
    gap = (survival.mean(0) - event.double().mean(0)).abs()
    assert (report.ece >= gap - 1e-12).all() and (report.ece <= 1.0).all()
    if num_bins == 1:
        assert torch.allclose(report.ece, gap)
    for k in range(confidence.shape[1]):
        ones, zeros = survival[event[:, k], k], survival[~event[:, k], k]
        if len(ones) and len(zeros):
            wins = (ones[:, None] > zeros).double() + 0.5 * (ones[:, None] == zeros).double()
            assert float(report.auc[k]) == pytest.approx(float(wins.mean()), abs=1e-12)
        else:
            assert report.auc[k].isnan()
    order = torch.randperm(len(accepted))
    again = calibration.calibration_report(confidence[order], accepted[order], num_bins=num_bins)
    assert torch.equal(again.bin_count, report.bin_count)
    assert torch.allclose(again.ece, report.ece) and torch.allclose(again.brier, report.brier)


@SETTINGS
@given(judged(), st.floats(0.2, 5.0))
def test_a_temperature_keeps_the_order_at_a_position(given_blocks, temperature):
    confidence, accepted = given_blocks
    logits = torch.logit(confidence[:, :1].double().clamp(0.01, 0.99)).float()
    accepted = accepted.clamp(max=1)
    before, after = (
        calibration.calibration_report(calibration.calibrate(logits, torch.tensor([t])), accepted)
        for t in (1.0, temperature)
    )
    np.testing.assert_allclose(before.auc, after.auc)


def test_report_errors():
    with pytest.raises(ValueError, match="dspark_ext.calibration_report: kind"):
        calibration.calibration_report(TWO, torch.tensor([0, 0]), kind="joint")
    with pytest.raises(ValueError, match="dspark_ext.calibration_report: num_bins"):
        calibration.calibration_report(TWO, torch.tensor([0, 0]), num_bins=0)
    with pytest.raises(ValueError, match="dspark_ext.calibration_report: confidence"):
        calibration.calibration_report(TWO[0], torch.tensor([0, 0]))
