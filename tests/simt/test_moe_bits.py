"""The device kernels of the dispatch operators, as the emulator runs them: plans against a stable
argsort, rows against the CPU backend, bit by bit."""

import emulated
import moe_sweep as sweep
import pytest
import torch
from kit import FLOATS, bits_equal, name

import dspark_ext  # noqa: F401  (registers the operators)


def emulate(operator: str, *arguments, **settings):
    with emulated.operators(**settings):
        return getattr(torch.ops.dspark_simt, operator)(*arguments)


def check_plan(case: tuple, **settings) -> None:
    """Outputs hold garbage before and lie among memory that a kernel must not touch."""
    sweep.check_plan(emulate("plan", *case, **settings), case)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("experts", sweep.EXPERTS)
def test_small_plans(experts, warp_size):
    for seed, tokens in enumerate((0, 1, 2, 15, 16, 17, 31, 32, 33)):
        k = sweep.SLOTS[(5 * seed + experts) % 16]
        case = sweep.plan_case(seed, tokens, k, experts)
        level = emulated.FULL if seed % 3 == 0 else emulated.BOUNDS
        check_plan(case, warp_size=warp_size, seed=seed % 4, level=level)


@pytest.mark.parametrize("kind", sweep.KINDS)
@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
def test_kinds_of_ids(kind, warp_size):
    for seed, (tokens, k, experts) in enumerate([(255, 3, 128), (64, 8, 33), (257, 16, 384)]):
        case = sweep.plan_case(seed, tokens, k, experts, kind)
        check_plan(case, warp_size=warp_size, seed=seed, level=emulated.FULL)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize(
    ("tokens", "k", "experts"),
    [
        (2730, 3, 128),
        (2731, 3, 128),
        (4097, 3, 3),
        (1023, 10, 512),
        (257, 16, 1025),
        (129, 8, 4096),
    ],
    ids=str,
)
def test_one_block_and_several(tokens, k, experts, warp_size):
    """Around the 8192 slots, times ranges of 512 experts, that one block plans."""
    for seed, kind in enumerate(("holes", "skewed", "map")):
        level = emulated.FULL if seed == 0 else emulated.BOUNDS
        case = sweep.plan_case(seed, tokens, k, experts, kind)
        check_plan(case, warp_size=warp_size, seed=seed, level=level)


@pytest.mark.slow
@pytest.mark.parametrize("experts", sweep.EXPERTS)
@pytest.mark.parametrize("tokens", [t for t in sweep.TOKENS if t > 33])
def test_larger_plans(tokens, experts):
    for k in sweep.SLOTS if tokens < 5000 else (1, 8, 16):
        case = sweep.plan_case(k, tokens, k, experts)
        check_plan(case, warp_size=emulated.WARP_SIZES[1 + k % 2], seed=k % 3)


@pytest.mark.parametrize("seed", range(6))
def test_schedules_do_not_matter(seed):
    for case in (sweep.plan_case(1, 300, 7, 200, "few"), sweep.plan_case(1, 4096, 3, 40, "holes")):
        check_plan(case, warp_size=emulated.WARP_SIZES[seed % 3], seed=seed, level=emulated.FULL)


# ---- launches -----------------------------------------------------------------------------------


def launches(case: tuple) -> dict:
    counted = emulated.counters(lambda: torch.ops.dspark_simt.plan(*case))
    return {name: (k["launches"], k["blocks"]) for name, k in counted["kernels"].items()}


