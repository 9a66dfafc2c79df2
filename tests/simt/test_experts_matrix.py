"""The device kernels of expert products and layers on the emulator, on inputs that make a wrong
index visible: the checks are tests/expert_checks.py and tests/expert_layers.py. Memory, races and
barriers are checked, too."""

import emulated
import expert_checks as checks
import expert_layers as layers
import expert_oracles as oracles
import pytest

WAYS = ("exact", "rows", "panels")


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize(("check", "kind"), checks.cases())
@pytest.mark.parametrize("way", WAYS)
def test_products(way, check, kind, warp_size):
    with emulated.operators(warp_size=warp_size, level=emulated.FULL):
        checks.CHECKS[check](checks.WAYS[way], kind)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("kind", oracles.MATRIX_KINDS)
@pytest.mark.parametrize("check", layers.CHECKS)
@pytest.mark.parametrize("way", WAYS)
def test_layers(way, check, kind, warp_size):
    with emulated.operators(warp_size=warp_size, level=emulated.FULL):
        layers.CHECKS[check](layers.LAYER_WAYS[way], kind)
