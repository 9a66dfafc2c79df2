"""Markdown and pictures from the JSON files of benchmarks.

python bench/report.py bench/results/*.json --out bench/results/report

Writes report.md, and beside it roofline.png, operators.png and growth.png (matplotlib). Files that
other programs wrote are passed over by name. Figures of a run with one thread on a CPU are
processor times, of any other run times by the clock.
"""

import argparse
import json
import pathlib
import re

import timing

PICTURES = {
    "roofline.png": "Arithmetic against bytes, with the peaks that were measured in the same run",
    "operators.png": "Percent of peak, and times faster than what it is measured beside",
    "growth.png": "Time over a dimension, with the fitted line",
}


def load(paths) -> tuple[list[dict], list[str]]:
    """(results of the harness, names of other files)."""
    results, others = [], []
    for path in sorted(paths):
        try:
            found = json.loads(path.read_text())
        except json.JSONDecodeError:  # lines of JSON
            found = None
        if isinstance(found, dict) and {"facts", "rows", "growth"} <= found.keys():
            results.append({**found, "name": path.stem})
        else:
            others.append(path.name)
    return results, others


def microseconds(row: dict, facts: dict, key: str = "") -> float:
    """The figure of a row: see the head of this file."""
    processor = row["device"] == "cpu" and facts["threads"] == 1
    return row[key + ("cpu_us" if processor else "median_us")]


def times_faster(row: dict, facts: dict) -> float | None:
    if "baseline_median_us" not in row:
        return None
    return microseconds(row, facts, "baseline_") / microseconds(row, facts)


def without_sizes(name: str) -> str:
    """A case's name without its sizes: what is the same operator in the same variant."""
    return " ".join(re.sub(r"\b\w+=[\d.]+", "", name).split())


def largest(rows: list[dict]) -> list[dict]:
    """Of each operator and variant the case that moves most, in the order of the file."""
    best = {}
    for row in rows:
        key = without_sizes(row["case"])
        if key not in best or row["floor_bytes"] > best[key]["floor_bytes"]:
            best[key] = row
    return list(best.values())


def bandwidth(facts: dict) -> float:
    return max(facts["copy_gb_per_s"], facts["read_gb_per_s"])


# ---- Markdown -----------------------------------------------------------------------------------


def facts_line(facts: dict) -> str:
    return ", ".join(f"{key}: {value}" for key, value in facts.items())


def growth_table(results: list[dict]) -> str:
    lines = [
        "| operator | over | sizes | exponent | start us | us per unit | off the line |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for result in results:
        for curve in result["growth"]:
            values = curve["values"]
            lines.append(
                f"| {curve['name']} | {curve['dimension']} | {values[0]} .. {values[-1]} "
                f"| {curve['exponent']:.2f} | {timing.microseconds(curve['start_us'])} "
                f"| {curve['slope_us']:.3g} | {100 * curve['deviation']:.0f} % |"
            )
    return "\n".join(lines)


def table(result: dict) -> str:
    facts = result["facts"]
    lines = [
        "| case | us | floor GB/s | % of peak | moved/floor | beside | its us | times faster |",
        "|---|--:|--:|--:|--:|---|--:|--:|",
    ]
    for row in result["rows"]:
        us, other = microseconds(row, facts), row.get("baseline_median_us")
        other = None if other is None else microseconds(row, facts, "baseline_")
        ratio = times_faster(row, facts)
        lines.append(
            f"| {row['case']} | {timing.microseconds(us)} "
            f"| {row['floor_bytes'] / us / 1e3:,.1f} | {row['percent_of_peak']:.0f} "
            f"| {row['moved_over_floor']:.2f} | {row['baseline']} "
            f"| {timing.microseconds(other)} | {'-' if ratio is None else f'{ratio:.1f}'} |"
        )
    return "\n".join(lines)


def markdown(results: list[dict], others: list[str], pictures: list[str]) -> str:
    parts = [
        "# Benchmarks",
        "Written by `bench/report.py`. Figures of a run with one thread on a CPU are processor "
        "times, of any other run times by the clock; [NOTES](../../NOTES.md) says how to read "
        "them.",
    ]
    for name in pictures:
        parts.append(f"![{PICTURES[name]}]({name})")
    if any(result["growth"] for result in results):
        parts += ["## Growth", growth_table(results)]
    for result in results:
        if result["rows"]:
            parts += [f"## {result['name']}", result["title"], facts_line(result["facts"])]
            parts.append(table(result))
    if others:
        parts.append("Passed over: " + ", ".join(others) + ".")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=pathlib.Path, nargs="+", help="JSON files")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder")
    options = parser.parse_args()
    results, others = load(options.results)
    if not results:
        raise SystemExit("report: no file that the harness wrote")
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        import report_plots
    except ImportError as error:
        print(f"no pictures: {error}")
        pictures = []
    else:
        pictures = report_plots.draw(results, options.out)
    path = options.out / "report.md"
    path.write_text(markdown(results, others, pictures))
    print(path)


if __name__ == "__main__":
    main()
