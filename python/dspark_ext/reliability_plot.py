"""Reliability diagrams of a `CalibrationReport`, with matplotlib (an optional package)."""

from collections.abc import Mapping
from pathlib import Path

_COLUMNS = 4


def plot_reliability(reports, path: str | Path | None = None, *, title: str = ""):
    """One panel per draft position: what was observed over what was predicted, by bin.

    On the diagonal, predictions come true as often as they say; below it they are over-confident.
    The area of a point is the number of blocks behind it; the legend gives the ECE.

    Args:
        reports: a `CalibrationReport`, or a mapping of names to reports of one kind and length
            (`{"raw": ..., "calibrated": ...}`), drawn over each other.
        path: image file to write, its format by its suffix; None: none.

    Returns the matplotlib Figure. Raises ImportError where matplotlib is missing, ValueError for
    reports that do not match.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "dspark_ext.plot_reliability: needs matplotlib: pip install 'dspark_ext[plot]'"
        ) from error
    if not isinstance(reports, Mapping):
        reports = {"": reports}
    shapes = {(report.kind, report.ece.shape[0]) for report in reports.values()}
    if len(shapes) != 1:
        raise ValueError(
            "dspark_ext.plot_reliability: reports: expected reports of one kind and one number of "
            f"drafts, got {sorted(shapes)}"
        )
    ((kind, num_drafts),) = shapes
    columns = max(1, min(num_drafts, _COLUMNS))
    lines = max(1, -(-num_drafts // columns))
    figure = Figure(figsize=(3.2 * columns, 3.2 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for k, panel in enumerate(axes):
        if k >= num_drafts:
            panel.set_axis_off()
            continue
        panel.plot([0, 1], [0, 1], color="grey", linewidth=1)
        for name, report in reports.items():
            _draw(panel, name, report, k)
        panel.set(xlim=(0, 1), ylim=(0, 1), title=f"draft {k + 1}", aspect="equal")
        panel.set(xlabel=f"predicted {kind}", ylabel="accepted")
        panel.legend(loc="upper left", fontsize="small")
        panel.grid(alpha=0.3)
    if title:
        figure.suptitle(title)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def _draw(panel, name: str, report, k: int) -> None:
    filled = report.bin_count[k] > 0
    predicted, observed = report.bin_predicted[k][filled], report.bin_observed[k][filled]
    share = report.bin_count[k][filled] / report.num_samples[k].clamp(min=1)
    label = f"{name} ECE {float(report.ece[k]):.3f}".strip()
    (line,) = panel.plot(predicted.tolist(), observed.tolist(), alpha=0.6)
    size = (400.0 * share + 4.0).tolist()
    panel.scatter(
        predicted.tolist(),
        observed.tolist(),
        s=size,
        alpha=0.6,
        color=line.get_color(),
        label=label,
    )
