"""Every op family has the same files; no file is too long or carries leftovers."""

import re

import pytest

from ._sources import CODE, FAMILIES, PACKAGES, ROOT, code_files, text

MAX_LINES = 400
# Families with a reference of their own.
DECIDING = ("sampling", "verify", "draft", "moe", "router")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["args.h", "op.cpp", "cpu.cpp"])
def test_family_has_the_file(family, name):
    assert (ROOT / "csrc/ops" / family / name).is_file()


@pytest.mark.parametrize("family", FAMILIES)
def test_family_has_python_side_and_tests(family):
    package = ROOT / "python/dspark_ext"
    module = f"{PACKAGES[family]}/__init__.py" if family in PACKAGES else f"{family}.py"
    assert (package / module).is_file()
    assert (package / "_fake" / f"{family}.py").is_file()
    if family in DECIDING:
        assert (package / "reference" / f"{family}.py").is_file()
    tests = [*(ROOT / "tests").rglob(f"test_{family}*.py")]
    assert tests, f"no test of {family}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["op.cpp", "cpu.cpp"])
def test_family_is_built(family, name):
    assert f"csrc/ops/{family}/{name}" in text("CMakeLists.txt")


def test_files_are_short():
    long = {str(p): n for p in code_files() if (n := text(p).count("\n")) > MAX_LINES}
    assert not long, f"split these files: {long}"


def test_no_unfinished_work():
    word = re.compile(
        r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]) + r")\b"
    )
    found = [str(p) for p in code_files() if word.search(text(p))]
    assert not found


def test_no_stray_characters():
    bad = []
    for path in code_files():
        source = text(path)
        if source and not source.endswith("\n"):
            bad.append(f"{path}: no newline at the end")
        if source.endswith("\n\n"):
            bad.append(f"{path}: blank lines at the end")
        for number, line in enumerate(source.split("\n"), 1):
            if line != line.rstrip():
                bad.append(f"{path}:{number}: white space at the end of the line")
            if "\t" in line or "\r" in line:
                bad.append(f"{path}:{number}: tab or carriage return")
            if re.match(r"(<{7}|>{7}|={7})( |$)", line):
                bad.append(f"{path}:{number}: conflict marker")
    assert not bad, "\n".join(bad)


def test_no_leftover_files():
    leftovers = (".orig", ".rej", ".bak", ".swp", "~", ".tmp", ".log")
    found = [
        str(p.relative_to(ROOT))
        for folder in ("csrc", "python", "tests", "bench", "cmake", "hip", "docs")
        for p in (ROOT / folder).rglob("*")
        if p.name.endswith(leftovers)
    ]
    assert not found


def test_lines_fit():
    """100 columns; schemas and lines with a link may be longer."""
    long = []
    for path in code_files("csrc", "hip", "python", "tests", "bench"):
        if path.name == "library.cpp":
            continue
        for number, line in enumerate(text(path).split("\n"), 1):
            if len(line) > 100 and "http" not in line:
                long.append(f"{path}:{number}: {len(line)}")
    assert not long, "\n".join(long)


def test_the_scan_sees_the_sources():
    suffixes = {p.suffix for p in code_files()}
    assert {".h", ".cpp", ".py"} <= suffixes <= set(CODE)
    assert len(code_files()) > 20
