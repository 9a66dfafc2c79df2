"""Tables and plots of bench_generation.py.

python bench/generation_report.py bench/results/generation.json docs/choosing.md

puts the table of a run into that page.
"""

import json
import pathlib
import sys
from collections.abc import Callable

from generation_profile import PHASES

TITLES = {0.0: "greedy", 0.8: "sampled, temperature 0.8"}
COLORS = {
    "plain": "black",
    "fixed 2": "tab:orange",
    "quality": "tab:red",
    "low_latency": "tab:blue",
    "high_throughput": "tab:green",
}
PARTS_SHOWN = 0.01  # smaller shares are put together


def select(rows: list[dict], **wanted) -> list[dict]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def distinct(rows: list[dict], name: str) -> list:
    return list(dict.fromkeys(row[name] for row in rows))


def matrix(rows: list[dict], cell: Callable[[dict], str]) -> str:
    """Loads down, ways across."""
    ways = distinct(rows, "way")
    lines = [f"| at once | {' | '.join(ways)} |", "|---" * (len(ways) + 1) + "|"]
    for concurrency in distinct(rows, "concurrency"):
        found = {row["way"]: row for row in select(rows, concurrency=concurrency)}
        lines.append(f"| {concurrency} | {' | '.join(cell(found[way]) for way in ways)} |")
    return "\n".join(lines)


def rate(row: dict) -> str:
    number = f"{row['tokens_per_second']:.1f}"
    return number if row["way"] == "plain" else f"{number} ({row['times_plain']:.2f}x)"


def latency(row: dict) -> str:
    return f"{row['latency_p50_ms']:.1f} / {row['latency_p90_ms']:.1f}"


def lengths(row: dict) -> str:
    if row["way"] == "plain":
        return f"{row['tokens_per_pass']:.2f}"
    return f"{row['tokens_per_pass']:.2f} of {1 + row['drafts_per_pass']:.2f}"


def step(row: dict) -> str:
    return f"{row['step_ms']:.1f} ({row['step_p10_ms']:.1f} - {row['step_p90_ms']:.1f})"


def phases(row: dict) -> str:
    shares = [row["phases"].get(name, 0.0) for name in PHASES]
    return " / ".join(f"{100 * share:.0f}" for share in shares)


MATRICES = (
    ("generation", "Tokens per second, prompts included (beside plain decoding)", rate),
    ("generation", "Milliseconds per token after a request's first: median / p90", latency),
    (
        "generation",
        "Tokens emitted per request and pass, of the rows verified for it (its own and drafts)",
        lengths,
    ),
    ("step", "Milliseconds of a step without prompts: median (p10 - p90)", step),
    (
        "generation",
        "Percent of the time in target / draft and its context / sampling / other",
        phases,
    ),
)


def parts_table(row: dict) -> str:
    """Profiled steps of one way and load."""
    lines = ["| phase | part | percent | calls per step |", "|---|---|---|---|"]
    small = 1.0
    for part in row["parts"]:
        if part["share"] < PARTS_SHOWN:
            continue
        small -= part["share"]
        calls = f"{part['calls'] / row['profiled_steps']:.0f}" if part["calls"] else "-"
        percent = f"{100 * part['share']:.1f}"
        lines.append(f"| {part['phase']} | {part['part']} | {percent} | {calls} |")
    lines.append(f"| all | parts below {100 * PARTS_SHOWN:.0f} percent | {100 * small:.1f} | - |")
    return "\n".join(lines)


def markdown(facts: dict, rows: list[dict]) -> str:
    line = ", ".join(f"{k}: {v}" for k, v in facts.items() if k != "cost_table")
    out = [
        "Generation with the engine: plain decoding, two drafts (`fixed 2`), and the presets "
        "`quality` (all drafts), `low_latency` (`early_stop`) and `high_throughput` (`lagged` and "
        "the gate), serving the same requests in turns (`python bench/bench_generation.py`). "
        "Greedy text was compared with plain decoding and found equal, and `quality` gave a "
        "request the same tokens at every load.",
        line,
        f"Seconds are of the {facts['clock']} clock.",
    ]
    for temperature in distinct(rows, "temperature"):
        out.append(f"## {TITLES[temperature].capitalize()}")
        here = select(rows, temperature=temperature)
        for kind, title, cell in MATRICES:
            out += [f"{title}:", matrix(select(here, kind=kind), cell)]
    out.append("## What a step's time goes into")
    for row in rows:
        if "parts" in row:
            out += [f"`{row['way']}`, {row['concurrency']} at once, greedy:", parts_table(row)]
    return "\n\n".join(out) + "\n"


