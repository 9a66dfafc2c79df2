"""Warpgroups on the emulator: products, copies and barriers, and ways to use them wrong.

With half of the seeds copies land, or products read their operands, only when they are awaited.
"""

import pytest
from emulator import BOUNDS, COUNTERS, FULL
from planted_cases import DEADLOCK, DIVERGENT_COLLECTIVE, RACE, UNFINISHED, UNINITIALISED_READ

SEEDS = tuple(range(12))
RINGS = (
    *("warpgroup_bfloat16_16", "warpgroup_bfloat16_48", "warpgroup_float16_64"),
    *("warpgroup_words_bfloat16_32", "warpgroup_words_float16_64"),
)
# Found on every schedule.
ALWAYS = {
    "warpgroup_no_wait": (RACE, "shared memory"),
    "warpgroup_no_wait_for_words": (RACE, "shared memory"),
    "warpgroup_unpublished": (RACE, "without publish_operands"),
    "warpgroup_not_begun": (RACE, "without begin_products"),
    "warpgroup_half": (DIVERGENT_COLLECTIVE, "64 threads wait for threads of their warpgroup"),
    "warpgroup_two_operands": (DIVERGENT_COLLECTIVE, "at different operations or operands"),
    "warpgroup_missing_arrival": (DEADLOCK, "the end of a phase that nothing brings about"),
    "warpgroup_unfinished": (UNFINISHED, "awaited the copies of transfer barrier 2"),
}


@pytest.mark.parametrize("warp_size", (4, 32, 64))
@pytest.mark.parametrize("level", [BOUNDS, FULL])
def test_rings(selftest, warp_size, level):
    """Bit by bit, in the order of depth."""
    outcomes = selftest.run(level, warp_size, SEEDS, *RINGS)
    assert len(outcomes) == len(SEEDS) * len(RINGS)
    for outcome in outcomes:
        assert outcome["code"] == 0 and outcome["correct"], outcome


@pytest.mark.parametrize("case", ALWAYS)
def test_misuse_is_found(selftest, case):
    code, text = ALWAYS[case]
    for outcome in selftest.run(FULL, 32, SEEDS, case):
        if case.startswith("warpgroup_no_wait") and outcome["code"] != RACE:
            # Nothing was there yet.
            assert "which nothing has stored to" in outcome["report"], outcome
            continue
        assert outcome["code"] == code, outcome
        assert text in outcome["report"], outcome["report"]


def test_a_stage_is_filled_before_it_is_free(selftest):
    """Mostly a race; or the phases of two steps mix, and a stage is read before it is there."""
    outcomes = selftest.run(FULL, 32, SEEDS, "warpgroup_early_reuse")
    codes = [outcome["code"] for outcome in outcomes]
    assert set(codes) <= {RACE, UNINITIALISED_READ, DEADLOCK} and codes.count(RACE) > 6, codes


def test_a_stage_is_given_back_before_it_was_read(selftest):
    """A race where products run late; where they run early nothing has gone wrong."""
    outcomes = selftest.run(FULL, 32, SEEDS, "warpgroup_early_arrive")
    assert {outcome["code"] for outcome in outcomes} == {0, RACE}
    assert all(outcome["correct"] for outcome in outcomes if outcome["code"] == 0)


def test_sums_hold_nothing_before_they_are_awaited(selftest):
    for outcome in selftest.run(BOUNDS, 32, SEEDS, "warpgroup_early_sums"):
        assert outcome["code"] == 0 and not outcome["correct"], outcome


def test_counts(selftest):
    """Three matrices of five steps, each a copy of 2 KiB and a product."""
    (outcome,) = selftest.run(COUNTERS, 32, [0], "warpgroup_bfloat16_16")
    kernel = outcome["counters"]["kernels"]["ring"]
    assert kernel["bulk_copies"] == 3 * 5 and kernel["warpgroup_products"] == 3 * 5
    assert kernel["bulk_bytes"] == 3 * 5 * 2048
    assert outcome["counters"]["buffers"]["left"]["bytes_loaded"] == 3 * 5 * 2048
