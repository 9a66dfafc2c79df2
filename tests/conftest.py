"""Shared by all tests: `tests/` is on sys.path, so `lawkit` and `kit` can be imported."""

import os

import backends
import numpy as np
import processor_time
import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    # Test processes side by side: each takes one core, and so do the processes that it starts.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240310)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20240310)


@pytest.fixture(params=["cpu", *(["cuda"] if backends.gpu_available() else [])])
def device(request) -> str:
    """Every device that the sampling operators run on here."""
    return request.param


def pytest_configure(config):
    processor_time.register(config)


def pytest_report_header(config) -> str:
    import dspark_ext

    return f"dspark_ext: CPU instruction set {dspark_ext._C.cpu_isa()}, torch {torch.__version__}"
