"""What CMake decides by compiler, variables and lists: its files alone, compilers that pretend."""

import re
import shutil
import subprocess
import sys

import pytest

NVCC = r"""#!/bin/sh
case "$*" in
    *--version*) echo "release 13.0, V13.0.48" ;;
    *--dryrun*) echo '#$ TOP=FOLDER' >&2 ;;
    *sm_99*) echo "nvcc fatal: Unsupported gpu architecture 'compute_99'" >&2; exit 1 ;;
esac
"""
CLANG = r"""#!/bin/sh
case "$*" in
    --version) echo "clang version 22.1.0 (x)" ;;
    *gfx1153*) echo "error: unsupported HIP gpu architecture: gfx1153" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def run_cmake(repository, tmp_path, monkeypatch):
    """Includes a file of cmake/ with variables set; returns whether that went well, and words."""
    pytest.importorskip("cmake", reason="the CMake package is not in this environment")
    for name in ("CUDACXX", "CUDAHOSTCXX", "TORCH_CUDA_ARCH_LIST", "PYTORCH_ROCM_ARCH"):
        monkeypatch.delenv(name, raising=False)

    def run(file: str, printed: str = "", **variables):
        lines = ["cmake_minimum_required(VERSION 3.24)"]
        lines += [f'set({name} "{value}")' for name, value in variables.items()]
        lines += [f"include({repository}/cmake/{file}.cmake)", f'message("{printed}")']
        script = tmp_path / "script.cmake"
        script.write_text("\n".join(lines))
        command = [sys.executable, "-m", "cmake", "-P", script]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        return done.returncode == 0, " ".join((done.stdout + done.stderr).split())

    return run


@pytest.fixture
def backends(run_cmake, repository, tmp_path):
    """Runs Backends.cmake for one half, whose compiler pretends."""
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/libcudart_static.a").touch()
    for name, text in (("nvcc", NVCC), ("clang++", CLANG)):
        (tmp_path / name).write_text(text.replace("FOLDER", str(tmp_path)))
        (tmp_path / name).chmod(0o755)

    def run(backend: str, printed: str = "", **variables):
        other = {"CUDA": "HIP", "HIP": "CUDA"}[backend]
        given = {f"DSPARK_{other}": "OFF", f"DSPARK_{backend}": "AUTO"}
        given |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_CURRENT_SOURCE_DIR": repository}
        given |= {"CMAKE_BINARY_DIR": tmp_path, "CMAKE_CXX_COMPILER": "/usr/bin/c++"}
        given |= {"CMAKE_FIND_LIBRARY_PREFIXES": "lib", "CMAKE_FIND_LIBRARY_SUFFIXES": ".a"}
        given |= {"DSPARK_NVCC": tmp_path / "nvcc", "DSPARK_HIP_INCLUDE": tmp_path}
        given |= {"DSPARK_HIP_LIBRARY": tmp_path, "ENV{HIPCXX}": tmp_path / "clang++"}
        return run_cmake("Backends", printed, **(given | variables))

    return run


@pytest.mark.parametrize(
    ("words", "items"),
    [
        ("8.0 9.0", "80-real;90a-real"),
        ("7.5;8.6+PTX", "75-real;86-real;86-virtual"),
        ("9.0a 10.0f 12.0+PTX", "90a-real;100f-real;120-real;120-virtual"),
    ],
)
def test_architectures_of_torchs_variable_are_built_br053(backends, monkeypatch, words, items):
    """BR-053: the variable wins when set."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", words)
    built, said = backends("CUDA", printed="<${DSPARK_CUDA_ARCHITECTURES}>")
    assert built and f"<{items}>" in said


