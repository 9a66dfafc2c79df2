"""What the time of engine steps goes into: processor time by phase, the profiler's by operator.

Phases: `target`, its pass; `draft`, the draft and the drafter's context; `sample`, rejection
sampling; `other`, the rest of a step (schedule, packing, bookkeeping, admission).
"""

import collections
import contextlib
import time

from torch.profiler import ProfilerActivity, profile, record_function

from dspark_ext import sampling

STEP = "engine step"
PREFIX = "phase "
PYTHON = "Python"
OTHER = "torch operators"
PACKAGE = "dspark_ext::"
PHASES = ("target", "draft", "sample", "other")


@contextlib.contextmanager
def phases_of(pair, around):
    """`around(phase)` is a context of every call that makes up a phase."""
    calls = (
        (pair.target, "forward", "target"),
        (pair.drafter, "draft", "draft"),
        (pair.drafter, "append", "draft"),
        (sampling, "rejection_sample", "sample"),
    )
    with contextlib.ExitStack() as stack:
        for owner, function, phase in calls:
            stack.enter_context(wrapped(owner, function, phase, around))
        yield


@contextlib.contextmanager
def wrapped(owner, function: str, phase: str, around):
    inner = getattr(owner, function)
    own = function in vars(owner)  # else it is of the class

    def call(*args, **options):
        with around(phase):
            return inner(*args, **options)

    setattr(owner, function, call)
    try:
        yield
    finally:
        if own:
            setattr(owner, function, inner)
        else:
            delattr(owner, function)


class PhaseClock:
    """Adds the processor time of phases up while it is on."""

    def __init__(self) -> None:
        self.seconds = collections.Counter()

    @contextlib.contextmanager
    def __call__(self, phase: str):
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds[phase] += time.process_time() - start


def parts_of_steps(pair, step, count: int) -> list[dict]:
    """Shares of the time of `count` calls of `step`, largest first: [{phase, part, share, calls}].

    Parts: operators of the package by name, torch's own together, and Python, which is all time of
    a phase that no operator was running. Operators called by an operator of the package count as
    that one.
    """
    with (
        phases_of(pair, lambda phase: record_function(PREFIX + phase)),
        profile(activities=[ProfilerActivity.CPU]) as profiler,
    ):
        for _ in range(count):
            with record_function(STEP):
                step()
    return shares(profiler.events())


def shares(events) -> list[dict]:
    seconds, calls = collections.Counter(), collections.Counter()
    for event in events:
        place = place_of(event)
        if place is not None:
            seconds[place] += event.self_cpu_time_total
            calls[place] += event.name == place[1]
    total = sum(seconds.values())
    return [
        {
            "phase": phase,
            "part": part.removeprefix(PACKAGE),
            "share": value / total,
            "calls": calls[phase, part],
        }
        for (phase, part), value in seconds.most_common()
    ]


def place_of(event) -> tuple[str, str] | None:
    """(phase, part) that the own time of an event counts for; None outside of steps."""
    part = PYTHON if event.name == STEP or event.name.startswith(PREFIX) else OTHER
    while event is not None:
        if event.name.startswith(PACKAGE):
            part = event.name
        if event.name.startswith(PREFIX):
            return event.name.removeprefix(PREFIX), part
        if event.name == STEP:
            return "other", part
        event = event.cpu_parent
    return None
