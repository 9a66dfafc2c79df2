"""The examples of docs/calibration.md and docs/cost-table.md run as they stand."""

import os
import pathlib
import re
import subprocess
import sys
import types
import warnings

import pytest
import torch
from calibration_data import blocks

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def examples(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_examples_of_calibration(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    pytest.importorskip("prometheus_client")
    monkeypatch.chdir(tmp_path)
    fit, estimate, export = examples("calibration.md")
    logits, accepted = blocks(3000)
    names = {
        "torch": torch,
        "conf_logits": logits[:2000],
        "num_accepted": accepted[:2000],
        "held_out_logits": logits[2000:],
        "held_out_accepted": accepted[2000:],
    }
    exec(fit, names)
    assert (tmp_path / "reliability.png").exists() and "ECE" in capsys.readouterr().out
    assert names["temperatures"].shape == (5,)

    from dspark_ext.verify import CostTable

    names |= {
        "max_requests": 4,
        "num_drafts": 5,
        "request_ids": torch.tensor([2, 0], dtype=torch.int32),
        "table": CostTable([1, 12], [1.0, 2.0]),
        "output": types.SimpleNamespace(num_accepted=torch.tensor([0, 1], dtype=torch.int32)),
        "freed_request_ids": torch.tensor([0]),
    }
    exec(estimate, names)
    assert names["stats"].read().accepted == 1
    exec(export, names)


def test_the_example_of_cost_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (measure,) = examples("cost-table.md")
    names = {"run_target": lambda rows: None, "max_batch": 2, "num_drafts": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a step that does nothing is flat
        exec(measure, names)
        again = names["CostTable"].load("cost.json")
    assert torch.equal(again.seconds, names["table"].seconds)
    assert again.rows == names["cudagraph_sizes"](2, 3) and again.interpolation == "step"


def test_the_optional_packages_are_optional():
    code = (
        "import sys, dspark_ext.calibration, dspark_ext.metrics;"
        "print({'matplotlib', 'prometheus_client'} & set(sys.modules))"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "set()"


@pytest.mark.parametrize("page", ["calibration.md", "cost-table.md"])
def test_links_resolve(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", (DOCS / page).read_text())
    assert links and [link for link in links if not (DOCS / link).exists()] == []
