"""Times an operator against a baseline in the same run, after checking that it is right.

A benchmark file builds `Case`s and calls `main`. For each case:

1. `check` compares the operator with its reference; a failure stops the run.
2. Operator and baseline run alternately, each on the next of several input sets, enough of them to
   exceed the last-level cache, so that every run reads memory.
3. The table gives the median and the 10th to 90th percentile; GB/s and percent of the copy
   bandwidth measured in this run, both over the *floor*: bytes that any implementation has to move
   (each input read once, each output written once); what the operator itself moves, as the case
   declares it; the memory it needs beyond its inputs; times faster than the baseline, by the clock
   and by processor time (the steadier figure on a machine that does other work).
"""

import argparse
import dataclasses
import datetime
import itertools
import json
import pathlib
import platform
import statistics
import subprocess
import time
from collections.abc import Callable

import torch

import dspark_ext


@dataclasses.dataclass
class Case:
    """One row of the table.

    make_inputs: a new set of inputs each time, as one tuple.
    run, baseline: called with such a tuple; baseline None leaves that column empty.
    check: called with a tuple; raises if the operator is wrong.
    floor_bytes: what has to move. moved_bytes: what the operator moves by its own count.
    """

    name: str
    make_inputs: Callable[[], tuple]
    run: Callable
    baseline: Callable | None
    baseline_name: str
    check: Callable[[tuple], None]
    floor_bytes: int
    moved_bytes: int


def last_level_cache_bytes() -> int:
    """Size of the largest CPU cache, 64 MiB if the system does not tell."""
    sizes = [64 << 20]
    for path in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        sizes.append(int(path.read_text().strip().rstrip("K")) << 10)
    return max(sizes)


def copy_bandwidth(repeats: int = 7) -> float:
    """Bytes per second of a large copy, reads and writes counted, with torch's threads."""
    source = torch.ones(32 << 20)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - start)
    return 2 * source.nbytes / statistics.median(seconds)


def peak_extra_bytes(function: Callable[[], object]) -> int | None:
    """Growth of the resident set while `function` runs; None where Linux does not tell."""

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


def seconds_of(function: Callable, inputs: tuple) -> tuple[float, float]:
    """Wall time and processor time of one call."""
    start, start_cpu = time.perf_counter(), time.process_time()
    function(*inputs)
    return time.perf_counter() - start, time.process_time() - start_cpu


def measure(case: Case, bandwidth: float, repeats: int) -> dict:
    """Check `case`, time it, and return one row of results."""
    first = case.make_inputs()
    case.check(first)
    input_bytes = sum(x.nbytes for x in first if isinstance(x, torch.Tensor))
    num_sets = max(2, min(8, -(-3 * last_level_cache_bytes() // input_bytes)))
    sets = itertools.cycle([first, *(case.make_inputs() for _ in range(num_sets - 1))])

    extra = peak_extra_bytes(lambda: case.run(*first))
    baseline_extra = None
    seconds, baseline_seconds = [], []
    case.run(*next(sets))
    if case.baseline:
        baseline_extra = peak_extra_bytes(lambda: case.baseline(*first))
        case.baseline(*next(sets))
    for _ in range(repeats):
        seconds.append(seconds_of(case.run, next(sets)))
        if case.baseline:
            baseline_seconds.append(seconds_of(case.baseline, next(sets)))

    wall, cpu = zip(*seconds, strict=True)
    median = statistics.median(wall)
    deciles = statistics.quantiles(wall, n=10, method="inclusive")
    row = {
        "case": case.name,
        "median_us": median * 1e6,
        "p10_us": deciles[0] * 1e6,
        "p90_us": deciles[-1] * 1e6,
        "cpu_us": statistics.median(cpu) * 1e6,
        "floor_bytes": case.floor_bytes,
        "moved_over_floor": case.moved_bytes / case.floor_bytes,
        "gb_per_s": case.floor_bytes / median / 1e9,
        "percent_of_copy": 100 * case.floor_bytes / median / bandwidth,
        "extra_mib": None if extra is None else extra / 2**20,
        "baseline": case.baseline_name,
    }
    if case.baseline:
        wall, cpu = zip(*baseline_seconds, strict=True)
        row["baseline_median_us"] = statistics.median(wall) * 1e6
        row["baseline_cpu_us"] = statistics.median(cpu) * 1e6
        row["baseline_extra_mib"] = None if baseline_extra is None else baseline_extra / 2**20
        row["speedup"] = row["baseline_median_us"] / row["median_us"]
        row["cpu_speedup"] = row["baseline_cpu_us"] / row["cpu_us"]
    return row


def header(bandwidth: float) -> dict:
    """What the numbers depend on."""

    def first_line(*command: str) -> str:
        try:
            result = subprocess.run(command, capture_output=True, text=True)
        except OSError:
            return "unknown"
        return result.stdout.strip().partition("\n")[0] or "unknown"

    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    models = [line.split(":")[1].strip() for line in cpuinfo.splitlines() if "model name" in line]
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": f"{models[0] if models else platform.machine()} x {len(models)}",
        "isa": dspark_ext.build_info()["cpu"]["active"],
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "compiler": dspark_ext.build_info()["compiler"],
        "commit": first_line("git", "describe", "--always", "--dirty"),
        "copy_gb_per_s": round(bandwidth / 1e9, 2),
    }


def markdown(rows: list[dict]) -> str:
    """The results as one table."""

    def number(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    lines = [
        "| case | median us | p10 - p90 | GB/s | % of copy | moved/floor | extra MiB "
        "| baseline | its median us | its MiB | times faster | by processor time |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['case']} | {number(row['median_us'], 0)} "
            f"| {number(row['p10_us'], 0)} - {number(row['p90_us'], 0)} "
            f"| {number(row['gb_per_s'])} | {number(row['percent_of_copy'], 0)} "
            f"| {number(row['moved_over_floor'], 2)} | {number(row['extra_mib'])} "
            f"| {row['baseline']} | {number(row.get('baseline_median_us'), 0)} "
            f"| {number(row.get('baseline_extra_mib'))} | {number(row.get('speedup'), 1)} "
            f"| {number(row.get('cpu_speedup'), 1)} |"
        )
    return "\n".join(lines)


def main(description: str, make_cases: Callable[[], list[Case]]) -> None:
    """Command line of a benchmark file: measure, print the table, write JSON lines if asked."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--repeats", type=int, default=9, help="timed runs of each case")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's choice)")
    parser.add_argument("--markdown", type=pathlib.Path, help="write header and table")
    parser.add_argument("--json", type=pathlib.Path, help="write header and rows as JSON lines")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    bandwidth = copy_bandwidth()
    facts = header(bandwidth)
    facts_line = ", ".join(f"{key}: {value}" for key, value in facts.items())
    print(facts_line, flush=True)
    rows = []
    for case in make_cases():
        if options.only in case.name:
            print(f"measuring {case.name} ...", flush=True)
            rows.append(measure(case, bandwidth, options.repeats))
    print(markdown(rows))
    if options.markdown:
        options.markdown.write_text(f"{description}\n\n{facts_line}\n\n{markdown(rows)}\n")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(entry) for entry in [facts, *rows]]
        options.json.write_text("\n".join(lines) + "\n")
