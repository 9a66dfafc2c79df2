"""Expert products on inputs that make a wrong index visible, in every format and way of computing:
the checks are tests/expert_checks.py."""

import backends
import expert_checks as checks
import pytest

WAYS = [("cpu", "exact"), ("cpu", "rows"), ("cpu", "pairs")]
if backends.gpu_available():
    WAYS += [("cuda", "exact"), ("cuda", "rows"), ("cuda", "panels")]


@pytest.mark.parametrize(("check", "kind"), checks.cases())
@pytest.mark.parametrize(("device", "way"), WAYS)
def test_products(device, way, check, kind):
    with backends.running(device):
        checks.CHECKS[check](checks.WAYS[way], kind)
