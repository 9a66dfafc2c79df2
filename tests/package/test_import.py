"""`import dspark_ext` alone: no device touched, nothing heavy loaded, one clear line on failure."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

import dspark_ext
from dspark_ext import _load
from dspark_ext._missing import refuse

SOURCE_PATH = ":".join(filter(None, sys.path))


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess:
    environment = {"PYTHONPATH": SOURCE_PATH, **environment}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_imports_with_all_gpus_hidden_br055():
    """BR-055."""
    code = "import dspark_ext; print(dspark_ext.build_info()['cpu']['active'])"
    result = run_python(code, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == dspark_ext.build_info()["cpu"]["active"]


def test_import_does_not_initialise_cuda_br055():
    code = "import dspark_ext, torch; dspark_ext.build_info(); print(torch.cuda.is_initialized())"
    assert run_python(code).stdout.strip() == "False"


def test_import_adds_nothing_heavy_to_torch():
    code = (
        "import sys, torch; before = set(sys.modules); import dspark_ext;"
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    heavy = {"transformers", "gguf", "safetensors", "matplotlib", "rich", "scipy", "torchvision"}
    heavy.add("prometheus_client")
    assert set(result.stdout.split()) & heavy == set()


def test_families_are_attributes():
    code = "import dspark_ext; print(dspark_ext.sampling.__name__, dspark_ext.engine.__name__)"
    assert run_python(code).stdout.split() == ["dspark_ext.sampling", "dspark_ext.engine"]


def test_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dspark_ext.nonsense


@pytest.mark.parametrize("version", ["1.13.1", "2.9.1+cu128"])
def test_an_older_torch_is_refused_in_one_line_br052(version):
    """BR-052."""
    with pytest.raises(ImportError, match=r"built for torch >= 2.10, found torch") as caught:
        _load.check_torch(version)
    assert version in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "2.15.0a0+git1234", "3.0.0"])
def test_a_newer_torch_is_accepted(version):
    _load.check_torch(version)


@pytest.mark.parametrize("damage", ["absent", "garbage"])
def test_a_compiled_part_that_does_not_load_is_named_br052(tmp_path, damage):
    """BR-052: never only a mangled name."""
    source = pathlib.Path(dspark_ext.__file__).parent
    shutil.copytree(source, tmp_path / "dspark_ext", ignore=shutil.ignore_patterns("*.so"))
    if damage == "garbage":
        (tmp_path / "dspark_ext" / pathlib.Path(dspark_ext._C.__file__).name).write_bytes(
            b"\x7fELF"
        )
    # -S keeps an editable install's import hook out; the search path is given in full.
    result = subprocess.run(
        [sys.executable, "-S", "-c", "import dspark_ext"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{SOURCE_PATH}"},
        capture_output=True,
        text=True,
    )
    last_line = result.stderr.strip().splitlines()[-1]
    assert "the compiled part did not load: built for torch >= 2.10" in last_line
    assert f"found torch {torch.__version__}" in last_line


def test_a_missing_torch_is_named_with_the_command(tmp_path):
    source = pathlib.Path(dspark_ext.__file__).parent
    shutil.copytree(source, tmp_path / "dspark_ext", ignore=shutil.ignore_patterns("*.so"))
    result = subprocess.run(
        [sys.executable, "-S", "-c", "import dspark_ext"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "torch is missing; install it with: pip install 'torch>=2.10'" in result.stderr


def test_a_gpu_tensor_gives_an_error_that_says_what_to_do():
    """The kernel registered for CUDA tensors; the dispatcher needs no GPU to call it."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    backend = dspark_ext.build_info()["gpu"]
    reason = f"{backend} backend lacks this operator" if backend else "(cuda|hip) backend "
    with pytest.raises(
        NotImplementedError, match=rf"^dspark_ext.pack_linear: {reason}.*to the CPU"
    ):
        torch.ops.dspark_ext.pack_linear.default.redispatch(key, torch.zeros(8, 8))
    with pytest.raises(NotImplementedError, match=r"^dspark_ext.sample: .*docs/install.md"):
        refuse("sample.out")()


@pytest.mark.parametrize("where", ["logits", "parameter"])
def test_tensors_on_several_devices_are_refused(where):
    """One of them being meta, the fake kernel answers; its result must not pass for a real one."""
    logits, temperature = torch.zeros(2, 8), torch.ones(2)
    if where == "logits":
        logits = logits.to("meta")
        message = "dspark_ext.target_probs: temperature: expected device meta, got cpu"
    else:
        temperature = temperature.to("meta")
        message = "dspark_ext.target_probs: temperature: expected device cpu, got meta"
    with pytest.raises(RuntimeError, match=message):
        dspark_ext.sampling.target_probs(logits, temperature=temperature)
    with pytest.raises(RuntimeError, match=message):
        dspark_ext.sampling.target_probs(
            logits, temperature=temperature, out=torch.empty_like(logits)
        )


