import draft_heads
import pytest


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The tensors here are too small for more."""
    with draft_heads.one_thread():
        yield
