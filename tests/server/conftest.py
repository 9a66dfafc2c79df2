"""A server over the trained tiny pair, on a port of its own."""

import contextlib
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from http_clients import Running

from dspark_ext.demo import tiny
from dspark_ext.engine import DSparkDrafter, DSparkEngine, HuggingFaceTarget, SpeculativeConfig
from dspark_ext.server import ServerLimits, make_server
from dspark_ext.server.app import Model

FIXTURES = Path(__file__).parents[1] / "fixtures"
MAX_LEN = 160


def chat(messages):
    if messages[-1]["role"] == "system":
        raise ValueError("the last message has to be the user's")
    return "".join(f"# {each['role']}: {each['content']}\n" for each in messages)


@pytest.fixture(scope="session")
def pair():
    return tiny.load_pair(
        FIXTURES / "tiny_target.safetensors", FIXTURES / "tiny_drafter.safetensors"
    )


@pytest.fixture(scope="session")
def make_engine(pair):
    """make_engine(max_requests=8, max_len=160, **config) -> a new engine"""

    def make(max_requests=8, max_len=MAX_LEN, **config):
        model, head = pair
        taps = head.config.dspark_target_layer_ids
        target = HuggingFaceTarget(model, taps, max_requests=max_requests, max_len=max_len)
        drafter = DSparkDrafter.for_target(head, target)
        return DSparkEngine(target, drafter, SpeculativeConfig(**config), tokenizer=tiny)

    return make


@pytest.fixture(scope="session")
def start(make_engine):
    """with start(engine=None, stop_ids=(), api_key=None, **limits) as running: ..."""

    @contextlib.contextmanager
    def starting(engine=None, stop_ids=(), api_key=None, template=chat, **limits):
        model = Model(engine or make_engine(), "tiny", tiny, template, stop_ids)
        server = make_server(
            model,
            port=0,
            limits=ServerLimits(**{"shutdown_seconds": 1.0, **limits}),
            api_key=api_key,
            log_level="critical",
        )
        running = Running(server)
        try:
            yield running
        finally:
            running.stop()

    return starting


@pytest.fixture(scope="module")
def server(start):
    with start() as running:
        yield running
