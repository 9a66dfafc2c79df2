"""The libFuzzer targets (targets.py): they build, find nothing in a fixed number of runs, and find
what is planted."""

import pytest
import targets

RUNS = 50_000


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    found = targets.find_compiler(tmp_path_factory.mktemp("probe"))
    if found is None:
        pytest.skip("no clang++ with libFuzzer")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("target", targets.SOURCES)
def test_target(compiler, tmp_path, target):
    done = targets.run(targets.build(compiler, target, tmp_path), RUNS)
    assert done.returncode == 0, done.stdout[-6000:]
    assert f"stat::number_of_executed_units: {RUNS}" in done.stdout


@pytest.mark.slow
def test_what_is_planted_is_found(compiler, tmp_path, monkeypatch):
    """Rows of slots that are not here, copied all the same."""
    source = (targets.ROOT / "csrc/ops/moe/cpu.cpp").read_text()
    bound = "if (row < 0) continue;\n            memcpy("
    assert bound in source
    planted = tmp_path / "cpu.cpp"
    planted.write_text(source.replace(bound, "memcpy("))
    monkeypatch.setitem(targets.SOURCES, "fuzz_moe", str(planted))
    done = targets.run(targets.build(compiler, "fuzz_moe", tmp_path), RUNS)
    assert done.returncode != 0 and "AddressSanitizer" in done.stdout


def test_without_a_compiler_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "NAMES", ("no-such-compiler",))
    monkeypatch.delenv("FUZZ_CXX", raising=False)
    assert targets.find_compiler(tmp_path) is None
