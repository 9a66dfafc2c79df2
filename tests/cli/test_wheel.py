"""The wheel brings the command, which says so where the compiled part is missing."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = (
    "import sys; from scikit_build_core.build import build_wheel;"
    "build_wheel(sys.argv[1], {'wheel.cmake': 'false'})"
)


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory):
    """The Python files alone: nothing is compiled."""
    pytest.importorskip("scikit_build_core", reason="the build backend is not in this environment")
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, folder], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_it_declares_the_command(pure_wheel):
    with zipfile.ZipFile(pure_wheel) as archive:
        names = archive.namelist()
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "dspark-ext = dspark_ext_command:main" in archive.read(entry_points).decode()
    files = {"dspark_ext_command/__init__.py", "dspark_ext/cli/main.py", "dspark_ext/server/app.py"}
    assert files <= set(names)


def test_it_brings_the_licence_and_the_notices(pure_wheel):
    with zipfile.ZipFile(pure_wheel) as archive:
        texts = {Path(name).name: archive.read(name) for name in archive.namelist()}
    for name in ("LICENSE", "THIRD_PARTY_NOTICES"):
        assert texts[name] == (ROOT / name).read_bytes()
        assert f"License-File: {name}\n" in texts["METADATA"].decode()


def test_without_the_compiled_part_it_says_so(pure_wheel, tmp_path):
    installed = tmp_path / "installed"
    with zipfile.ZipFile(pure_wheel) as archive:
        members = [name for name in archive.namelist() if not name.endswith(".so")]
        archive.extractall(installed, members)
    packages = [path for path in sys.path if "site-packages" in path]
    code = (
        f"import sys; sys.path[:0] = [{str(installed)!r}]; sys.path += {packages!r};"
        "from dspark_ext_command import main; sys.exit(main())"
    )

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-S", "-c", code, *arguments], capture_output=True, text=True, env={}
        )

    generated, examined = run("generate", "hi"), run("doctor")
    assert generated.returncode == 1 and generated.stderr.count("\n") == 1
    assert "the compiled part did not load" in generated.stderr
    assert examined.returncode == 1 and "Missing: dspark_ext" in examined.stdout
    assert "pip install --force-reinstall" in examined.stdout
