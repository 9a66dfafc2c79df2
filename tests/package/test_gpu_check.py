"""tools/gpu_check.py where there is no GPU, and its result file."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/gpu_check.py"


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("gpu_check", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so_in_one_line(tool):
    if tool.missing_gpu() is None:
        pytest.skip("this machine has a GPU")
    for arguments in (["--detect"], []):
        done = subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.startswith("gpu-check: ") and done.stderr.count("\n") == 1


def test_result_file(tool, tmp_path):
    report = tool.Report(tmp_path / "check.json")
    report.add("suite", "passed", seconds=3.5, detail="7 passed")
    report.add("memcheck", "missing", detail="not | found")
    report.add("bench", "failed", table="| a |")
    assert report.failed() == ["bench"]
    steps = json.loads((tmp_path / "check.json").read_text())["steps"]
    assert [step["status"] for step in steps] == ["passed", "missing", "failed"]
    text = (tmp_path / "check.md").read_text()
    assert "| suite | passed | 3.5 | 7 passed |" in text and "not / found" in text


def test_a_step_of_tests_counts_what_passed(tool, tmp_path):
    suite = tmp_path / "test_two.py"
    suite.write_text("def test_good(): pass\ndef test_bad(): assert 0\n")
    report = tool.Report(tmp_path / "check.json")
    tool.run_tests(report, "both", [suite])
    tool.run_tests(report, "good", [suite, "-k", "good"])
    tool.run_tests(report, "none", [suite, "-k", "absent"])
    steps = report.result["steps"]
    assert [step["status"] for step in steps] == ["failed", "passed", "failed"]
    assert steps[0]["counts"]["failures"] == 1 and steps[1]["detail"].startswith("1 passed")
