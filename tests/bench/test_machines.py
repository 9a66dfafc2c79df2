"""The model of larger machines: its counts are those of the models, its rule does what it says."""

import json
import pathlib
import sys

import pytest

BENCH = pathlib.Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import machines  # noqa: E402
import step_model  # noqa: E402

NAMES = json.loads((BENCH / "data/machines.json").read_text())


def test_the_models_have_the_weights_that_are_published():
    d, t = step_model.Drafter(), step_model.Target()
    experts = d.stages * (d.experts + 1) * 3 * d.width * d.inner
    head = step_model.VOCAB * step_model.RANK * 2
    total = experts + d.stages * d.attention_weights + d.feature_weights + head
    assert total == pytest.approx(14.2e9, rel=0.01)
    experts = t.layers * (t.experts + 1) * 3 * t.width * t.inner
    total = experts + t.layers * t.attention_weights + 2 * step_model.VOCAB * t.width
    assert total == pytest.approx(284e9, rel=0.01)


def test_experts_touched():
    assert step_model.touched(128, 3, 1) == pytest.approx(3)
    assert step_model.touched(128, 3, 10_000) == pytest.approx(128)


def test_the_longer_of_bytes_and_flops_counts_and_launches_come_on_top():
    peaks = {"memory_tb_per_s": 2, "fp32_tflop_per_s": 10, "bf16_tflop_per_s": 100, "launch_us": 3}
    assumed = machines.Assumptions(memory_share=0.5, compute_share=0.1, collective_us=7)
    reading = step_model.Work(bytes=5e6, flops=1e6)
    assert machines.microseconds(reading, peaks, assumed) == pytest.approx(5 + 3)
    computing = step_model.Work(bytes=5e6, flops=2e8, unit="bf16", launches=2, collectives=1)
    assert machines.microseconds(computing, peaks, assumed) == pytest.approx(20 + 6 + 7)
    experts = step_model.Work(bytes=5e6, format="bf16", launches=0)
    assert machines.microseconds(experts, peaks, assumed) == pytest.approx(5 / 0.9)


@pytest.mark.parametrize("name", machines.MACHINES)
def test_steps_grow_with_the_batch_and_the_parts_add_up(name):
    before = 0
    for batch in machines.BATCHES:
        times = machines.step_microseconds(batch, NAMES[name], machines.Assumptions())
        parts = sum(times[part] for part in step_model.step(batch))
        assert times["whole step"] == pytest.approx(parts) and parts > before
        assert 0 < times["operators of this package"] < parts
        before = parts


def test_the_document_has_every_machine_and_source():
    text = machines.document(machines.Assumptions())
    assert all(name in text and NAMES[name]["source"] in text for name in NAMES)
    for entry in json.loads((BENCH / "data/published.json").read_text()):
        assert entry["what"] in text and entry["source"].startswith("https://")


def test_the_committed_document_is_that_of_the_model():
    committed = (BENCH / "results/machines.md").read_text()
    assert committed == machines.document(machines.Assumptions()) + "\n"


def test_the_check_compares_with_the_peaks_of_the_run():
    facts = {"copy_gb_per_s": 10, "read_gb_per_s": 20, "fp32_gflop_per_s": 100}
    facts |= {"bf16_gflop_per_s": 100, "call_us": 2, "threads": 1}
    moving = {"case": "pack B=2", "op": "pack", "sizes": {"B": 2}, "device": "cpu"}
    moving |= {"moved_bytes": 2_000_000, "cpu_us": 204.0}
    sizes = {"M": 10, "in": 1000, "out": 1000}
    computing = {"case": "linear", "op": "linear bf16", "sizes": sizes, "device": "cpu"}
    computing |= {"moved_bytes": 0, "cpu_us": 101.0}
    assumed = machines.Assumptions(compute_share=0.5)
    rows = machines.check_rows([{"facts": facts, "rows": [moving, computing]}], assumed)
    assert rows[0]["predicted"] == pytest.approx(102)
    assert rows[0]["ratio"] == rows[0]["shared"] == pytest.approx(0.5)
    assert rows[1]["ratio"] == pytest.approx(2) and rows[1]["shared"] == pytest.approx(402 / 101)
    assert "| pack | 1 | 0.50 | 0.50 | 0.50 | 0.50 |" in machines.check_table(rows)
