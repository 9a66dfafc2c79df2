"""The planted kernels in the other builds of the emulator.

The sanitizers see what the emulator itself does not watch.
"""

import pytest
from emulator import BOUNDS, FULL
from planted_cases import BUGS, DIVERGENT_COLLECTIVE, SEEDS, TWINS, WARP_SIZES

pytestmark = pytest.mark.slow  # builds the emulator four times more

# Clean kernels besides the twins, whose bugs are outside of what the emulator watches.
NATIVE_TWINS = ("local_in_bounds", "raw_shared_in_bounds", "shift", "matrix_bfloat16")

# Each launch switches fibers some thousand times, which the thread sanitizer makes slow.
RACES = ("missing_barrier", "narrow_barrier", "missing_second_barrier", "device_memory_race")
RACE_TWINS = ("block_barrier", "second_barrier", "warp_barrier", "device_memory_barrier")


@pytest.mark.parametrize("warp_size", WARP_SIZES)
def test_address_and_undefined_accept_twins(address_selftest, warp_size):
    outcomes = address_selftest.run(FULL, warp_size, SEEDS[:3], *TWINS, *NATIVE_TWINS)
    assert all(o["code"] == 0 and o["correct"] for o in outcomes)


def test_reports_leave_no_leak(address_selftest):
    """Fibers that are given up in the middle of a kernel own nothing."""
    for outcome in address_selftest.run(FULL, 32, SEEDS[:3], *BUGS, "collectives"):
        assert outcome["code"] == BUGS.get(outcome["case"], (0,))[0]


@pytest.mark.parametrize(
    "case, text",
    [
        ("local_overflow", "index 4 out of bounds for type 'int [4]'"),
        ("raw_shared_overflow", "heap-buffer-overflow"),
        ("wide_shift", "shift exponent 40 is too large"),
    ],
)
def test_address_and_undefined_find(address_selftest, case, text):
    done = address_selftest.start(FULL, 32, [0], case)
    assert done.returncode != 0 and text in done.stderr, done.stderr[-2000:]


@pytest.mark.parametrize("warp_size", WARP_SIZES)
def test_thread_accepts_twins(thread_selftest, warp_size):
    done = thread_selftest.start(FULL, warp_size, SEEDS[:2], *RACE_TWINS, "collectives")
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr[-4000:]


@pytest.mark.parametrize("warp_size", WARP_SIZES)
@pytest.mark.parametrize("case", RACES)
def test_thread_finds_race(thread_selftest, case, warp_size):
    """With the emulator's own detector off."""
    done = thread_selftest.start(BOUNDS, warp_size, [0], case)
    assert "WARNING: ThreadSanitizer: data race" in done.stderr, done.stderr[-4000:]
    assert "planted_synchronisation.cpp" in done.stderr


@pytest.mark.parametrize("warp_size", WARP_SIZES)
def test_call_paths_tell_calls_apart(paths_selftest, warp_size):
    for outcome in paths_selftest.run(FULL, warp_size, SEEDS[:3], "two_calls"):
        assert outcome["code"] == DIVERGENT_COLLECTIVE, outcome
    for outcome in paths_selftest.run(FULL, warp_size, SEEDS[:3], *TWINS):
        assert outcome["code"] == 0 and outcome["correct"], outcome


def test_call_paths_find_all_bugs(paths_selftest):
    for outcome in paths_selftest.run(FULL, 32, SEEDS[:2], *BUGS):
        assert outcome["code"] == BUGS[outcome["case"]][0], outcome


@pytest.mark.parametrize("warp_size", WARP_SIZES)
def test_fibers_of_other_machines(ucontext_selftest, warp_size):
    for outcome in ucontext_selftest.run(FULL, warp_size, SEEDS[:3], *BUGS, *TWINS):
        assert outcome["code"] == BUGS.get(outcome["case"], (0,))[0], outcome
