"""Sampling tests that use the fixture `backend` run once per backend."""

import backends
import pytest


def pytest_generate_tests(metafunc):
    if "backend" in metafunc.fixturenames:
        names = ["cpu", "simt", *(["cuda"] if backends.gpu_available() else [])]
        metafunc.parametrize("backend", names, indirect=True)


def pytest_collection_modifyitems(items):
    """Leaves out what is too much for the emulator."""

    def too_much(item) -> bool:
        parameters = getattr(item, "callspec", None) and item.callspec.params
        on_emulator = bool(parameters) and parameters.get("backend") == "simt"
        return on_emulator and item.get_closest_marker("no_emulator") is not None

    items[:] = [item for item in items if not too_much(item)]


@pytest.fixture
def backend(request):
    """Name of the backend that `dspark_ext.sampling` runs on during the test."""
    with backends.running(request.param):
        yield request.param
