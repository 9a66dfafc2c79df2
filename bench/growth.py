"""Time of an operator over one dimension: `--grow B,K,V`.

All sizes are measured in turns, so that what else the machine does falls on all of them alike. A
sample is the mean over all input sets, because work may depend on the data; the figure of a size is
the least sample, of processor time (on a GPU of time between events). Two fits say whether the
growth is linear:

- the exponent of a power law through the larger half of the sizes, where fixed costs count little;
- the line a + b n with the least relative error, and how far the worst size lies from it.
"""

import dataclasses
import math
from collections.abc import Callable

import timing


@dataclasses.dataclass
class Growth:
    """`make_case(value)` for each of `values`; tiny ones for a test of the timing."""

    name: str
    values: tuple
    make_case: Callable
    quick_values: tuple = (2, 3)


def exponent(values, seconds) -> float:
    """Of a power law through the larger half of the sizes, by least squares in logarithms."""
    start = (len(values) - 1) // 2
    x = [math.log(v) for v in values[start:]]
    y = [math.log(s) for s in seconds[start:]]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def line(values, seconds) -> tuple[float, float, float]:
    """(a, b, largest relative deviation) of a + b n, by least squares of relative errors."""
    weights = [1 / s**2 for s in seconds]
    total = sum(weights)
    mean_x = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    mean_y = sum(w * s for w, s in zip(weights, seconds, strict=True)) / total
    above = below = 0.0
    for w, v, s in zip(weights, values, seconds, strict=True):
        above += w * (v - mean_x) * (s - mean_y)
        below += w * (v - mean_x) ** 2
    slope = above / below
    start = mean_y - slope * mean_x
    worst = max(abs((start + slope * v) / s - 1) for v, s in zip(values, seconds, strict=True))
    return start, slope, worst


def measure(dimension: str, growth: Growth, repeats: int, quick: bool, device: str) -> dict:
    """One curve."""
    values = growth.quick_values if quick else growth.values
    timers = []
    for value in values:
        case = growth.make_case(value)
        first = timing.on_device(case.make_inputs(), device)
        case.check(first)
        sets = timing.input_sets(case.make_inputs, device, first)
        timers.append(timing.Timer(case.run, sets, device, case.captured))
    index = 0 if device != "cpu" else 1
    samples = [[] for _ in values]
    for _ in range(repeats):
        for timer, seconds in zip(timers, samples, strict=True):
            seconds.append(timer.once_each()[index])
    least = [min(each) for each in samples]
    start, slope, worst = line(values, least)
    return {
        "name": growth.name,
        "dimension": dimension,
        "values": list(values),
        "us": [s * 1e6 for s in least],
        "exponent": exponent(values, least),
        "start_us": start * 1e6,
        "slope_us": slope * 1e6,
        "deviation": worst,
    }


def measure_all(growths: dict, wanted: list[str], options, device: str) -> list[dict]:
    """The curves of `wanted` dimensions; `growths` has a list of Growth for each it knows."""
    curves = []
    for dimension in wanted:
        if dimension not in growths:
            known = ", ".join(growths) or "none"
            raise SystemExit(f"bench: --grow {dimension}: expected one of: {known}")
        for each in growths[dimension]:
            runs_here = device in each.make_case(each.values[0]).devices
            if options.only in each.name and runs_here:
                print(f"growing {dimension} of {each.name} ...", flush=True)
                curves.append(measure(dimension, each, options.repeats, options.quick, device))
    return curves


def markdown(curves: list[dict]) -> str:
    """A table for every curve."""
    parts = []
    for curve in curves:
        head = [f"{curve['dimension']}={value}" for value in curve["values"]]
        times = [timing.microseconds(us) for us in curve["us"]]
        parts.append(
            f"**{curve['name']}** over {curve['dimension']}: exponent {curve['exponent']:.2f}; "
            f"{timing.microseconds(curve['start_us'])} us + "
            f"{timing.number(curve['slope_us'], 2)} us per {curve['dimension']}, "
            f"worst deviation {100 * curve['deviation']:.0f} %\n\n"
            f"| {' | '.join(['least us', *head])} |\n"
            f"{'|---' * (len(head) + 1)}|\n"
            f"| {' | '.join(['', *times])} |\n"
        )
    return "\n".join(parts)
