"""build_info() and capabilities() say what is there, and agree with the dispatcher."""

import re
import subprocess
import sys

import pytest
import torch

import dspark_ext
from dspark_ext._info import _architecture_names
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
def test_a_gpu_backend_says_what_was_built_or_why_it_was_not_br053(backend):
    facts = dspark_ext.build_info()[backend]
    if facts["built"]:
        assert facts["reason"] is None
        assert facts["compiler"]
        known = {"cuda": r"(sm|compute)_\d+[af]?", "hip": r"gfx[0-9a-f]+"}[backend]
        assert facts["architectures"]
        assert all(re.fullmatch(known, name) for name in facts["architectures"])
    else:
        assert facts["reason"].startswith("not built: ")
        assert facts["architectures"] == facts["numerics_flags"] == []
        assert facts["compiler"] is None


@pytest.mark.parametrize(
    ("backend", "flags"),
    [
        ("cuda", ["--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"]),
        (
            "hip",
            [
                "-ffp-contract=off",
                "-fhip-fp32-correctly-rounded-divide-sqrt",
                "-fno-gpu-flush-denormals-to-zero",
            ],
        ),
    ],
)
def test_gpu_kernels_are_compiled_with_the_flags_of_the_numerics(backend, flags):
    facts = dspark_ext.build_info()[backend]
    if not facts["built"]:
        pytest.skip(facts["reason"])
    assert facts["numerics_flags"] == flags


@pytest.mark.parametrize(
    ("item", "names"),
    [
        ("90a-real", ["sm_90a"]),
        ("80-virtual", ["compute_80"]),
        ("80", ["sm_80", "compute_80"]),
        ("gfx942", ["gfx942"]),
    ],
)
def test_architectures_are_named_as_compilers_name_them(item, names):
    assert _architecture_names(item) == names


def test_the_backend_in_use_fits_torch():
    info = dspark_ext.build_info()
    own, other = ("hip", "cuda") if torch.version.hip else ("cuda", "hip")
    assert info["gpu"] != other
    if not info[own]["built"]:
        assert info["gpu"] is None


def test_capabilities_list_the_operators_of_the_cpu():
    facts = dspark_ext.capabilities("cpu")
    assert facts["available"] is True
    assert facts["reason"] is None
    assert "rejection_sample" in facts["operators"]
    assert facts["isa"] == dspark_ext.build_info()["cpu"]["active"]
    assert facts["threads"] == torch.get_num_threads()


def test_capabilities_of_a_missing_backend_say_what_to_do():
    if dspark_ext.build_info()["gpu"] is not None:
        pytest.skip("this build has a GPU backend")
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