def test_launches():
    def case(tokens, k, experts):
        return sweep.plan_case(0, tokens, k, experts, "uniform")

    assert launches(case(5376 // 8, 8, 512)) == {"plan": (1, 1)}
    assert launches(case(8192, 1, 1)) == {"plan": (1, 1)}
    assert launches(case(0, 8, 4096)) == {"plan": (1, 1)}
    assert launches(case(3, 8, 4096)) == {"plan": (1, 1)}
    both = {"count_slots": (1, 3), "place_slots": (1, 3)}
    assert launches(case(8193, 1, 1)) == both
    assert launches(case(1025, 1, 4096)) == {"count_slots": (1, 8), "place_slots": (1, 8)}
    many = launches(case(65544, 16, 2))
    assert many == {"count_slots": (1, 256), "place_slots": (1, 256)}


# ---- rows ---------------------------------------------------------------------------------------

ROWS = [(0, 2, 4), (1, 1, 1), (5, 3, 8), (33, 4, 7), (9, 8, 33), (3, 70, 5)]
WIDTHS = (1, 8, 24, 129, 2056, 4100)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_rows(dtype, warp_size):
    for seed, (tokens, k, experts) in enumerate(ROWS):
        for width in WIDTHS[seed % 2 :: 2]:
            case = sweep.plan_case(seed, tokens, k, experts, ("holes", "uniform", "none")[seed % 3])
            given = sweep.rows_case(seed, case, width, dtype)
            plan = given["plan"]
            settings = {"warp_size": warp_size, "seed": seed % 3, "level": emulated.FULL}
            arguments = given["x"], plan.sorted, plan.inverse
            got = emulate("permute", *arguments, **settings)
            assert bits_equal(got, torch.ops.dspark_ext.permute(*arguments))
            arguments = (
                given["y"], plan.inverse, given["weights"], given["shared"], given["residual"]
            )  # fmt: skip
            got = emulate("combine", *arguments, **settings)
            assert bits_equal(got, torch.ops.dspark_ext.combine(*arguments))


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32], ids=str)
def test_rows_at_any_address(dtype, offset):
    """Rows of 16 bytes that begin at multiples of 1, 2, 4, 8 and 16."""
    size = torch.empty(0, dtype=dtype).element_size()
    memory = torch.arange(1000).to(dtype)
    x = memory[2**offset % 16 // size :][: 7 * 48 // size].view(7, 48 // size)
    case = sweep.plan_case(1, 7, 3, 4, "holes")
    plan = sweep.expected_plan(case)
    got = emulate("permute", x, plan.sorted, plan.inverse, level=emulated.FULL)
    assert bits_equal(got, torch.ops.dspark_ext.permute(x, plan.sorted, plan.inverse))


def test_rows_beyond_y_add_nothing():
    """What a CPU refuses; a device cannot."""
    inverse = torch.tensor([[0, 5], [9, -3], [2**40, 2]])
    y = torch.arange(15.0).reshape(5, 3)
    got = emulate("combine", y, inverse, torch.ones(3, 2), None, None, level=emulated.FULL)
    assert torch.equal(got, torch.stack([y[0], torch.zeros(3), y[2]]))
    inverse[2, 1] = -1
    in_rows = torch.tensor([0, -1, 99, 6, 2**50])
    got = emulate("permute", y[:3], in_rows, inverse, level=emulated.FULL)
    assert torch.equal(got[0], y[0]) and not got[1:].any()


# ---- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES[1:])
def test_bytes_over_the_floor(warp_size):
    """Each row is read and written once: x once for all slots, y once for its token."""
    tokens, experts, k, width = 640, 128, 3, 5120
    generator = torch.Generator().manual_seed(1)
    ids = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :k].int()
    x = torch.randn(tokens, width, generator=generator).bfloat16()
    weights = torch.rand(tokens, k, generator=generator)
    ops = torch.ops.dspark_simt

    def step():
        plan = ops.plan(ids, experts, 1, None, 0)
        rows = ops.permute(x, plan[2], plan[3])
        ops.combine(rows, plan[3], weights, None, None)

    kernels = emulated.counters(step, warp_size=warp_size)["kernels"]
    row = 2 * width
    floor = ids.nbytes + weights.nbytes + 2 * tokens * (k + 1) * row
    moved = sum(k["bytes_loaded"] + k["bytes_stored"] for k in kernels.values())
    assert sum(k["launches"] for k in kernels.values()) == 3
    assert moved <= 1.1 * floor
    assert moved <= 1.02 * floor  # what is left are indices
    for kernel, rows_read, rows_written in (("permute", 1, k), ("combine", k, 1)):
        wide = kernels[kernel]["accesses_16"] * 16
        assert wide == tokens * (rows_read + rows_written) * row
