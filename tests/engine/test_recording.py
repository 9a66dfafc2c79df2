"""What a recorded pass is told of what a graph could not hold."""

import re

import pytest
import torch

from dspark_ext._recording import capture_obstacle, is_recording, reads_values

functional = torch.nn.functional


class State:
    """Of a pass; `step` counts its runs."""

    def __init__(self):
        self.x = torch.arange(4.0)
        self.kept = self.x.clone()
        self.step = 0

    def next(self):
        self.step += 1
        return self.step

    def ranged(self):
        with torch.profiler.record_function("range"):
            return self.x + 1

    def replaced(self):
        self.kept = self.kept.clone()
        return self.kept + 1


READS = {
    "tolist": lambda s: s.x.tolist(),
    "item": lambda s: s.x[1].item(),
    "__int__": lambda s: int(s.x[1]),
    "__bool__": lambda s: s.x * 2 if s.x.sum() > 3 else s.x,
    "__contains__": lambda s: 3 in s.x,
    "numpy": lambda s: s.x.numpy(),
    "cpu": lambda s: s.x.cpu(),
}
OBSTACLES = {
    **{rf"the host reads a tensor \({name}\)": run for name, run in READS.items()},
    "index.Tensor by a mask": lambda s: s.x[s.x > 1],
    "index_put_.* by a mask": lambda s: s.x.clone().__setitem__(s.x > 1, 0.0),
    "nonzero.* depends on values": lambda s: torch.where(s.x > 1),
    "unique.* depends on values": lambda s: torch.unique(s.x),
    "masked_select.* depends on values": lambda s: s.x.masked_select(s.x > 1),
    "repeat_interleave.* depends on values": lambda s: s.x.repeat_interleave(s.x.long()),
    "local_scalar_dense.* depends on values": lambda s: functional.one_hot(s.x.long()),
    "slice.Tensor is given 2, with other values 3": lambda s: s.x[: s.next()],
    "mul.Tensor is given 2, with other values 3": lambda s: s.x * s.next(),
    "reads a tensor that is another one in every pass": State.replaced,
    "another one in every pass.*": lambda s: torch.tensor([1.0, 2.0]) + 1,
    "neg.* is aten.abs.default with other": lambda s: (s.x.abs, s.x.neg)[s.next() % 2 == 0](),
    "1 operations are 2 with": lambda s: [s.x.exp() for _ in range(s.next() - 1)],
}


@pytest.mark.parametrize("reason", OBSTACLES)
def test_an_obstacle_is_named_with_its_place(reason):
    state = State()
    found = capture_obstacle(lambda: OBSTACLES[reason](state), lambda: state.x.add_(1))
    assert found and re.search(reason, found), found
    assert "operations" in reason or re.search(r", at test_recording.py:\d+$", found), found


FINE = {
    "arithmetic": lambda s: functional.linear(s.x[None], torch.ones(3, 4)) * 2,
    "a mask that keeps shapes": lambda s: s.x.masked_fill(s.x > 1, 0).where(s.x > 0, 2.0),
    "rows by number": lambda s: s.x[s.x.long().clamp(max=3)],
    "numbers": lambda s: s.x.clone().__setitem__(0, 1.0),
    "ranges": lambda s: s.ranged(),
    "in place": lambda s: s.kept.add_(s.x).cumsum(0),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("what", FINE)
def test_what_a_graph_can_hold(what, inference):
    with torch.inference_mode(inference):
        state = State()
        assert capture_obstacle(lambda: FINE[what](state), lambda: state.x.add_(1)) is None


def test_passes_can_ask_whether_they_are_recorded():
    seen = []

    def run():
        seen.append((is_recording(), reads_values(torch.ones(1))))
        seen.append(torch.cuda.is_current_stream_capturing() if is_recording() else None)

    before = torch.cuda.is_current_stream_capturing
    assert capture_obstacle(run, lambda: None) is None
    assert seen == [(False, True), None, *[(True, False), True] * 2]
    assert torch.cuda.is_current_stream_capturing is before and not is_recording()
