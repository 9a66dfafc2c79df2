"""Installing as users do. The slow tests build in new environments (minutes, network)."""

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import venv

import pytest

CHECK = """
import dspark_ext, torch
from dspark_ext import sampling
logits = torch.zeros(1, 4); logits[0, 2] = 30.0
ids, _ = sampling.sample(logits, temperature=1.0, seeds=torch.tensor([7]),
                         positions=torch.tensor([0]))
print(dspark_ext.build_info()["version"], ids.tolist(), dspark_ext.__file__)
"""


def run(*command, cwd=None, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def make_environment(tmp_path):
    """A function that makes a virtual environment and returns its python."""

    def make(torch: bool) -> pathlib.Path:
        folder = tmp_path / "venv"
        venv.create(folder, with_pip=True)
        python = folder / "bin" / "python"
        if torch:
            # torch and what it needs come from this environment instead of the network.
            result = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
            site = pathlib.Path(result.stdout.strip())
            (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return python

    return make


def configure(repository, tmp_path, python, *options, **environment):
    """Runs the CMake configure step against `python`."""
    return run(
        sys.executable,
        "-m",
        "cmake",
        "-S",
        repository,
        "-B",
        tmp_path / "build",
        f"-DPython_EXECUTABLE={python}",
        *options,
        **environment,
    )


@pytest.fixture
def cmake():
    pytest.importorskip("cmake", reason="the CMake package is not in this environment")


def test_missing_torch_stops_with_the_command_br054(cmake, make_environment, repository, tmp_path):
    """BR-054."""
    python = make_environment(torch=False)
    result = configure(repository, tmp_path, python, PYTHONPATH="", DSPARK_TORCH_DIR="")
    assert result.returncode != 0
    assert f"no torch found for {python}" in " ".join(result.stderr.split())
    assert f" {python} -m pip install 'torch>=2.10'\n" in result.stderr
    assert "--no-build-isolation" in result.stderr


def test_an_older_torch_stops_with_the_command(cmake, repository, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.1+cpu'\n")
    result = configure(repository, tmp_path, sys.executable, f"-DDSPARK_TORCH_DIR={tmp_path}/torch")
    assert result.returncode != 0
    assert "torch >= 2.10 is needed" in result.stderr
    assert "is torch 2.9" in " ".join(result.stderr.split())


@pytest.mark.parametrize("backend", ["CUDA", "HIP"])
def test_a_misspelt_choice_of_backend_stops(cmake, repository, tmp_path, backend):
    result = configure(repository, tmp_path, sys.executable, f"-DDSPARK_{backend}=maybe")
    assert result.returncode != 0
    message = f"DSPARK_{backend}: expected AUTO, ON or OFF, got MAYBE"
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("backend", "options", "message"),
    [
        ("CUDA", ["-DDSPARK_NVCC=/bin/false"], "/bin/false does not compile for 80-real,"),
        ("CUDA", ["-DDSPARK_NVCC=/bin/false", "-DDSPARK_CUDA_ARCHITECTURES=sm_80"], "got sm_80"),
        ("HIP", ["-DDSPARK_HIP_ARCHITECTURES=gfx0"], "no HIP compiler|not found|for gfx0: "),
    ],
)
def test_a_backend_that_cannot_be_built_stops_br060(
    cmake, repository, tmp_path, backend, options, message
):
    other = {"CUDA": "HIP", "HIP": "CUDA"}[backend]
    wanted = [f"-DDSPARK_{backend}=ON", f"-DDSPARK_{other}=OFF"]
    result = configure(repository, tmp_path, sys.executable, *wanted, *options)
    assert result.returncode != 0
    assert re.search(message, " ".join(result.stderr.split()))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["isolated", "no-isolation", "editable", "sdist"])
def test_pip_installs_br054(make_environment, repository, tmp_path, how):
    """BR-054: each way builds against the torch of the environment it installs into."""
    python = make_environment(torch=True)
    what = {"isolated": ["."], "no-isolation": ["--no-build-isolation", "."]}
    what |= {"editable": ["--no-build-isolation", "-e", "."]}
    if how == "sdist":
        build = "from scikit_build_core.build import build_sdist as b; import sys; b(sys.argv[1])"
        result = run(sys.executable, "-c", build, tmp_path / "dist", cwd=repository)
        assert result.returncode == 0, result.stderr
        what["sdist"] = [next((tmp_path / "dist").glob("*.tar.gz"))]
    # --no-deps: torch is there, but pip does not look for it behind a .pth file.
    command = [python, "-m", "pip", "install", "--no-deps", "--ignore-installed", *what[how]]
    result = run(*command, cwd=repository, PYTHONPATH="")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    result = run(python, "-c", CHECK, cwd=tmp_path, PYTHONPATH="")
    assert result.returncode == 0, result.stderr
    _, ids, file = result.stdout.strip().split(" ", 2)
    assert ids == "[2]"
    expected = repository if how == "editable" else tmp_path
    assert pathlib.Path(file).is_relative_to(expected)
    result = run(python.parent / "dspark-ext", "--version", cwd=tmp_path, PYTHONPATH="")
    assert result.returncode == 0 and result.stdout.startswith("dspark-ext "), result.stderr


def test_the_makefile_names_what_is_missing(repository):
    result = run(repository / "tools" / "check_system.sh", "no-such-python", CXX="no-such-compiler")
    assert result.returncode == 1
    assert "no Python interpreter 'no-such-python'" in result.stderr
    assert "no C++ compiler 'no-such-compiler'" in result.stderr
    assert "apt-get install -y python3 python3-venv python3-dev g++" in result.stderr


def test_the_list_of_missing_packages_is_empty_where_nothing_is_missing(repository):
    result = run(repository / "tools" / "check_system.sh", "--list", sys.executable, CXX="env")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ""
