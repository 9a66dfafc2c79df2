"""Input sets that exceed the caches, and clocks, for harness.py and growth.py."""

import itertools
import pathlib
import statistics
import time
from collections.abc import Callable

import peaks
import torch

MAX_SETS, MAX_RANDOM_SETS = 64, 16
SAMPLE_SECONDS = 200e-6  # short calls are timed several at a time


# ---- input sets ---------------------------------------------------------------------------------


def last_level_cache_bytes(device: str = "cpu") -> int:
    """Size of the largest cache, 64 MiB if the system does not tell; on a GPU at least 256 MiB, as
    some have a cache behind the one that they tell of."""
    if device != "cpu":
        return max(256 << 20, torch.cuda.get_device_properties(0).L2_cache_size)
    sizes = [64 << 20]
    for path in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        sizes.append(int(path.read_text().strip().rstrip("K")) << 10)
    return max(sizes)


def over_tensors(function: Callable, value):
    """`value` with `function` applied to every tensor in its tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: over_tensors(function, each) for key, each in value.items()}
    if isinstance(value, tuple):
        parts = [over_tensors(function, each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def total_bytes(value) -> int:
    """Of all tensors in it."""
    sizes = []
    over_tensors(lambda tensor: sizes.append(tensor.nbytes) or tensor, value)
    return sum(sizes)


def input_sets(make_inputs: Callable, device: str, first: tuple) -> list[tuple]:
    """Enough to exceed the caches: new ones, and for small inputs copies of them."""
    cache = last_level_cache_bytes(device)
    number = max(2, min(MAX_SETS, -(-3 * cache // max(1, total_bytes(first)))))
    sets = [first]
    for _ in range(min(number, MAX_RANDOM_SETS) - 1):
        sets.append(on_device(make_inputs(), device))
    random = len(sets)
    for i in range(random, number):
        sets.append(over_tensors(torch.clone, sets[i % random]))
    return sets


def on_device(inputs: tuple, device: str) -> tuple:
    return inputs if device == "cpu" else over_tensors(lambda t: t.to(device), inputs)


def peak_extra_bytes(function: Callable[[], object], device: str = "cpu") -> int | None:
    """Memory that `function` takes while it runs; None where the system does not tell."""
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before

    def status(key: str) -> int:
        text = pathlib.Path("/proc/self/status").read_text()
        return int(text.split(key + ":")[1].split()[0]) << 10

    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    except OSError:
        return None
    before = status("VmRSS")
    function()
    return max(0, status("VmHWM") - before)


# ---- clocks -------------------------------------------------------------------------------------


def seconds_of(function: Callable, sets, calls: int = 1) -> tuple[float, float]:
    """Wall time and processor time of a call, one of `calls` on the next input sets."""
    inputs = [next(sets) for _ in range(calls)]
    start, start_cpu = time.perf_counter(), time.process_time()
    for each in inputs:
        function(*each)
    wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    return wall / calls, cpu / calls


def captured(function: Callable, inputs: tuple) -> Callable:
    """Replays `function(*inputs)` as a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(*inputs)
    return graph.replay


class Timer:
    """Times one function on input sets in turn."""

    def __init__(self, function: Callable, sets: list[tuple], device: str, graphs: bool):
        self.function, self.device, self.num_sets = function, device, len(sets)
        self.sets = itertools.cycle(sets)
        self.calls = 1
        self.replays = None
        if device != "cpu" and graphs:
            self.replays = itertools.cycle([captured(function, inputs) for inputs in sets])
        else:
            once, _ = self.sample()
            self.calls = max(1, min(len(sets), int(SAMPLE_SECONDS / max(once, 1e-9))))

    def once_each(self) -> tuple[float, float]:
        """(seconds, processor seconds) of a call, the mean over all input sets."""
        if self.device == "cpu":
            return seconds_of(self.function, self.sets, self.num_sets)
        samples = [self.sample() for _ in range(self.num_sets)]
        return tuple(statistics.fmean(each) for each in zip(*samples, strict=True))

    def sample(self) -> tuple[float, float]:
        """(seconds, processor seconds) of a call."""
        if self.device == "cpu":
            return seconds_of(self.function, self.sets, self.calls)
        start = time.process_time()
        if self.replays:
            return peaks.gpu_seconds(next(self.replays)), time.process_time() - start
        inputs = next(self.sets)
        seconds = peaks.gpu_seconds(lambda: self.function(*inputs))
        return seconds, time.process_time() - start


def summary(seconds: list[tuple[float, float]], device: str) -> dict:
    """Median, deciles and processor time, in microseconds."""
    wall, cpu = zip(*seconds, strict=True)
    deciles = statistics.quantiles(wall, n=10, method="inclusive") if len(wall) > 1 else wall * 2
    return {
        "median_us": statistics.median(wall) * 1e6,
        "p10_us": deciles[0] * 1e6,
        "p90_us": deciles[-1] * 1e6,
        "cpu_us": statistics.median(cpu) * 1e6,
        "cpu_least_us": min(cpu) * 1e6,
    }


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def microseconds(value: float | None) -> str:
    return number(value, 1 if value is not None and value < 100 else 0)
