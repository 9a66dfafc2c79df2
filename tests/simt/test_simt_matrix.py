"""Matrix products of the device layer on the emulator: values, checks, traffic."""

import pytest
from emulator import BOUNDS, FULL
from planted_cases import DIVERGENT_COLLECTIVE, SEEDS

WITH_UNIT = (32, 64)
PRODUCTS = (
    "matrix_bfloat16",
    "matrix_bfloat16_shared",
    "matrix_float16",
    "matrix_float16_shared",
)
WIDE = ("matrix_wide_bfloat16", "matrix_wide_float16")
LAYOUTS = (
    *("matrix_layout_bfloat16", "matrix_layout_float16"),
    *("matrix_wide_layout_bfloat16", "matrix_wide_layout_float16"),
    "matrix_scaled_layout_fp4",
    "matrix_scaled_layout_fp8",
)


@pytest.mark.parametrize("level", [BOUNDS, FULL])
@pytest.mark.parametrize("warp_size", (4, *WITH_UNIT))
def test_products(selftest, warp_size, level):
    """Bit by bit in the stated order, and near the exact sums."""
    cases = (*PRODUCTS, *WIDE, *LAYOUTS)
    outcomes = selftest.run(level, warp_size, SEEDS[:4], *cases)
    assert len(outcomes) == 4 * len(cases)
    for outcome in outcomes:
        assert outcome["code"] == 0 and outcome["correct"], outcome


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("level", [BOUNDS, FULL])
def test_half_of_a_warp(selftest, warp_size, level):
    for outcome in selftest.run(level, warp_size, SEEDS, "matrix_half_warp"):
        assert outcome["code"] == DIVERGENT_COLLECTIVE, outcome
        assert "128 threads wait for lanes of their warp" in outcome["report"], outcome["report"]


@pytest.mark.parametrize("warp_size", WITH_UNIT)
def test_instructions_and_banks(selftest, warp_size):
    """8 x 2 tiles of 16 x 16 sums, 3 steps of 4 instructions (of 2, where one takes 16 columns),
    four matrices. No lanes meet in a bank but those that bring columns in, with 48 times 8 accesses
    for each matrix."""
    for case in PRODUCTS:
        (outcome,) = selftest.run(FULL, warp_size, [0], case)
        counters = outcome["counters"]["kernels"]["product"]
        per_step = 2 if warp_size == 64 else 4
        assert counters["matrix_instructions"] == 8 * 2 * 3 * per_step * 4
        assert counters["accesses_16"] > 0
        if case.endswith("shared"):
            assert counters["bank_conflicts"] <= 4 * 48


def test_wide_instructions_and_banks(selftest):
    """4 x 1 tiles of 32 x 32 sums, 3 steps of 2 instructions, four matrices. No lanes meet in a
    bank but those that bring columns in."""
    for case in WIDE:
        (outcome,) = selftest.run(FULL, 64, [0], case)
        counters = outcome["counters"]["kernels"]["product"]
        assert counters["matrix_instructions"] == 4 * 3 * 2 * 4
        assert counters["accesses_16"] > 0 and counters["bank_conflicts"] <= 4 * 48