BEGIN, END = "<!-- from bench/results/generation.json -->", "<!-- end of the table -->"


def summary(rows: list[dict]) -> str:
    """One table of whole generations, greedy / sampled: what docs/choosing.md shows."""
    whole = select(rows, kind="generation")
    ways = distinct(whole, "way")[1:]
    heads = ["at once", "plain, tokens/s", *ways, "plain, ms per token", "low_latency, ms"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]

    def cell(load: int, way: str, write: Callable[[dict], str]) -> str:
        return " / ".join(write(row) for row in select(whole, concurrency=load, way=way))

    for load in distinct(whole, "concurrency"):
        cells = [
            str(load),
            cell(load, "plain", lambda row: f"{row['tokens_per_second']:.0f}"),
            *(cell(load, way, lambda row: f"{row['times_plain']:.2f}") for way in ways),
            *(
                cell(load, way, lambda row: f"{row['latency_p50_ms']:.0f}")
                for way in ("plain", "low_latency")
            ),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def update_page(page: pathlib.Path, results: pathlib.Path) -> None:
    """Replaces the table between BEGIN and END."""
    _, *rows = map(json.loads, results.read_text().splitlines())
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{summary(rows)}\n\n{END}{rest.split(END)[1]}")


def plot(facts: dict, rows: list[dict], path: pathlib.Path) -> None:
    """Throughput and latency by load, and the phases of a step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, grid = pyplot.subplots(2, 3, figsize=(15, 8.5), layout="constrained")
    whole = select(rows, kind="generation")
    for line, temperature in zip(grid, distinct(whole, "temperature"), strict=True):
        here = select(whole, temperature=temperature)
        for way in distinct(here, "way"):
            _curves(line, select(here, way=way), way)
        _phases(line[2], here)
        line[0].axhline(1, color="black", linewidth=0.8)
        for axes, title, unit in (
            (line[0], "throughput beside plain decoding", "times plain"),
            (line[1], "time per token, median (p90 dotted)", "ms"),
            (line[2], "what the time goes into", ""),
        ):
            axes.set_title(f"{title}, {TITLES[temperature]}", fontsize=10)
            axes.set_ylabel(unit)
        for axes in line[:2]:
            _by_load(axes, distinct(here, "concurrency"))
        line[1].set_yscale("log")
        for formatted in (line[1].yaxis.set_major_formatter, line[1].yaxis.set_minor_formatter):
            formatted(ticker.FormatStrFormatter("%g"))
    grid[0][1].legend(fontsize=8)
    figure.suptitle(
        f"{facts['pair']}, weights {facts['weights']}, {facts['threads']} thread(s) of "
        f"{facts['cpu']}, {facts['clock']} time, {facts['date']}",
        fontsize=11,
    )
    figure.savefig(path, dpi=110)


def _curves(line, rows: list[dict], way: str) -> None:
    loads = [row["concurrency"] for row in rows]
    style = {"color": COLORS[way], "label": way, "marker": "o", "markersize": 3}
    if way != "plain":
        line[0].plot(loads, [row["times_plain"] for row in rows], **style)
    middle = [row["latency_p50_ms"] for row in rows]
    line[1].plot(loads, middle, **style)
    high = [row["latency_p90_ms"] for row in rows]
    line[1].plot(loads, high, color=COLORS[way], linestyle=":", linewidth=1)


def _by_load(axes, loads: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, [str(load) for load in loads])
    axes.set_xlabel("requests at once")
    axes.grid(alpha=0.3)


def _phases(axes, rows: list[dict]) -> None:
    """Bars of the phases for the least and the greatest load."""
    loads = distinct(rows, "concurrency")
    shown = [
        row
        for load in dict.fromkeys((loads[0], loads[-1]))
        for row in select(rows, concurrency=load)
    ]
    labels = [f"{row['way']}, {row['concurrency']}" for row in shown]
    bottom = [0.0] * len(shown)
    for name, color in zip(PHASES, ("#4c78a8", "#f58518", "#54a24b", "#bab0ac"), strict=True):
        heights = [100 * row["phases"].get(name, 0.0) for row in shown]
        axes.barh(labels, heights, left=bottom, color=color, label=name)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent of the engine's time")
    axes.legend(fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, -0.3))


if __name__ == "__main__":
    update_page(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[1]))
