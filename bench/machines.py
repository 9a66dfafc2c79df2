"""Predicted times on larger machines, from counted bytes, flops and launches.

python bench/machines.py [--markdown bench/results/machines.md]     the tables
python bench/machines.py --check bench/results/*.json               the model on this CPU

PREDICTIONS, not measurements: step_model.py counts the work, data/machines.json has the peaks and
where they come from, `Assumptions` what share of them is reached. An operator takes the longer of
its bytes and its flops, and its launches on top; parts of a step follow one another. Each machine
replays captured graphs. The check uses the same rule with the peaks that benchmarks measured on
this CPU, bare and with the assumed share of the flops, and compares with the times they measured.
"""

import argparse
import dataclasses
import json
import math
import pathlib

import counts
import report
import step_model
from step_model import OURS, Work

DATA = pathlib.Path(__file__).with_name("data")
BATCHES = (1, 8, 64, 256)
MACHINES = ("H200", "B200", "MI300X", "MI355X")


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """Guesses; the counts do not depend on them. What others measured of an MI355X, 7.2 of 8 TB/s
    and 3.5 of 5 Pflop/s (https://github.com/vllm-project/vllm/pull/56488), is a tenth above both
    shares."""

    memory_share: float = 0.8  # of the bandwidth of the data sheet
    compute_share: float = 0.6  # of its flops
    # Of that, what expert products reach by instructions counted in the code for an H200
    # (NOTES.md, warpgroups, between 16 and 64 rows); taken for all machines.
    format_share: dict = dataclasses.field(
        default_factory=lambda: {"bf16": 0.9, "fp8": 0.72, "mxfp4": 0.45}
    )
    collective_us: float = 8.0  # an all-reduce of a few rows over 8 GPUs
    # data/machines.json has launch_us, from the end of a kernel to the work of the next one in a
    # graph: 4.2 on AMD as vLLM says of its small kernels on an MI325X
    # (models/deepseek_v41/amd/ops/swa_decode_meta.py), 2 on NVIDIA a guess


def machine(name: str) -> dict:
    return json.loads((DATA / "machines.json").read_text())[name]


def microseconds(work: Work, peaks: dict, assumed: Assumptions) -> float:
    """Predicted time of one operator."""
    memory = peaks["memory_tb_per_s"] * 1e6 * assumed.memory_share  # bytes per microsecond
    if work.format:
        memory *= assumed.format_share[work.format]
    arithmetic = peaks[f"{work.unit}_tflop_per_s"] * 1e6 * assumed.compute_share
    longer = max(work.bytes / memory, work.flops / arithmetic)
    fixed = work.launches * peaks["launch_us"] + work.collectives * assumed.collective_us
    return longer + fixed


def part_microseconds(parts: list[Work], peaks: dict, assumed: Assumptions) -> float:
    return sum(microseconds(work, peaks, assumed) for work in parts)


def step_microseconds(batch: int, peaks: dict, assumed: Assumptions) -> dict[str, float]:
    """By part of a step, and in all."""
    times = {
        name: part_microseconds(parts, peaks, assumed)
        for name, parts in step_model.step(batch).items()
    }
    times["operators of this package"] = sum(times[name] for name in OURS)
    times["whole step"] = sum(
        value for name, value in times.items() if name != "operators of this package"
    )
    return times


# ---- tables -------------------------------------------------------------------------------------


def number(us: float) -> str:
    return f"{us:,.0f}" if us >= 10 else f"{us:.1f}"


