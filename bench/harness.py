"""Times an operator against a baseline in the same run, after checking that it is right.

A benchmark file builds `Case`s and calls `main`. For each case:

1. `check` compares the operator with its reference; a failure stops the run.
2. Operator and baseline run alternately, each on the next of several input sets, enough of them to
   exceed the last-level cache three times over, so that every run reads memory.
3. The table gives the median and the 10th to 90th percentile; the *floor*, bytes that any
   implementation has to move (each input read once, each output written once), over the time; the
   percent of peak: the time the floor or the arithmetic takes at the peaks measured in this run,
   whichever is longer, over the time; what the operator itself moves, as the case declares it; the
   memory it needs beyond its inputs; times faster than the baseline, by the clock and by processor
   time (the steadier figure on a machine that does other work).

Where there is a GPU the same cases then run there (`--device cpu` or `--device cuda`, also for AMD,
chooses): times are of a replayed graph, between two events; cases that cannot be captured are timed
without. `--grow B,V` times the operator over a dimension instead (growth.py).
"""

import argparse
import dataclasses
import datetime
import functools
import inspect
import json
import pathlib
import platform
import re
import subprocess
from collections.abc import Callable

import counts
import growth
import peaks
import torch
from peaks import copy_bandwidth
from timing import (
    Timer,
    input_sets,
    last_level_cache_bytes,
    microseconds,
    number,
    on_device,
    peak_extra_bytes,
    summary,
)

import dspark_ext

# What other files here take from this one besides.
__all__ = ["ANYWHERE", "Case", "copy_bandwidth", "header", "last_level_cache_bytes", "main"]
ANYWHERE = ("cpu", "cuda")


@dataclasses.dataclass
class Case:
    """One row of the table.

    name: the operator, then variants, then sizes such as B=32; op and sizes are read from it.
    make_inputs: a new set of inputs each time, as one tuple, on the CPU.
    run, baseline: called with such a tuple; baseline None leaves that column empty.
    check: called with a tuple; raises if the operator is wrong.
    floor_bytes: what has to move. moved_bytes: what the operator moves by its own count.
    op: the name by which counts.py counts; by default the first word of `name`.
    captured: on a GPU, whether a graph may capture `run`.
    devices: on which it runs: ANYWHERE, or a CPU alone.
    """

    name: str
    make_inputs: Callable[[], tuple]
    run: Callable
    baseline: Callable | None
    baseline_name: str
    check: Callable[[tuple], None]
    floor_bytes: int
    moved_bytes: int
    op: str = ""
    sizes: dict = dataclasses.field(default_factory=dict)
    captured: bool = True
    devices: tuple = ("cpu",)

    def __post_init__(self):
        found = {key: int(value) for key, value in re.findall(r"\b(\w+)=(\d+)\b", self.name)}
        self.sizes = {**found, **self.sizes}
        self.op = self.op or self.name.split()[0].rstrip(",")


# ---- measuring ----------------------------------------------------------------------------------


def least_seconds(case: Case, facts: dict, moved: float) -> float:
    """What moving `moved` bytes or the arithmetic takes at the measured peaks."""
    flops, unit = counts.flops(case.op, case.sizes)
    bandwidth = max(facts["copy_gb_per_s"], facts["read_gb_per_s"]) * 1e9
    return max(moved / bandwidth, flops / (facts[f"{unit}_gflop_per_s"] * 1e9))


def measure(case: Case, facts: dict, repeats: int, device: str = "cpu") -> dict:
    """Check `case`, time it, and return one row of results."""
    first = on_device(case.make_inputs(), device)
    case.check(first)
    sets = input_sets(case.make_inputs, device, first)

    extra = peak_extra_bytes(lambda: case.run(*first), device)
    baseline_extra = baseline = None
    timer = Timer(case.run, sets, device, case.captured)
    if case.baseline:
        baseline_extra = peak_extra_bytes(lambda: case.baseline(*first), device)
        baseline = Timer(case.baseline, sets, device, False)
    seconds, baseline_seconds = [], []
    for _ in range(repeats):
        seconds.append(timer.sample())
        if baseline:
            baseline_seconds.append(baseline.sample())

    flops, unit = counts.flops(case.op, case.sizes)
    row = {"case": case.name, "op": case.op, "sizes": case.sizes, "device": device}
    row |= summary(seconds, device)
    median = row["cpu_us" if device == "cpu" and facts["threads"] == 1 else "median_us"] * 1e-6
    row |= {
        "floor_bytes": case.floor_bytes,
        "moved_bytes": case.moved_bytes,
        "flops": flops,
        "unit": unit,
        "moved_over_floor": case.moved_bytes / case.floor_bytes,
        "gb_per_s": case.floor_bytes / median / 1e9,
        "percent_of_peak": 100 * least_seconds(case, facts, case.floor_bytes) / median,
        "extra_mib": None if extra is None else extra / 2**20,
        "baseline": case.baseline_name,
    }
    if baseline:
        other = summary(baseline_seconds, device)
        row |= {f"baseline_{key}": value for key, value in other.items()}
        row["baseline_extra_mib"] = None if baseline_extra is None else baseline_extra / 2**20
        row["speedup"] = other["median_us"] / row["median_us"]
        row["cpu_speedup"] = other["cpu_us"] / row["cpu_us"] if device == "cpu" else None
    return row


