"""The pictures of report.py."""

import math
import pathlib

import matplotlib
from report import bandwidth, largest, microseconds, times_faster

matplotlib.use("Agg")
from matplotlib import pyplot, ticker  # noqa: E402

# distinct with every common kind of colour vision, in order of first use
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#666666")
MARKERS = "osD^vP*X"
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def machine(facts: dict) -> str:
    where = facts.get("gpu") or f"{facts['cpu']}, {facts['threads']} thread(s)"
    return f"{where}, {facts['date']}, load {facts['load']:.0f}"


def save(figure, path: pathlib.Path) -> str:
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)
    return path.name


def roofline(results: list[dict], path: pathlib.Path) -> str | None:
    """Achieved Gflop/s over flops per byte of the floor; roofs from the run that measured best."""
    families = [r for r in results if any(row["flops"] for row in r["rows"])]
    if not families:
        return None
    figure, axes = pyplot.subplots(figsize=(9, 5.5))
    intensities, rates = [], []
    for i, result in enumerate(families):
        points = []
        for row in result["rows"]:
            if row["flops"]:
                rate = row["flops"] / microseconds(row, result["facts"]) / 1e3
                points.append((row["flops"] / row["floor_bytes"], rate))
        x, y = zip(*points, strict=True)
        intensities += x
        rates += y
        axes.plot(
            *(x, y, MARKERS[i % len(MARKERS)]),
            color=COLOURS[i % len(COLOURS)],
            label=result["name"],
            markersize=6,
            alpha=0.8,
            markeredgewidth=0,
        )
    facts = max((r["facts"] for r in families), key=bandwidth)
    reach = [min(intensities) / 2, max(intensities) * 3]
    for unit, dash in (("fp32", "-"), ("bf16", "--")):
        peak = max(r["facts"][f"{unit}_gflop_per_s"] for r in families)
        bend = peak / bandwidth(facts)
        x = [reach[0], bend, max(reach[1], bend * 1.5)]
        y = [reach[0] * bandwidth(facts), peak, peak]
        axes.plot(x, y, dash, color="black", linewidth=1.2)
        axes.text(x[-1], peak * 1.08, f"{unit} {peak:,.0f} Gflop/s", ha="right", va="bottom")
    axes.text(
        *(reach[0], reach[0] * bandwidth(facts) * 2.8),
        f"memory {bandwidth(facts):,.0f} GB/s",
        va="bottom",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("flops per byte that has to move")
    axes.set_ylabel("Gflop/s")
    axes.set_title(f"Roofline: {machine(facts)}", loc="left")
    axes.legend(loc="lower right", ncols=2)
    return save(figure, path)


def operators(results: list[dict], path: pathlib.Path) -> str | None:
    """Two panels of bars, the largest case of every operator and variant."""
    bars = []
    for i, result in enumerate(r for r in results if r["rows"]):
        for row in largest(result["rows"]):
            bars.append((i, result, row))
    if not bars:
        return None
    height = 1.2 + 0.21 * len(bars)
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(13, height), sharey=True, gridspec_kw={"wspace": 0.04}
    )
    places = range(len(bars))
    colours = [COLOURS[i % len(COLOURS)] for i, _, _ in bars]
    percents = [row["percent_of_peak"] for _, _, row in bars]
    left.barh(places, percents, color=colours, height=0.72)
    for place, percent in zip(places, percents, strict=True):
        left.text(percent + 1, place, f"{percent:.0f}", va="center", fontsize=7)
    left.axvline(100, color="black", linewidth=0.8)
    left.set_xlim(0, max(110, 1.08 * max(percents)))
    left.set_title("percent of the measured peak", loc="left")
    left.set_yticks(places, [row["case"] for _, _, row in bars], fontsize=7)
    ratios = [times_faster(row, result["facts"]) for _, result, row in bars]
    for place, ratio, colour, (_, _, row) in zip(places, ratios, colours, bars, strict=True):
        if ratio is not None:
            right.barh(place, math.log10(ratio), color=colour, height=0.72)
            text = f" {ratio:.1f} x {row['baseline']} "
            at = max(0.0, math.log10(ratio))
            right.text(at, place, text, va="center", fontsize=7)
    most = max([math.log10(r) for r in ratios if r is not None], default=1)
    least = min([math.log10(r) for r in ratios if r is not None], default=0)
    right.set_xlim(min(-0.1, least - 0.1), most + 0.9)
    ticks = [t for t in range(-1, 4) if least - 0.2 <= t <= most + 0.5]
    right.set_xticks(ticks, [f"{10.0**t:g}" for t in ticks])
    right.axvline(0, color="black", linewidth=0.8)
    right.set_title("times faster (logarithmic), beside what", loc="left")
    for axes in (left, right):
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    facts = results[0]["facts"]
    left.set_ylim(len(bars) - 0.4, -0.6)
    figure.subplots_adjust(top=1 - 0.75 / height)
    start = left.get_position().x0
    title = f"Operators, largest case of each: {machine(facts)}"
    figure.text(start, 1 - 0.25 / height, title, fontsize=11, ha="left", va="center")
    return save(figure, path)


def growth(results: list[dict], path: pathlib.Path) -> str | None:
    """A panel for every dimension of every file."""
    panels = {}
    for result in results:
        for curve in result["growth"]:
            panels.setdefault((result["name"], curve["dimension"]), []).append(curve)
    if not panels:
        return None
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(4.6 * columns, 3.6 * rows), squeeze=False
    )
    for axes, ((name, dimension), curves) in zip(grid.flat, panels.items(), strict=False):
        for i, curve in enumerate(curves):
            colour = COLOURS[i % len(COLOURS)]
            values = curve["values"]
            label = f"{curve['name']}: {curve['exponent']:.2f}, {100 * curve['deviation']:.0f} %"
            axes.plot(values, curve["us"], "o", color=colour, markersize=4, label=label)
            fit = [curve["start_us"] + curve["slope_us"] * v for v in values]
            axes.plot(values, fit, "-", color=colour, linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = curves[0]["values"]
        tilt = 45 if max(ticks) >= 1000 else 0
        axes.set_xticks(ticks, [f"{v:,}" for v in ticks], fontsize=7, rotation=tilt)
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        low, high = axes.get_ylim()
        narrow = high / low < 4
        axes.yaxis.set_major_locator(
            ticker.MaxNLocator(5) if narrow else ticker.LogLocator(subs=(1, 2, 5))
        )
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.tick_params(axis="y", labelsize=7)
        axes.set_xlabel(dimension)
        axes.set_ylabel("us")
        axes.set_title(f"{name.removesuffix('_growth')} over {dimension}", loc="left")
        axes.legend(fontsize=6, loc="upper left")
        axes.set_ylim(low, high * (high / low) ** (0.09 * len(curves)))
    for axes in list(grid.flat)[len(panels) :]:
        axes.remove()
    figure.suptitle(
        "Growth: least time, the line a + b n; behind the name the exponent of the larger half "
        "and how far the worst size is off the line",
        x=0.02,
        ha="left",
        fontsize=9,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    return save(figure, path)


def draw(results: list[dict], folder: pathlib.Path) -> list[str]:
    """Names of the pictures that were written."""
    with pyplot.rc_context(STYLE):
        drawn = [
            roofline(results, folder / "roofline.png"),
            operators(results, folder / "operators.png"),
            growth(results, folder / "growth.png"),
        ]
    return [name for name in drawn if name]
