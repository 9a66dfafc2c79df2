"""What the time of engine steps goes into: processor time by coarse phase, the profiler's by the
engine's own phases (docs/profiling.md) and operators.

Coarse phases: `target`, its pass; `draft`, the draft and the drafter's context; `sample`, rejection
sampling; `other`, the rest of a step (schedule, packing, bookkeeping, admission).
"""

import collections
import contextlib
import time

from torch.profiler import ProfilerActivity, profile, record_function

from dspark_ext import ranges, sampling

STEP = "dspark.other"
ENGINE_PHASES = {
    f"dspark.{name}"
    for name in ("admission", "step", "prefill", "draft", "schedule", "verify", "rejection")
} | {"dspark.read", "dspark.commit", "dspark.text", STEP}
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


def parts_of_steps(step, count: int) -> list[dict]:
    """Shares of the time of `count` calls of `step`, largest first: [{phase, part, share, calls}].

    Phases are the engine's, without those inside them; `other` is what is in none. Parts: operators
    of the package by name, each with the operators it calls; torch's own together; and Python,
    which is all time of a phase that no operator was running.
    """
    with ranged(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(count):
            with record_function(STEP):
                step()
    return shares(profiler.events())


@contextlib.contextmanager
def ranged():
    """The package's ranges are on."""
    before = ranges.enabled()
    ranges.enable()
    try:
        yield
    finally:
        if not before:
            ranges.disable()


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
    part = PYTHON if event.name in ENGINE_PHASES else OTHER
    while event is not None:
        if event.name.startswith(PACKAGE):
            part = event.name
        if event.name in ENGINE_PHASES:
            return event.name.removeprefix("dspark."), part
        event = event.cpu_parent
    return None
