"""Counters of access patterns that are known exactly: 256 threads, one access each."""

import pytest
from emulator import COUNTERS, FULL
from planted_cases import WARP_SIZES

pytestmark = pytest.mark.parametrize("warp_size", WARP_SIZES)
THREADS = 256


@pytest.fixture(params=[0, 1, 2, 3, 4])
def count(request, selftest, warp_size):
    """Counters of a case; they do not depend on the schedule."""

    def run(case, level=COUNTERS):
        (outcome,) = selftest.run(level, warp_size, [request.param], case)
        assert outcome["code"] == 0, outcome
        return outcome["counters"]["kernels"]["pattern"]

    return run


def segments(counters, kind):
    return [counters[f"{kind}_segments_{size}"] for size in (32, 64, 128)]


def test_coalesced(count, warp_size):
    counters = count("coalesced")
    warps = THREADS // warp_size
    assert counters["launches"] == counters["blocks"] == 1
    assert counters["loads"] == counters["stores"] == THREADS
    assert counters["bytes_loaded"] == counters["bytes_stored"] == 4 * THREADS
    assert counters["warp_loads"] == counters["warp_stores"] == warps
    expected = [max(warps, 4 * THREADS // size) for size in (32, 64, 128)]
    assert segments(counters, "load") == segments(counters, "store") == expected
    assert counters["accesses_16"] == 0


def test_strided(count, warp_size):
    counters = count("strided")
    assert counters["bytes_loaded"] == 4 * THREADS
    assert segments(counters, "load") == [THREADS] * 3


def test_16_bytes(count, warp_size):
    counters = count("by_16")
    assert counters["accesses_16"] == THREADS
    assert counters["bytes_loaded"] == 16 * THREADS
    per_warp = [max(1, 16 * warp_size // size) for size in (32, 64, 128)]
    assert segments(counters, "load") == [n * THREADS // warp_size for n in per_warp]


def test_cache(count):
    """32 KiB read, 4 KiB of them again, and 1 KiB stored twice."""
    moved = ("memory_sectors_read", "memory_sectors_written")
    assert [count("by_16")[way] for way in moved] == [0, 0]  # without one
    whole, again, stored = ((n << 10) // 32 for n in (32, 4, 1))
    assert [count("cache_that_holds_all")[way] for way in moved] == [whole, stored]
    assert [count("cache_that_holds_a_part")[way] for way in moved] == [whole + again, 2 * stored]
    assert [count("cache_and_loads_once")[way] for way in moved] == [whole, stored]


def test_full_level_counts_the_same(count, warp_size):
    assert count("coalesced", FULL) == count("coalesced")


def shared(counters):
    return [counters[k] for k in ("shared_passes", "bank_conflicts", "worst_bank_ways")]


def passes(warp_size, lanes_per_phase, ways):
    """Of one store and one load of all threads."""
    phases = 2 * THREADS // min(warp_size, lanes_per_phase)
    return [phases * ways, phases * (ways - 1), ways]


def test_shared_in_order(count, warp_size):
    counters = count("shared_in_order")
    assert shared(counters) == passes(warp_size, 32, 1)
    assert counters["shared_warp_accesses"] == 2 * THREADS // warp_size
    assert counters["shared_loads"] == counters["shared_stores"] == THREADS
    assert counters["shared_bytes"] == 4 * THREADS


def test_shared_all_in_one_bank(count, warp_size):
    assert shared(count("shared_strided")) == passes(warp_size, 32, min(warp_size, 32))


def test_shared_doubles_take_two_phases(count, warp_size):
    assert shared(count("shared_doubles")) == passes(warp_size, 16, 1)


def test_shared_bytes_of_one_word(count, warp_size):
    assert shared(count("shared_bytes")) == passes(warp_size, 32, 1)


def test_shared_16_bytes_take_four_phases(count, warp_size):
    counters = count("shared_by_four")
    assert shared(counters) == passes(warp_size, 8, 1)
    assert counters["shared_warp_accesses"] == 2 * THREADS // warp_size


def test_shared_broadcast(count, warp_size):
    counters = count("shared_broadcast")
    assert shared(counters) == [THREADS // min(warp_size, 32) + 1, 0, 1]