def header(bandwidth: float | None = None, device: str = "cpu", peaks: dict | None = None) -> dict:
    """What the numbers depend on; `bandwidth` alone, or all measured `peaks`."""

    def first_line(*command: str) -> str:
        try:
            result = subprocess.run(command, capture_output=True, text=True)
        except OSError:
            return "unknown"
        return result.stdout.strip().partition("\n")[0] or "unknown"

    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    models = [line.split(":")[1].strip() for line in cpuinfo.splitlines() if "model name" in line]
    facts = {
        "date": datetime.date.today().isoformat(),
        "cpu": f"{models[0] if models else platform.machine()} x {len(models)}",
        "isa": dspark_ext.build_info()["cpu"]["active"],
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "compiler": dspark_ext.build_info()["compiler"],
        "commit": first_line("git", "describe", "--always", "--dirty"),
        "load": float(pathlib.Path("/proc/loadavg").read_text().split()[0]),
    }
    if device != "cpu":
        facts["gpu"] = torch.cuda.get_device_name()
    if bandwidth is not None:
        facts["copy_gb_per_s"] = round(bandwidth / 1e9, 2)
    return {**facts, **(peaks or {})}


def markdown(rows: list[dict]) -> str:
    """The results as one table."""
    lines = [
        "| case | median us | p10 - p90 | processor us | GB/s | % of peak | moved/floor "
        "| extra MiB | baseline | its median us | its MiB | times faster | by processor time |",
        "|---" * 13 + "|",
    ]
    for row in rows:
        lines.append(
            f"| {row['case']} | {microseconds(row['median_us'])} "
            f"| {microseconds(row['p10_us'])} - {microseconds(row['p90_us'])} "
            f"| {microseconds(row['cpu_us'])} "
            f"| {number(row['gb_per_s'])} | {number(row['percent_of_peak'], 0)} "
            f"| {number(row['moved_over_floor'], 2)} | {number(row['extra_mib'])} "
            f"| {row['baseline']} | {microseconds(row.get('baseline_median_us'))} "
            f"| {number(row.get('baseline_extra_mib'))} | {number(row.get('speedup'), 1)} "
            f"| {number(row.get('cpu_speedup'), 1)} |"
        )
    return "\n".join(lines)


# ---- command line -------------------------------------------------------------------------------


def arguments(description: str) -> argparse.ArgumentParser:
    """What all benchmark files take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--repeats", type=int, default=9, help="timed runs of each case")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's choice)")
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="auto")
    parser.add_argument("--grow", default="", help="dimensions to grow, e.g. B,K,V, instead")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--markdown", type=pathlib.Path, help="write header and tables")
    parser.add_argument("--json", type=pathlib.Path, help="write header and rows")
    return parser


def devices_of(wanted: str) -> list[str]:
    """auto: the CPU, then a GPU where there is one that this build serves."""
    served = torch.cuda.is_available() and dspark_ext.capabilities("cuda")["available"]
    if wanted == "cuda" and not served:
        raise SystemExit("bench: --device cuda: no GPU that this build has kernels for")
    return (["cpu", "cuda"] if served else ["cpu"]) if wanted == "auto" else [wanted]


def main(description: str, make_cases: Callable[..., list[Case]], growths: dict | None = None):
    """Command line of a benchmark file: measure, print the table, write files if asked.

    make_cases: gives the cases; called with `quick=True` for tiny ones, if it knows that.
    growths: growth.Growth by dimension, for --grow.
    """
    options = arguments(description).parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.quick and "quick" in inspect.signature(make_cases).parameters:
        make_cases = functools.partial(make_cases, quick=True)
    for device in devices_of(options.device):
        run(description, make_cases, growths or {}, options, device)


def run(description: str, make_cases, growths: dict, options, device: str) -> None:
    """What `main` does on one device; files for a GPU have `_cuda` in their names."""
    facts = header(device=device, peaks=peaks.measure(device, 64 if options.quick else 1))
    facts_line = ", ".join(f"{key}: {value}" for key, value in facts.items())
    print(facts_line, flush=True)
    rows, curves, parts = [], [], []
    if options.grow:
        curves = growth.measure_all(growths, options.grow.split(","), options, device)
        parts.append(growth.markdown(curves))
    else:
        for case in make_cases():
            if options.only in case.name and device in case.devices:
                print(f"measuring {case.name} ...", flush=True)
                rows.append(measure(case, facts, options.repeats, device))
        parts.append(markdown(rows))
    print("\n".join(parts))
    suffix = "" if device == "cpu" else f"_{device}"
    if options.markdown:
        path = options.markdown.with_stem(options.markdown.stem + suffix)
        path.write_text("\n\n".join([description, facts_line, *parts]) + "\n")
    if options.json:
        path = options.json.with_stem(options.json.stem + suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        result = {"title": description, "facts": facts, "rows": rows, "growth": curves}
        path.write_text(json.dumps(result, indent=1) + "\n")
