"""Ranges of profilers: what is called when they are on, and that nothing is when they are off."""

import subprocess
import sys

import pytest
import torch

import dspark_ext
from dspark_ext import _operators, decoder, ranges, sampling, verify


@pytest.fixture(autouse=True)
def off_afterwards():
    yield
    ranges.disable()


class Marks:
    """What is pushed to NVTX and popped from it."""

    def __init__(self):
        self.open, self.seen = [], []

    def range_push(self, name):
        self.open.append(name)
        self.seen.append(name)

    def range_pop(self):
        self.open.pop()


@pytest.fixture
def marks(monkeypatch):
    """As on a machine with a GPU."""
    marks = Marks()
    monkeypatch.setattr(ranges, "_has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", marks.range_push)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", marks.range_pop)
    return marks


def schedule():
    capacity = torch.tensor([3, 3], dtype=torch.int32)
    return verify.schedule(None, mode="fixed", capacity=capacity, num_drafts=3)


def names_in_profile(function) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    return [event.name for event in profile.events()]


def calls_of(function) -> int:
    """Of Python functions, those of C included."""
    count = 0

    def counting(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counting)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count - 1  # the call that ends the counting


def test_operators_are_torchs_own_while_ranges_are_off(marks):
    ranges.enable()
    assert _operators.pack is not torch.ops.dspark_ext.pack
    ranges.disable()
    assert {"pack", "sample", "grouped_gemm", "linear"} <= set(_operators.names())
    for name in _operators.names():
        assert getattr(_operators, name) is getattr(torch.ops.dspark_ext, name)
    schedule()
    assert marks.seen == []


def test_a_range_that_is_off_calls_four_functions():
    """One to ask for it, its object's, and the two of every context manager."""

    def plain():
        pass

    def ranged():
        with ranges.range("here"):
            pass

    assert calls_of(ranged) - calls_of(plain) <= 4
    decorated = ranges.ranged("here")(plain)
    assert calls_of(decorated) - calls_of(plain) == 1


def test_an_operator_makes_no_call_more_because_there_are_ranges():
    x, weight = torch.ones(2, 8), torch.ones(8)
    through = calls_of(lambda: decoder.rms_norm(x, weight, 1e-5))
    direct = calls_of(lambda: torch.ops.dspark_ext.rms_norm(x, weight, 1e-5))
    assert through - direct == 1  # rms_norm itself


def test_torchs_profiler_shows_operators_by_themselves_and_ranges_when_they_are_on():
    def work():
        with ranges.range("mine"):
            schedule()

    names = names_in_profile(work)
    assert "dspark_ext::schedule" in names and "mine" not in names
    ranges.enable()
    names = names_in_profile(work)
    assert names.count("dspark_ext::schedule") == 1 and names.count("mine") == 1


def test_a_range_is_closed_by_an_error(marks):
    ranges.enable()
    with pytest.raises(KeyError), ranges.range("outer"):
        raise KeyError
    with pytest.raises(RuntimeError):
        sampling.target_probs(torch.zeros(3))
    assert marks.seen == ["outer", "dspark_ext::target_probs"] and marks.open == []


def test_with_a_gpu_operators_and_ranges_are_marked_for_its_profilers(marks):
    ranges.enable()
    ranges.enable()  # once is enough
    logits = torch.zeros(2, 4)
    with ranges.range("mine"):
        sampling.target_probs(logits)
        sampling.target_probs(logits, out=torch.empty(2, 4))
    assert marks.seen == ["mine", "dspark_ext::target_probs", "dspark_ext::target_probs"]
    assert marks.open == []


def test_emit_nvtx_marks_by_itself(marks, monkeypatch):
    """It makes a mark of every record_function and every operator; there shall not be two."""
    monkeypatch.setattr(ranges, "_emits_nvtx", lambda: True)
    ranges.enable()
    with ranges.range("mine"):
        schedule()
    assert marks.seen == []


def test_the_active_profiler_is_known():
    assert not ranges._emits_nvtx()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert not ranges._emits_nvtx()


@pytest.mark.parametrize("on", [False, True])
def test_ranges_break_no_graph(marks, on):
    if on:
        ranges.enable()

    @ranges.ranged("decorated")
    def work(capacity):
        with ranges.range("inside"):
            chosen = verify.schedule(None, mode="fixed", capacity=capacity, num_drafts=3)
        return chosen.verify_lens + 1

    torch._dynamo.reset()
    compiled = torch.compile(work, fullgraph=True, backend="eager")
    capacity = torch.tensor([2, 5], dtype=torch.int32)
    assert compiled(capacity).tolist() == [3, 4]
    assert marks.seen == []


def test_what_is_decorated_keeps_its_name_and_documentation():
    from dspark_ext import moe

    assert moe.fused_moe.__name__ == "fused_moe" and "w13" in moe.fused_moe.__doc__


def test_the_environment_switches_them_on():
    code = "import dspark_ext; print(dspark_ext.ranges.enabled())"
    environment = {"DSPARK_RANGES": "1", "PYTHONPATH": f"{dspark_ext.__path__[0]}/.."}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "True"
    values = {"1": True, "yes": True, "0": False, "": False, None: False}
    assert {value: ranges._asked_for(value) for value in values} == values
