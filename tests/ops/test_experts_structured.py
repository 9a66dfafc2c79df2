"""Expert products and whole layers on inputs that make a wrong index visible, in every format and
way of computing: the checks are tests/expert_checks.py and tests/expert_layers.py."""

import backends
import expert_checks as checks
import expert_layers as layers
import expert_oracles as oracles
import pytest

WAYS = [("cpu", "exact"), ("cpu", "rows"), ("cpu", "pairs")]
if backends.gpu_available():
    WAYS += [("cuda", "exact"), ("cuda", "rows"), ("cuda", "panels")]


@pytest.mark.parametrize(("check", "kind"), checks.cases())
@pytest.mark.parametrize(("device", "way"), WAYS)
def test_products(device, way, check, kind):
    with backends.running(device):
        checks.CHECKS[check](checks.WAYS[way], kind)


@pytest.mark.parametrize("kind", oracles.MATRIX_KINDS)
def test_the_layout_does_not_matter(kind):
    """On a CPU (docs/numerics.md, section 13)."""
    checks.check_layout(checks.WAYS["pairs"], kind)


@pytest.mark.parametrize("kind", oracles.MATRIX_KINDS)
@pytest.mark.parametrize("check", layers.CHECKS)
@pytest.mark.parametrize(("device", "way"), WAYS)
def test_layers(device, way, check, kind):
    with backends.running(device):
        layers.CHECKS[check](layers.LAYER_WAYS[way], kind)
