"""Which GPU a capture is of, and that nothing waits when values go to one: with a stand-in for
torch's streams and graphs, as there is no GPU to ask."""

import contextlib
import pathlib

import pytest
import torch

from dspark_ext import _upload
from dspark_ext._recording import CaptureError, recording
from dspark_ext._upload import upload
from dspark_ext.engine import graphs
from dspark_ext.engine.graphs import CudaCapture, GraphRunner


class FakeStream:
    def __init__(self, device):
        self.device = device
        self.waited = []

    def wait_stream(self, other):
        assert other.device == self.device
        self.waited.append(other)


class FakeCuda:
    """Two GPUs, each with its current stream; of captures it keeps the stream."""

    def __init__(self):
        self.current = 0
        self.streams = [FakeStream(0), FakeStream(1)]
        self.captures = []
        self.fails = False

    def Stream(self):  # noqa: N802
        return FakeStream(self.current)

    def current_stream(self):
        return self.streams[self.current]

    def set_stream(self, stream):
        self.current = stream.device
        self.streams[stream.device] = stream

    @contextlib.contextmanager
    def stream(self, stream):
        before = self.current, list(self.streams)
        self.set_stream(stream)
        yield
        self.current, self.streams = before

    @contextlib.contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        with self.stream(stream):
            self.captures.append(stream)
            yield
        if self.fails:  # torch leaves its stream then
            self.set_stream(stream)
            raise RuntimeError("not allowed while a stream is captured")

    @contextlib.contextmanager
    def device(self, device):
        before, self.current = self.current, torch.device(device).index
        try:
            yield
        finally:
            self.current = before

    def CUDAGraph(self):  # noqa: N802
        return type("Graph", (), {"replay": lambda self: None})()

    def graph_pool_handle(self):
        return (0, 1)


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    for name in ("Stream", "current_stream", "set_stream", "stream", "graph", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", fake.graph_pool_handle)
    monkeypatch.setattr(graphs, "current", lambda device: fake.device("cuda:1"))
    return fake


def test_a_pass_is_captured_on_the_device_of_its_tensors(cuda):
    """Though another is the current one, and whatever device torch's own stream for captures is
    of."""
    seen = []

    def function(rows):
        seen.append((cuda.current, cuda.current_stream()))
        return (rows + 1,)

    runner = GraphRunner(function, [2, 4], CudaCapture(warmup=1))
    runner(torch.arange(2))
    runner(torch.arange(4))
    assert runner.failure is None and runner.captured == [2, 4]
    streams = {stream for _, stream in seen}
    assert len(seen) == 4 and {device for device, _ in seen} == {1}
    assert streams == set(cuda.captures) and len(streams) == 1  # memory of a pool is by stream
    assert streams.isdisjoint(cuda.streams) and cuda.current == 0


def test_a_capture_that_fails_leaves_the_stream_as_it_was(cuda):
    before = list(cuda.streams)
    cuda.fails = True
    runner = GraphRunner(lambda rows: (rows + 1,), [2], CudaCapture())
    assert runner(torch.arange(2))[0].tolist() == [1, 2]
    assert "not allowed" in str(runner.failure)
    assert cuda.streams == before and cuda.current == 0


def test_a_capture_waits_for_what_was_launched_before_and_is_waited_for(cuda):
    before = cuda.streams[1]
    GraphRunner(lambda rows: (rows + 1,), [2], CudaCapture())(torch.arange(2))
    (stream,) = cuda.captures
    assert stream.waited == [before] and before.waited == [stream]


@pytest.mark.parametrize("captures", [False, True])
def test_values_for_a_gpu_are_page_locked_and_nothing_waits(monkeypatch, captures):
    """Save in a capture, which has to refuse it: replays would read that memory again."""
    asked = []

    class Made:
        def to(self, device, non_blocking):
            asked.append((device, non_blocking))
            return self

    def tensor(values, *, dtype, device, pin_memory=False):
        asked.append((values, dtype, device, pin_memory))
        return Made()

    monkeypatch.setattr(_upload.torch, "tensor", tensor)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures)
    upload([1, 2], torch.int32, "cuda:1")
    there = torch.device("cuda:1")
    if captures:
        assert asked == [([1, 2], torch.int32, there, False)]
    else:
        assert asked == [([1, 2], torch.int32, "cpu", True), (there, True)]


@pytest.mark.parametrize("name", ["step", "request", "drafting", "planning", "logit_rules"])
def test_a_step_sends_values_in_no_other_way(name):
    source = pathlib.Path(graphs.__file__).with_name(f"{name}.py").read_text()
    assert "upload(" in source and "torch.tensor(" not in source and "as_tensor(" not in source


def test_values_stay_on_the_host_whatever_the_default():
    with torch.device("meta"):
        found = upload([[1, 2]], torch.int64)
    assert found.device.type == "cpu" and found.tolist() == [[1, 2]]
    assert upload([1.5], torch.float32, "meta").device.type == "meta"


def test_a_pass_over_two_gpus_is_not_captured():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        first = torch.empty(3, device="cuda:0")
        with pytest.raises(CaptureError, match="goes from cuda:0 to cuda:1, at test_current"):
            with recording():
                first.to("cuda:1")
        with recording() as calls:
            first + 1
        assert len(calls) == 1 and mode is not None