def test_the_option_goes_before_both_variables(backends, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Volta")
    monkeypatch.setenv("DSPARK_CUDA_ARCHITECTURES", "86")
    wanted = "<${DSPARK_CUDA_ARCHITECTURES}>"
    assert "<86>" in backends("CUDA", printed=wanted)[1]
    assert "<80>" in backends("CUDA", printed=wanted, DSPARK_CUDA_ARCHITECTURES="80")[1]


@pytest.mark.parametrize(
    ("backend", "variable", "value", "message"),
    [
        ("CUDA", "TORCH_CUDA_ARCH_LIST", "8.0 Volta", "got Volta"),
        ("CUDA", "TORCH_CUDA_ARCH_LIST", "8.0 9.9", "compute_99"),
        ("CUDA", "DSPARK_CUDA_ARCHITECTURES", "99-real", "compute_99"),
        ("HIP", "PYTORCH_ROCM_ARCH", "gfx942;gfx1153", "for gfx942,gfx1153: .*gfx1153"),
        ("HIP", "DSPARK_HIP_ARCHITECTURES", "gfx1153", "for gfx1153: "),
    ],
)
def test_no_architecture_is_dropped_br060(backends, monkeypatch, backend, variable, value, message):
    """BR-060: the build stops, AUTO or not, and names it."""
    monkeypatch.setenv(variable, value)
    built, said = backends(backend)
    assert not built and re.search(f"dspark_ext: {variable}: .*{message}", said), said


def test_a_list_of_torchs_asks_for_nothing_where_there_is_no_compiler(backends, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    monkeypatch.setenv("CUDACXX", "no-such-nvcc")
    built, said = backends("CUDA", DSPARK_NVCC="")
    assert built and "not built: no CUDA compiler found (no-such-nvcc)" in said
    monkeypatch.setenv("DSPARK_CUDA_ARCHITECTURES", "80")
    built, said = backends("CUDA", DSPARK_NVCC="")
    assert not built and "DSPARK_CUDA_ARCHITECTURES: no CUDA compiler found" in said


@pytest.mark.parametrize("backend", ["CUDA", "HIP"])
def test_empty_variables_are_as_if_unset(backends, monkeypatch, backend):
    for name in ("CUDACXX", "CUDAHOSTCXX", "TORCH_CUDA_ARCH_LIST", "PYTORCH_ROCM_ARCH"):
        monkeypatch.setenv(name, "")
    printed = "<${DSPARK_CUDA_ARCHITECTURES}|${DSPARK_HIP_ARCHITECTURES}> ${DSPARK_CUDA_COMMAND}"
    built, said = backends(backend, printed=printed)
    defaults = {"CUDA": "<80-real;90a-real;100f-real;120f-real;80-virtual|>"}
    assert built and f"{backend} backend built" in said
    assert defaults.get(backend, "<|gfx90a;gfx942;gfx950;gfx1100>") in said
    assert backend == "HIP" or "-ccbin;/usr/bin/c++;-std" in said


def test_the_host_compiler_of_nvcc_is_no_cache(backends):
    compiler = {"CMAKE_CXX_COMPILER": "/usr/bin/ccache", "CMAKE_CXX_COMPILER_ARG1": " g++ -m64"}
    _, said = backends("CUDA", printed="${DSPARK_CUDA_COMMAND}", **compiler)
    assert "-ccbin;g++;-std" in said


@pytest.mark.parametrize(
    ("compiler", "version", "good"),
    [("GNU", "10.2.1", False), ("GNU", "11.3.0", True), ("Clang", "13.0.1", False)],
)
def test_a_compiler_too_old_is_named(run_cmake, compiler, version, good):
    facts = {"CMAKE_CXX_COMPILER_ID": compiler, "CMAKE_CXX_COMPILER_VERSION": version}
    accepted, said = run_cmake("CheckCompiler", CMAKE_CXX_COMPILER="/usr/bin/c++", **facts)
    assert accepted == good
    assert good or f"/usr/bin/c++ is {compiler} {version}, g++ >= 11 or clang >= 14" in said


@pytest.mark.parametrize("variable", ["CMAKE_CXX_FLAGS", "CMAKE_MODULE_LINKER_FLAGS"])
def test_flags_that_change_results_are_refused(run_cmake, variable):
    accepted, said = run_cmake("CheckCompiler", **{variable: "-O2 -ffast-math"})
    assert not accepted and f"{variable} has -ffast-math, which changes results" in said
    accepted, said = run_cmake("CheckCompiler", **{variable: "-O2 -march=native -fno-fast-math"})
    assert accepted, said


def test_a_folder_that_is_no_torch_is_named(run_cmake, monkeypatch):
    monkeypatch.setenv("DSPARK_TORCH_DIR", "/no/such/torch")
    found, said = run_cmake("FindTorchStable", **{"CMAKE_FIND_PACKAGE_NAME": ""})
    assert not found and "DSPARK_TORCH_DIR=/no/such/torch: expected the folder of an" in said


def test_a_compiler_may_have_arguments(repository):
    check = [repository / "tools/check_system.sh", "--list", sys.executable]
    done = subprocess.run(check, env={"PATH": "/usr/bin:/bin", "CXX": "env g++"}, text=True,
                          capture_output=True)  # fmt: skip
    assert "g++" not in done.stdout and done.returncode == 0


def test_kernels_compile_for_gpus_before_ours(repository, tmp_path):
    """Torch's list often begins with 7.5, which has neither matrix units for bfloat16 nor marks for
    its second-level cache."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not on PATH")
    given = ["-arch=sm_75", "-cubin", "-std=c++17", "-DDSPARK_ISA=cuda", "-I.", "-Icsrc"]
    command = [nvcc, *given, "-include", "backends/cuda.h", "cmake/try_gpu.cu"]
    command += ["-o", tmp_path / "try_gpu.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository)
    if "Unsupported gpu architecture" in done.stderr:
        pytest.skip(f"{nvcc} does not know sm_75 any more")
    assert done.returncode == 0, done.stderr
