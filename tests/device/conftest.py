"""Tests of the device kernels on a real GPU. Without one they are skipped; tests/simt runs the same
kernels on the emulator."""

import backends
import pytest


@pytest.fixture(autouse=True)
def gpu():
    if not backends.gpu_available():
        pytest.skip(f"needs a GPU that this build serves: {backends.gpu_missing()}")
