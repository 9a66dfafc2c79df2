"""dspark_ext.calibration.Calibration as a file, and the reliability diagram."""

import builtins
import json
import math

import pytest
import torch
from calibration_data import blocks

from dspark_ext import calibration, draft
from dspark_ext.calibration import Calibration


def test_round_trip(tmp_path):
    logits, accepted = blocks(2000)
    fitted = calibration.fit_calibration(
        logits, accepted, dataset="synthetic", conditions={"temperature": 0.7, "rule": "block"}
    )
    assert fitted.num_samples == 2000
    assert sum(fitted.ece_after) < sum(fitted.ece_before)
    fitted.save(tmp_path / "sts.json")
    assert Calibration.load(tmp_path / "sts.json", num_drafts=5) == fitted
    assert torch.equal(fitted.tensor(), calibration.fit_sts(logits, accepted))
    assert torch.equal(fitted.apply(logits), draft.calibrate(logits, fitted.tensor()))


def test_the_file_is_plain_json(tmp_path):
    """Keys that other programs read; no NaN, which JSON does not have."""
    Calibration((1.0, 2.0), "set", 7, (0.5, math.nan), (0.1, math.nan)).save(tmp_path / "sts.json")
    form = json.loads((tmp_path / "sts.json").read_text(), parse_constant=pytest.fail)
    assert form["format"] == "dspark_ext.calibration" and form["version"] == 1
    assert form["temperatures"] == [1.0, 2.0] and form["ece_before"] == [0.5, None]
    again = Calibration.load(tmp_path / "sts.json")
    assert again.ece_before[0] == 0.5 and math.isnan(again.ece_before[1])


def test_reads_a_file_of_sglang(tmp_path):
    form = {
        "temperatures": [2, 1.0, 0.5],
        "dataset": "mt_bench",
        "num_samples": 100,
        "ece_before": [0.1, 0.2, 0.3],
        "ece_after": [0.01, 0.02, 0.03],
        "collected_by": "a key of theirs",
    }
    (tmp_path / "sts.json").write_text(json.dumps(form))
    loaded = Calibration.load(tmp_path / "sts.json")
    assert loaded.temperatures == (2.0, 1.0, 0.5) and loaded.dataset == "mt_bench"
    confidence = loaded.apply(torch.ones(1, 3))
    assert confidence[0].tolist() == pytest.approx([0.6225, 0.7311, 0.8808], abs=5e-5)  # BR-032


OURS = {"format": "dspark_ext.calibration", "version": 1, "temperatures": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ([1.0], "object"),
        ({}, "temperatures: missing"),
        ({**OURS, "version": 2}, "version: expected 1, got 2"),
        ({**OURS, "format": "other"}, "format"),
        ({"format": OURS["format"], "temperatures": [1.0]}, "version: expected 1, got None"),
        ({**OURS, "temperature": 3}, "temperature: unknown field"),
        ({**OURS, "temperatures": "2"}, "temperatures: expected a list"),
        ({**OURS, "temperatures": [1.0, 0]}, r"temperatures\[1\]: expected a finite number > 0"),
        ({**OURS, "temperatures": [-1.0]}, r"temperatures\[0\]"),
        ({**OURS, "temperatures": [1.0, None]}, r"temperatures\[1\]"),
        ({**OURS, "temperatures": [1.0, True]}, r"temperatures\[1\]"),
        ({**OURS, "temperatures": [1.0, "2"]}, r"temperatures\[1\]"),
        ({**OURS, "ece_before": [0.1]}, "ece_before: expected 2"),
        ({**OURS, "ece_after": 0.1}, "ece_after: expected a list"),
        ({**OURS, "num_samples": -1}, "num_samples"),
        ({**OURS, "num_samples": "9"}, "num_samples"),
        ({**OURS, "dataset": 3}, "dataset"),
        ({**OURS, "conditions": []}, "conditions"),
    ],
)
def test_errors_name_file_and_field(tmp_path, form, words):
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(form))
    with pytest.raises(ValueError, match=f"dspark_ext.Calibration: .*broken.json: .*{words}"):
        Calibration.load(path)


def test_other_ways_to_be_no_calibration(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text('{"temperatures": [1.0, NaN]}')
    with pytest.raises(ValueError, match=r"broken.json: temperatures\[1\]"):
        Calibration.load(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="dspark_ext.Calibration: .*broken.json: "):
        Calibration.load(path)
    path.write_text(json.dumps(OURS))
    with pytest.raises(ValueError, match="broken.json: temperatures: expected 3"):
        Calibration.load(path, num_drafts=3)
    with pytest.raises(FileNotFoundError):
        Calibration.load(tmp_path / "missing.json")


def test_a_tensor_changed_in_place_is_followed():
    """BR-031: whoever holds the tensor of temperatures sees a new calibration copied into it."""
    held = Calibration((1.0, 1.0)).tensor()
    logits = torch.ones(1, 2)
    before = draft.calibrate(logits, held)
    held.copy_(Calibration((2.0, 0.5)).tensor())
    assert draft.calibrate(logits, held)[0].tolist() == pytest.approx([0.6225, 0.8808], abs=5e-5)
    assert before[0].tolist() == pytest.approx([0.7311, 0.7311], abs=5e-5)


# --- reliability diagram -------------------------------------------------------------------------


def test_reliability_diagram(tmp_path):
    pytest.importorskip("matplotlib")
    logits, accepted = blocks(500)
    raw = calibration.calibration_report(torch.sigmoid(logits), accepted)
    fitted = calibration.fit_calibration(logits, accepted, objective="log_loss")
    better = calibration.calibration_report(fitted.apply(logits), accepted)
    figure = calibration.plot_reliability(
        {"raw": raw, "fitted": better}, tmp_path / "reliability.png", title="synthetic"
    )
    assert (tmp_path / "reliability.png").stat().st_size > 1000
    panels = [axes for axes in figure.axes if axes.axison]
    assert [panel.get_title() for panel in panels] == [f"draft {k + 1}" for k in range(5)]
    line = panels[0].lines[1]  # the first is the diagonal
    filled = raw.bin_count[0] > 0
    assert line.get_xdata() == pytest.approx(raw.bin_predicted[0][filled].tolist())
    assert line.get_ydata() == pytest.approx(raw.bin_observed[0][filled].tolist())
    assert calibration.plot_reliability(raw) is not None


def test_reliability_diagram_errors(monkeypatch):
    pytest.importorskip("matplotlib")
    accepted = torch.tensor([0, 1])
    two = calibration.calibration_report(torch.rand(2, 2), accepted)
    three = calibration.calibration_report(torch.rand(2, 3), accepted)
    with pytest.raises(ValueError, match="dspark_ext.plot_reliability: reports"):
        calibration.plot_reliability({"a": two, "b": three})
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"needs matplotlib: pip install 'dspark_ext\[plot\]'"):
        calibration.plot_reliability(two)
