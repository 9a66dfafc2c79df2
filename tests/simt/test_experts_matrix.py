"""The device kernels of expert products and layers on the emulator, on inputs that make a wrong
index visible: the checks are tests/expert_checks.py and tests/expert_layers.py. Memory, races and
barriers are checked, too."""

import emulated
import expert_checks as checks
import expert_layers as layers
import expert_oracles as oracles
import expert_sweep as sweep
import pytest
import torch
from kit import bits_equal

from dspark_ext import moe

WAYS = ("rows", "panels")
# Of the other widths a few kinds stand for all; warps of 4 have no matrix unit.
KINDS = {
    4: ("bf16", "fp8-32", "mxfp4"),
    32: oracles.MATRIX_KINDS,
    64: ("bf16", "fp8-128", "fp8-32", "mxfp4"),
}


def on_every_width(cases) -> list[tuple]:
    """(check, kind, warp size)."""
    return [
        (check, kind, warp_size)
        for warp_size in emulated.WARP_SIZES
        for check, kind in cases
        if kind in KINDS[warp_size]
    ]


def run(check, way, ways, kind: str, warp_size: int) -> None:
    with emulated.operators(warp_size=warp_size, level=emulated.FULL):
        check(ways[way], kind)


@pytest.mark.parametrize(("check", "kind", "warp_size"), on_every_width(checks.cases()))
@pytest.mark.parametrize("way", WAYS)
def test_products(way, check, kind, warp_size):
    run(checks.CHECKS[check], way, checks.WAYS, kind, warp_size)


@pytest.mark.parametrize("warp_size", (32, 64))
@pytest.mark.parametrize("kind", oracles.MATRIX_KINDS)
def test_the_layout_does_not_matter(kind, warp_size):
    """Where one unit takes both."""
    run(checks.check_layout, "panels", checks.WAYS, kind, warp_size)


LAYERS = [(check, kind) for check in layers.CHECKS for kind in oracles.MATRIX_KINDS]


@pytest.mark.parametrize(("check", "kind", "warp_size"), on_every_width(LAYERS))
@pytest.mark.parametrize("way", WAYS)
def test_layers(way, check, kind, warp_size):
    run(layers.CHECKS[check], way, layers.LAYER_WAYS, kind, warp_size)


# ---- plans that cannot be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"tile_expert": [7, 1, 2]},
        {"tile_row": [9, 1, 3]},
        {"tile_row": [-1, 1, 3]},
        {"tile_row": [2**62, 1, 3]},
        {"tile_size": [400, 2, 1]},
        {"tile_size": [-3, 2, 1]},
    ],
    ids=str,
)
@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("way", WAYS)
def test_tiles_that_a_plan_cannot_have_are_left_out(way, warp_size, change):
    """What a CPU refuses; a device cannot. No memory is read or written for them."""
    plan = moe.plan(torch.tensor([[0], [1], [2], [1]]), 3, tile_rows=4)
    weights = sweep.make_weights("bf16", (3, 20, 64))
    x = sweep.make_rows(4, 64, torch.bfloat16)
    bad = {key: torch.tensor(value).to(getattr(plan, key).dtype) for key, value in change.items()}
    with emulated.operators(warp_size=warp_size, level=emulated.FULL):
        want = checks.WAYS[way](x, weights, plan)
        got = checks.WAYS[way](x, weights, plan._replace(**bad))
    assert bits_equal(got[1:], want[1:])


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("way", WAYS)
def test_no_tokens(way, warp_size):
    plan = moe.plan(torch.zeros(0, 2, dtype=torch.int32), 3, tile_rows=16)
    weights = sweep.make_weights("mxfp4", (3, 20, 64))
    with emulated.operators(warp_size=warp_size, level=emulated.FULL):
        got = checks.WAYS[way](torch.zeros(0, 64).bfloat16(), weights, plan, activation="swiglu")
    assert got.shape == (0, 10)
