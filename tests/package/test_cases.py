"""tests/CASES.md names every case, and tests that exist; the case of wheels and Pythons."""

import ast
import fnmatch
import importlib.machinery
import pathlib
import re

import pytest

import dspark_ext

TESTS = pathlib.Path(__file__).parents[1]
REPOSITORY = TESTS.parent
NUMBERS = [f"BR-{number:03d}" for number in range(1, 71)]
NEEDS_HARDWARE = {"BR-058"}  # only tests of a GPU; CASES.md says what covers it meanwhile


def rows() -> dict[str, list[str]]:
    """What stands in the last column, by case."""
    found: dict[str, list[str]] = {}
    for line in (TESTS / "CASES.md").read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) > 3 and cells[1].startswith("BR-"):
            found.setdefault(cells[1], []).append(cells[-2])
    return found


ROWS = rows()


def functions_of(path: pathlib.Path) -> set[str]:
    """Names of the tests of a file."""
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def named(cell: str) -> list[tuple[str, str]]:
    """(file, pattern of a test) in the order they stand in; files without tests with "*"."""
    found, file = [], None
    for word in re.findall(r"`([^`]+)`", cell):
        if re.fullmatch(r"[\w/]+(\.py)?/?", word) and (".py" in word or word.endswith("/")):
            file = word
            found.append((file, "*"))
        elif word.startswith("test_") and not word.endswith(".py"):
            assert file, f"{word} without a file"
            found.append((file, word))
    return found


def test_every_case_is_there_once_for_each_table():
    assert sorted(ROWS) == NUMBERS


@pytest.mark.parametrize("case", NUMBERS)
def test_the_tests_of_a_case_exist(case):
    pairs = [pair for cell in ROWS[case] for pair in named(cell)]
    assert pairs, "names no test"
    for file, pattern in pairs:
        path = TESTS / file
        assert path.exists(), file
        if pattern != "*":
            assert fnmatch.filter(functions_of(path), pattern), f"{file}: {pattern}"


@pytest.fixture(scope="module")
def all_tests() -> dict[str, set[str]]:
    return {str(path.relative_to(TESTS)): functions_of(path) for path in TESTS.rglob("test_*.py")}


@pytest.mark.parametrize("case", NUMBERS)
def test_a_case_can_be_run_by_its_number(all_tests, case):
    """`pytest -k br013`, without hardware where that can be."""
    key = case.lower().replace("-", "")
    files = {f for f, names in all_tests.items() if any(key in re.split("_", n) for n in names)}
    at_hand = {file for file in files if not file.startswith("device/")}
    assert at_hand or (files and case in NEEDS_HARDWARE)


# ---- BR-061 -------------------------------------------------------------------------------------


def test_br061_only_the_module_knows_python():
    """Operators are registered through torch's library interface, which needs no Python: what binds
    a build to one Python is the small module that reports the build."""
    knows = re.compile(r"#include [<\"](Python\.h|pybind11/)")
    sources = [p for p in (REPOSITORY / "csrc").rglob("*") if p.suffix in (".cpp", ".h", ".cu")]
    assert len(sources) > 100
    found = [path.name for path in sources if knows.search(path.read_text())]
    assert found == ["module.cpp"]


def test_br061_the_file_says_for_which_python_it_is():
    """So that another Python does not take it for its own."""
    suffix = pathlib.Path(dspark_ext._C.__file__).name.removeprefix("_C")
    assert suffix == importlib.machinery.EXTENSION_SUFFIXES[0]
    assert re.search(r"\d", suffix), suffix


def test_br061_the_oldest_python_is_stated():
    text = (REPOSITORY / "pyproject.toml").read_text()
    oldest = re.search(r'requires-python = ">=([\d.]+)"', text)[1]
    stated = rf"Python (>= )?{re.escape(oldest)}\b"
    assert re.search(stated, (REPOSITORY / "docs/install.md").read_text())
    assert f'target-version = "py{oldest.replace(".", "")}"' in text