def test_meta_tensors_give_meta_results():
    probs = dspark_ext.sampling.target_probs(torch.zeros(2, 8, device="meta"), temperature=1.0)
    assert (probs.device.type, probs.shape) == ("meta", (2, 8))


def test_a_hip_library_that_does_not_load_is_named():
    """On a ROCm build of torch; here as if it were one, in a process of its own."""
    code = (
        "import dspark_ext; from dspark_ext import _C, _missing; _C.use_hip('/nowhere/_hip.so');"
        "print(_C.gpu_backend(), _missing.missing_backend('cuda'))"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("None hip backend ")
    if dspark_ext.build_info()["hip"]["built"]:
        assert "does not load: /nowhere/_hip.so" in result.stdout
    else:
        assert "not built" in result.stdout


def test_the_hip_library_loads_beside_any_torch():
    facts = dspark_ext.build_info()["hip"]
    if not facts["built"]:
        pytest.skip(facts["reason"])
    library = pathlib.Path(dspark_ext._C.__file__).parent / "_hip.so"
    code = f"from dspark_ext import _C; _C.use_hip({str(library)!r}); print(_C.gpu_backend())"
    assert run_python(code).stdout.strip() == "hip"


def import_with(tmp_path, torch: dict[str, str]) -> str:
    """The last line of `import dspark_ext` beside a torch made of these files."""
    source = pathlib.Path(dspark_ext.__file__).parent
    shutil.copytree(source, tmp_path / "dspark_ext", ignore=shutil.ignore_patterns("*.so"))
    (tmp_path / "torch").mkdir()
    for name, text in torch.items():
        (tmp_path / "torch" / name).write_text(text)
    result = subprocess.run(
        [sys.executable, "-S", "-c", "import dspark_ext"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    return result.stderr.strip().splitlines()[-1]


def test_what_is_left_of_a_removed_torch_is_named(tmp_path):
    line = import_with(tmp_path, {})
    assert line.startswith("ImportError: dspark_ext: torch is only [") and "torch'" in line
    assert "incomplete removal has left; install it again: pip install --force-reinst" in line


def test_a_torch_whose_libraries_do_not_load_is_named(tmp_path):
    code = "raise OSError('libcudart.so.13: cannot open shared object file')"
    line = import_with(tmp_path, {"__init__.py": code})
    assert line.startswith("ImportError: dspark_ext: torch does not load: libcudart.so.13: cannot")


@pytest.mark.parametrize("value", ["nonsense", "AVX2"])
def test_an_unknown_instruction_set_is_named_at_the_import(value):
    last = run_python("import dspark_ext", DSPARK_CPU_ISA=value).stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: dspark_ext: DSPARK_CPU_ISA: expected baseline, avx2,")
    assert last.endswith(f"got {value}")


def test_an_empty_choice_of_instruction_set_is_none():
    code = "import dspark_ext; print(dspark_ext.build_info()['cpu']['pair_unit'])"
    best = run_python(code.replace("import", "import os; del os.environ['DSPARK_CPU_ISA']; import"),
                      DSPARK_CPU_ISA="")  # fmt: skip
    assert run_python(code, DSPARK_CPU_ISA="").stdout == best.stdout != ""


def test_an_operator_that_an_older_build_lacks_is_named():
    from dspark_ext import _operators

    with pytest.raises(AttributeError, match="dspark_ext.tomorrow: .* older than the Python part"):
        _ = _operators.tomorrow


def test_the_package_loads_twice_and_from_optimised_code():
    code = (
        "import importlib, sys, dspark_ext; importlib.reload(dspark_ext);"
        "[sys.modules.pop(name) for name in list(sys.modules) if name.startswith('dspark_ext')];"
        "from dspark_ext.cli.main import make_parser; make_parser(); print('loaded')"
    )
    result = run_python(code, PYTHONOPTIMIZE="2")
    assert result.stdout.strip() == "loaded", result.stderr


def test_types_are_declared():
    """PEP 561; without the file checkers ignore the annotations."""
    assert (pathlib.Path(dspark_ext.__file__).parent / "py.typed").is_file()
