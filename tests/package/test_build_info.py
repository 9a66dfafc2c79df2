"""build_info() and capabilities() say what is there, and agree with the dispatcher."""

import re
import subprocess
import sys

import pytest
import torch

import dspark_ext
from dspark_ext._missing import operators


def test_version_is_that_of_pyproject(repository):
    pyproject = (repository / "pyproject.toml").read_text()
    expected = re.search(r'^version = "(.*)"$', pyproject, re.MULTILINE).group(1)
    assert dspark_ext.build_info()["version"] == dspark_ext.__version__ == expected


def test_cpu_architectures_are_those_of_the_machine_type():
    cpu = dspark_ext.build_info()["cpu"]
    assert cpu["architectures"][0] == "baseline"
    assert cpu["active"] in cpu["architectures"]


def test_contraction_is_off():
    assert "-ffp-contract=off" in dspark_ext.build_info()["numerics_flags"]


@pytest.mark.parametrize("backend", ["cuda", "hip"])
def test_a_backend_that_is_not_built_says_why(backend):
    facts = dspark_ext.build_info()[backend]
    assert facts["built"] is False
    assert facts["architectures"] == []
    assert facts["reason"].startswith("not built")


def test_capabilities_list_the_operators_of_the_cpu():
    facts = dspark_ext.capabilities("cpu")
    assert facts["available"] is True
    assert facts["reason"] is None
    assert "rejection_sample" in facts["operators"]
    assert facts["isa"] == dspark_ext.build_info()["cpu"]["active"]
    assert facts["threads"] == torch.get_num_threads()


def test_capabilities_of_a_missing_backend_say_what_to_do():
    facts = dspark_ext.capabilities("cuda")
    assert facts["available"] is False
    assert facts["operators"] == []
    assert "move the tensors to the CPU" in facts["reason"]


def test_capabilities_refuse_an_unknown_device():
    with pytest.raises(ValueError, match="device: expected cpu or cuda, got meta"):
        dspark_ext.capabilities("meta")


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_environment_variable_forces_an_instruction_set(isa):
    if isa not in dspark_ext.build_info()["cpu"]["architectures"]:
        pytest.skip(f"{isa} is not compiled in for this machine type")
    code = "import dspark_ext; print(dspark_ext.build_info()['cpu']['active'])"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"DSPARK_CPU_ISA": isa, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    if f"DSPARK_CPU_ISA={isa}: this machine supports at most" in result.stderr:
        return  # the documented refusal
    assert result.stdout.strip() == isa, result.stderr


def test_every_operator_that_returns_a_tensor_has_a_fake_kernel():
    """BR-059: torch.compile needs it."""
    names = [name for name in operators() if "." not in name]
    assert names
    missing = []
    for name in names:
        operator = getattr(torch.ops.dspark_ext, name).default
        entry = torch._library.simple_registry.singleton.find(f"dspark_ext::{name}")
        if operator._schema.returns and entry.fake_impl.kernel is None:
            missing.append(name)
    assert missing == []
