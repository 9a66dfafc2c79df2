"""Every benchmark file runs: its cases on tiny sizes are checked, timed and reported. No clock is
looked at."""

import importlib
import json
import math
import pathlib
import sys

import pytest
import torch

BENCH = pathlib.Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import growth  # noqa: E402
import harness  # noqa: E402
import peaks  # noqa: E402
import report  # noqa: E402
import timing  # noqa: E402

FACTS = {
    **{"threads": 1, "date": "2026-01-01", "cpu": "any", "load": 0.0},
    **{"copy_gb_per_s": 20.0, "read_gb_per_s": 25.0, "call_us": 1.0},
    **{"fp32_gflop_per_s": 100.0, "bf16_gflop_per_s": 200.0},
}
FILES = sorted(
    path.stem for path in BENCH.glob("bench_*.py") if "harness.main(" in path.read_text()
)
QUICK = [name for name in FILES if "quick: bool" in (BENCH / f"{name}.py").read_text()]


@pytest.fixture(autouse=True)
def few_sets(monkeypatch):
    """Two input sets do for a test."""
    monkeypatch.setattr(timing, "MAX_SETS", 2)
    torch.manual_seed(0)


def rows_of(cases) -> list[dict]:
    return [harness.measure(case, FACTS, 1) for case in cases]


def test_the_families_have_a_file():
    families = ("sampling", "draft", "moe", "dispatch", "verify", "linear", "attention")
    assert {f"bench_{name}" for name in (*families, "formats", "confidence")} <= set(FILES)


@pytest.mark.parametrize("name", QUICK)
def test_a_file_runs(name):
    cases = importlib.import_module(name).make_cases(quick=True)
    rows = rows_of(cases)
    assert len({case.name for case in cases}) == len(cases)
    for row in rows:
        assert row["median_us"] > 0 and row["floor_bytes"] > 0 and row["percent_of_peak"] > 0
        assert row["moved_over_floor"] >= 1
        json.dumps(row)


def test_the_cases_of_bench_moe_run():
    layers = importlib.import_module("moe_layers")
    cases = [
        layers.layer_case(3, (4, 2, 64, 64), format, how)
        for format in layers.FORMATS
        for how in ("exact", "rows", "prepared")
    ]
    assert all(row["flops"] > 0 for row in rows_of(cases))


@pytest.mark.parametrize("name", FILES)
def test_growth_curves_build_their_cases(name):
    for curves in getattr(importlib.import_module(name), "GROWTHS", {}).values():
        for curve in curves:
            for value in curve.values:
                assert isinstance(curve.make_case(value), harness.Case)


def test_a_wrong_operator_is_not_timed():
    from bench_confidence import calibrate_case

    case = calibrate_case(2)
    case.check = lambda inputs: torch.testing.assert_close(inputs[0], inputs[0] + 1)
    case.run = lambda *inputs: pytest.fail("timed")
    with pytest.raises(AssertionError, match="not close"):
        harness.measure(case, FACTS, 1)


def test_inputs_exceed_the_cache_and_small_ones_are_copied(monkeypatch):
    monkeypatch.setattr(timing, "MAX_SETS", 64)
    monkeypatch.setattr(timing, "last_level_cache_bytes", lambda device: 1000)
    from bench_confidence import calibrate_case

    case = calibrate_case(2)  # 60 bytes of inputs
    sets = timing.input_sets(case.make_inputs, "cpu", case.make_inputs())
    assert len(sets) == math.ceil(3000 / 60)
    assert len({inputs[0].data_ptr() for inputs in sets}) == len(sets)


# ---- growth -------------------------------------------------------------------------------------


def test_a_line_is_found_and_what_is_not_on_it_shows():
    values = [1, 2, 4, 8, 16]
    start, slope, off = growth.line(values, [3 + 0.5 * v for v in values])
    assert (start, slope) == pytest.approx((3, 0.5)) and off == pytest.approx(0, abs=1e-9)
    *_, off = growth.line(values, [float(v * v) for v in values])
    assert off > 0.5


def test_the_exponent_is_that_of_the_larger_half():
    values = [1, 2, 4, 8, 16, 32]
    assert growth.exponent(values, [100.0, 90.0, *(v**1.5 for v in values[2:])]) == pytest.approx(
        1.5
    )


def test_a_curve_is_measured():
    from bench_confidence import GROWTHS

    curve = growth.measure("K", GROWTHS["K"][0], 1, True, "cpu")
    assert curve["values"] == [2, 3] and len(curve["us"]) == 2
    assert "over K: exponent" in growth.markdown([curve])


# ---- the command line and the report ------------------------------------------------------------


def test_a_run_writes_its_files_and_a_report_is_made_of_them(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    import bench_confidence

    monkeypatch.setattr(peaks, "measure", lambda device, scale: FACTS)
    for name, extra in (("confidence", []), ("confidence_growth", ["--grow", "K"])):
        arguments = ["bench", "--quick", "--repeats", "1", "--device", "cpu"]
        arguments += ["--json", str(tmp_path / f"{name}.json")]
        monkeypatch.setattr(sys, "argv", [*arguments, *extra])
        harness.main("Confidences.", bench_confidence.make_cases, bench_confidence.GROWTHS)
    (tmp_path / "other.json").write_text('{"facts": {}}')
    (tmp_path / "lines.json").write_text('{"facts": {}}\n{"case": 1}\n')
    out = tmp_path / "report"
    monkeypatch.setattr(
        sys, "argv", ["report", *map(str, tmp_path.glob("*.json")), "--out", str(out)]
    )
    report.main()
    text = (out / "report.md").read_text()
    assert "| confidence bfloat16 B=2 K=5 d=2048 r=256 |" in text
    assert "| confidence bfloat16 B=64 d=2048 | K | 2 .. 3 |" in text
    assert "Passed over: lines.json, other.json." in text
    for name in report.PICTURES:
        assert f"]({name})" in text and (out / name).stat().st_size > 5000


def test_an_unknown_dimension_is_refused(monkeypatch):
    import bench_confidence

    monkeypatch.setattr(peaks, "measure", lambda device, scale: FACTS)
    monkeypatch.setattr(sys, "argv", ["bench", "--grow", "Q", "--device", "cpu"])
    with pytest.raises(SystemExit, match="--grow Q: expected one of: B, K"):
        harness.main("Confidences.", bench_confidence.make_cases, bench_confidence.GROWTHS)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert harness.devices_of("auto") == ["cpu"]
    with pytest.raises(SystemExit, match="--device cuda: no GPU"):
        harness.devices_of("cuda")


def test_a_gpu_is_timed_by_events_around_graphs_in_turn(monkeypatch):
    calls = []
    monkeypatch.setattr(peaks, "gpu_seconds", lambda function: (function(), 2e-6)[1])
    monkeypatch.setattr(
        timing, "captured", lambda function, inputs: lambda: calls.append(("graph", *inputs))
    )
    timer = timing.Timer(lambda x: calls.append(("call", x)), [(1,), (2,)], "cuda", True)
    assert [timer.sample()[0] for _ in range(3)] == [2e-6] * 3
    assert calls == [("graph", 1), ("graph", 2), ("graph", 1)]
    timer = timing.Timer(lambda x: calls.append(("call", x)), [(1,), (2,)], "cuda", False)
    assert timer.once_each()[0] == pytest.approx(2e-6)
    assert {("call", 1), ("call", 2)} <= set(calls)


def test_peaks_are_measured():
    found = peaks.measure("cpu", scale=64)
    assert set(found) == {key for key in FACTS if key.endswith(("_per_s", "_us"))}
    assert all(value > 0 for value in found.values())
