"""Every planted bug is found, on every warp size and schedule; every correct twin passes."""

import pytest
from emulator import BOUNDS, COUNTERS, FULL
from planted_cases import BUGS, ONLY_FULL, SEEDS, TWINS, WARP_SIZES

pytestmark = pytest.mark.parametrize("warp_size", WARP_SIZES)


@pytest.mark.parametrize("case", BUGS)
def test_bug_is_found(selftest, case, warp_size):
    code, text = BUGS[case]
    for outcome in selftest.run(FULL, warp_size, SEEDS, case):
        assert outcome["code"] == code, outcome
        assert text in outcome["report"], outcome["report"]


@pytest.mark.parametrize("level", [BOUNDS, COUNTERS])
def test_bugs_that_lower_levels_find(selftest, level, warp_size):
    cases = [case for case in BUGS if case not in ONLY_FULL]
    for outcome in selftest.run(level, warp_size, SEEDS[:3], *cases):
        assert outcome["code"] == BUGS[outcome["case"]][0], outcome


@pytest.mark.parametrize("level", [BOUNDS, COUNTERS, FULL])
def test_twin_passes(selftest, level, warp_size):
    outcomes = selftest.run(level, warp_size, SEEDS, *TWINS)
    assert len(outcomes) == len(TWINS) * len(SEEDS)
    for outcome in outcomes:
        assert outcome["code"] == 0 and outcome["correct"], outcome


def test_launches_after_a_failed_one(selftest, warp_size):
    """A block that was given up leaves nothing behind."""
    cases = ["threads_leave", "collectives", "missing_barrier", "block_barrier", "collectives"]
    failures = selftest.run(FULL, warp_size, SEEDS, *cases)
    assert all((o["code"] != 0) == (o["case"] in BUGS) for o in failures)


def test_report_names_kernel_block_and_thread(selftest, warp_size):
    (outcome,) = selftest.run(FULL, warp_size, [0], "load_out_of_bounds")
    where = f"thread 255 (warp {255 // warp_size}, lane {warp_size - 1})"
    assert f"access out of bounds in kernel 'copy', block (0, 0, 0), {where}: " in outcome["report"]
