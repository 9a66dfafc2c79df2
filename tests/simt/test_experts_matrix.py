"""The device kernels of expert products and layers on the emulator, on inputs that make a wrong
index visible: the checks are tests/expert_checks.py and tests/expert_layers.py. Memory, races and
barriers are checked, too."""

import emulated
import expert_checks as checks
import expert_layers as layers
import expert_oracles as oracles
import pytest

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
        if reason := checks.missing(checks.WAYS[way]):
            pytest.skip(reason)
        check(ways[way], kind)


@pytest.mark.parametrize(("check", "kind", "warp_size"), on_every_width(checks.cases()))
@pytest.mark.parametrize("way", WAYS)
def test_products(way, check, kind, warp_size):
    run(checks.CHECKS[check], way, checks.WAYS, kind, warp_size)


@pytest.mark.parametrize("kind", oracles.MATRIX_KINDS)
def test_the_layout_does_not_matter(kind):
    """In warps of 64, where one unit takes both."""
    run(checks.check_layout, "panels", checks.WAYS, kind, 64)


LAYERS = [(check, kind) for check in layers.CHECKS for kind in oracles.MATRIX_KINDS]


@pytest.mark.parametrize(("check", "kind", "warp_size"), on_every_width(LAYERS))
@pytest.mark.parametrize("way", WAYS)
def test_layers(way, check, kind, warp_size):
    run(layers.CHECKS[check], way, layers.LAYER_WAYS, kind, warp_size)
