"""The targets of libFuzzer (libfuzzer.py): they build, find nothing in a fixed number of runs, and
find what is planted."""

import libfuzzer
import pytest

RUNS = 50_000


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    found = libfuzzer.find_compiler(tmp_path_factory.mktemp("probe"))
    if found is None:
        pytest.skip("no clang++ with libFuzzer")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("target", libfuzzer.SOURCES)
def test_target(compiler, tmp_path, target):
    done = libfuzzer.run(libfuzzer.build(compiler, target, tmp_path), RUNS)
    assert done.returncode == 0, done.stdout[-6000:]
    assert f"stat::number_of_executed_units: {RUNS}" in done.stdout


@pytest.mark.slow
def test_what_is_planted_is_found(compiler, tmp_path, monkeypatch):
    """Rows of slots that are not here, copied all the same."""
    source = (libfuzzer.ROOT / "csrc/ops/moe/cpu.cpp").read_text()
    bound = "if (row < 0) continue;\n            memcpy("
    assert bound in source
    planted = tmp_path / "cpu.cpp"
    planted.write_text(source.replace(bound, "memcpy("))
    monkeypatch.setitem(libfuzzer.SOURCES, "fuzz_moe", str(planted))
    done = libfuzzer.run(libfuzzer.build(compiler, "fuzz_moe", tmp_path), RUNS)
    assert done.returncode != 0 and "AddressSanitizer" in done.stdout


def test_without_a_compiler_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(libfuzzer, "NAMES", ("no-such-compiler",))
    monkeypatch.delenv("FUZZ_CXX", raising=False)
    assert libfuzzer.find_compiler(tmp_path) is None