def peaks_table() -> str:
    lines = [
        "| machine | TB/s | fp32 Tflop/s | bf16 Tflop/s | us a launch | source |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for name, peaks in json.loads((DATA / "machines.json").read_text()).items():
        lines.append(
            f"| {name} | {peaks['memory_tb_per_s']} | {peaks['fp32_tflop_per_s']} "
            f"| {peaks['bf16_tflop_per_s']} | {peaks['launch_us']} | {peaks['source']} |"
        )
    return "\n".join(lines)


def work_table() -> str:
    """Counts of a step, at every B."""
    lines = [
        "| part | " + " | ".join(f"B={b}: MB, Gflop, launches" for b in BATCHES) + " |",
        "|---" * (len(BATCHES) + 1) + "|",
    ]
    steps = {batch: step_model.step(batch) for batch in BATCHES}
    for name in steps[1]:
        cells = []
        for batch in BATCHES:
            works = steps[batch][name]
            cells.append(
                f"{sum(w.bytes for w in works) / 1e6:,.1f}, "
                f"{sum(w.flops for w in works) / 1e9:,.1f}, {sum(w.launches for w in works):.0f}"
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def step_table(name: str, assumed: Assumptions) -> str:
    columns = [step_microseconds(batch, machine(name), assumed) for batch in BATCHES]
    lines = [
        f"| {name}, us | " + " | ".join(f"B={b}" for b in BATCHES) + " |",
        "|---" + "|--:" * len(BATCHES) + "|",
    ]
    for part in columns[0]:
        total = part in ("operators of this package", "whole step")
        label = f"**{part}**" if total else part
        lines.append(f"| {label} | " + " | ".join(number(c[part]) for c in columns) + " |")
    return "\n".join(lines)


def published_table(assumed: Assumptions) -> str:
    lines = [
        "| what | machine | predicted here, us | published by a peer | remark |",
        "|---|---|--:|---|---|",
    ]
    for entry in json.loads((DATA / "published.json").read_text()):
        name, sizes = entry["work"]
        peaks = machine(entry["machine"])
        if name == "step":
            us = step_microseconds(peaks=peaks, assumed=assumed, **sizes)["whole step"]
        else:
            us = microseconds(getattr(step_model, name)(**sizes), peaks, assumed)
        lines.append(
            f"| {entry['what']} | {entry['machine']} | {number(us)} "
            f"| {entry['published']} ({entry['source']}) | {entry['remark']} |"
        )
    return "\n".join(lines)


def document(assumed: Assumptions) -> str:
    shares = ", ".join(f"{name} {share}" for name, share in assumed.format_share.items())
    return "\n\n".join(
        [
            "# Larger machines: predictions",
            "**Predicted, not measured**, by `python bench/machines.py`. An operator takes the "
            "longer of its bytes and its flops, and its launches on top.",
            "## Assumptions",
            f"{assumed.memory_share:.0%} of the bandwidth and {assumed.compute_share:.0%} of the "
            f"flops below; of that bandwidth, expert weights by format: {shares}; "
            f"{assumed.collective_us:g} us for an all-reduce. Captured graphs, no host. The target "
            "has its weights spread evenly over eight GPUs; the drafter runs on each. Left out: "
            "chains of loads within a kernel, all there is to small ones (plan, schedule); tokens "
            "that choose experts unevenly; what stays in the last-level cache.",
            peaks_table(),
            "## Counts",
            " ".join(step_model.__doc__.partition("\n\n")[2].split()).replace(" - the", "\n- the"),
            work_table(),
            "## Steps",
            "All five drafts of B requests are verified.",
            *(step_table(name, assumed) for name in MACHINES),
            "## Beside published figures",
            published_table(assumed),
        ]
    )


# ---- the check on this CPU ----------------------------------------------------------------------


def predicted_on_cpu(row: dict, facts: dict, compute_share: float) -> float:
    """Microseconds by the same rule; a launch is a call. No share of a measured bandwidth."""
    memory = report.bandwidth(facts) * 1e3  # bytes per microsecond
    flops, unit = counts.flops(row["op"], row["sizes"])
    arithmetic = facts[f"{unit}_gflop_per_s"] * 1e3 * compute_share
    return max(row["moved_bytes"] / memory, flops / arithmetic) + facts["call_us"]


def check_rows(results: list[dict], assumed: Assumptions) -> list[dict]:
    """Predicted and measured times of every row of a run with one thread; `ratio` is the first over
    the second, `shared` the same with the share of the flops."""
    rows = []
    for result in results:
        facts = result["facts"]
        for row in result["rows"]:
            if facts["threads"] != 1 or row["device"] != "cpu":
                continue
            bare = predicted_on_cpu(row, facts, 1.0)
            shared = predicted_on_cpu(row, facts, assumed.compute_share)
            measured = row["cpu_us"]
            rows.append({"case": row["case"], "op": row["op"], "predicted": bare})
            rows[-1] |= {"measured": measured, "ratio": bare / measured}
            rows[-1] |= {"shared": shared / measured}
    return rows


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def check_table(rows: list[dict]) -> str:
    lines = [
        "| operator | cases | predicted / measured, mean | least | most | with shares, mean |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    by_op = {}
    for row in rows:
        by_op.setdefault(row["op"], []).append(row)
    for op, found in by_op.items():
        ratios = [row["ratio"] for row in found]
        shared = geometric_mean([row["shared"] for row in found])
        lines.append(
            f"| {op} | {len(found)} | {geometric_mean(ratios):.2f} | {min(ratios):.2f} "
            f"| {max(ratios):.2f} | {shared:.2f} |"
        )
    lines += ["", "| case | predicted us | measured us | predicted / measured | with shares |"]
    lines.append("|---|--:|--:|--:|--:|")
    for row in rows:
        lines.append(
            f"| {row['case']} | {number(row['predicted'])} | {number(row['measured'])} "
            f"| {row['ratio']:.2f} | {row['shared']:.2f} |"
        )
    return "\n".join(lines)


def check_document(results: list[dict], assumed: Assumptions) -> str:
    return "\n\n".join(
        [
            "# The model on this CPU",
            "By `python bench/machines.py --check`. Predicted by the rule of that file from the "
            "peaks that each benchmark measured in its own run, one thread; measured: processor "
            f"time. With shares: {assumed.compute_share:.0%} of the flops, as assumed for larger "
            "machines. Below 1 an operator is slower than the model. Means are geometric.",
            check_table(check_rows(results, assumed)),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", type=pathlib.Path, nargs="+", help="JSON of benchmarks")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the tables")
    options = parser.parse_args()
    if options.check:
        results, _ = report.load(options.check)
        text = check_document(results, Assumptions())
    else:
        text = document(Assumptions())
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")


if __name__ == "__main__":
    main()
