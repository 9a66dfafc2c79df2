"""What `import dspark_ext` brings, and what it must not need."""

import importlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

import dspark_ext

CONTRACT = {
    "sampling": ["rejection_sample", "target_probs", "sample", "block_acceptance"],
    "verify": [
        *("schedule", "pack", "unpack", "commit", "cudagraph_sizes"),
        *("CostTable", "profile_cost_table", "AcceptanceStats", "AcceptanceEstimator"),
        *("fit_sts", "calibrate", "DraftGate"),
    ],
    "draft": ["markov_sample", "confidence"],
    "moe": [
        *("route", "plan", "plan_capacity", "permute", "combine", "ExpertParallel"),
        *("grouped_gemm", "swiglu", "fused_moe"),
    ],
    "linear": ["PackedLinear", "linear", "pack_linear"],
    "attention": ["attention"],
}


@pytest.fixture(scope="module")
def fresh_import(tmp_path_factory):
    """Names of all modules that a bare `import dspark_ext` loads, from a foreign directory."""
    package = pathlib.Path(dspark_ext.__file__).parent.parent
    script = (
        "import json, sys, torch; before = set(sys.modules); import dspark_ext; "
        "print(json.dumps([sorted(set(sys.modules) - before), dir(dspark_ext)]))"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env={**os.environ, "PYTHONPATH": str(package)},
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return json.loads(run.stdout)


def test_import_alone_works(fresh_import):
    modules, _ = fresh_import
    assert "dspark_ext._C" in modules


@pytest.mark.parametrize(
    "package",
    [
        "transformers",
        "matplotlib",
        "tokenizers",
        "safetensors",
        "scipy",
        "pytest",
        "vllm",
        "sglang",
    ],
)
def test_import_needs_no_optional_package(fresh_import, package):
    modules, _ = fresh_import
    assert package not in modules


@pytest.mark.parametrize("family", CONTRACT)
def test_family_has_the_names_of_its_contract(family):
    module = importlib.import_module(f"dspark_ext.{family}")
    missing = [name for name in CONTRACT[family] if not hasattr(module, name)]
    assert not missing


@pytest.mark.parametrize("family", ["sampling", "verify", "draft", "engine"])
def test_family_is_an_attribute(fresh_import, family):
    _, names = fresh_import
    assert family in names and hasattr(dspark_ext, family)
