"""Plots of a run: acceptance by position, verify lengths, reliability of the confidences."""

from __future__ import annotations

from pathlib import Path

from .collect import Collector, ratio, samples
from .errors import UserError

NAMES = ("acceptance", "verify-lengths", "reliability")


def add_argument(parser) -> None:
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="PATH",
        help="write plots: one image file (.png, .svg, .pdf) of all, or a directory of them",
    )


def check(path: Path | None) -> None:
    """Complain about --plot before anything is computed."""
    if path is None:
        return
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("--plot: needs matplotlib: pip install 'dspark_ext[plot]'") from None
    if path.suffix and path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--plot: expected .png, .svg, .pdf or a directory, got {path}")
    if path.suffix and not path.parent.is_dir():
        raise UserError(f"--plot: {path.parent}: no such directory")


def write(path: Path, collector: Collector) -> list[Path]:
    """One file, or a file of each name of `NAMES`. Returns what was written."""
    from matplotlib.figure import Figure

    if not collector.all_blocks():
        raise UserError("--plot: no draft was verified, so there is nothing to draw")
    if path.suffix:
        figure = Figure(figsize=(14, 4.2), layout="constrained")
        for axes, name in zip(figure.subplots(1, 3), NAMES):
            _DRAW[name](axes, collector)
        figure.savefig(path, dpi=130)
        return [path]
    path.mkdir(parents=True, exist_ok=True)
    written = []
    for name in NAMES:
        figure = Figure(figsize=(5.5, 4.2), layout="constrained")
        _DRAW[name](figure.subplots(), collector)
        written.append(path / f"{name}.png")
        figure.savefig(written[-1], dpi=130)
    return written


def _acceptance(axes, collector: Collector) -> None:
    """Of the verified drafts, and of those whose earlier drafts were all accepted."""
    verified, accepted = collector.verified_by_position(), collector.accepted_by_position()
    lengths = [(len(block.confidences), block.accepted) for block in collector.all_blocks()]
    positions = range(1, collector.num_drafts + 1)
    reached = [sum(a >= k and v > k for v, a in lengths) for k in range(collector.num_drafts)]
    for counts, label in ((verified, "of those verified"), (reached, "of those reached")):
        rates = [ratio(a, n) for a, n in zip(accepted, counts)]
        axes.plot(positions, rates, "o-", label=label)
    axes.set(xlabel="position in the block", ylabel="drafts accepted", ylim=(0, 1))
    axes.set_xticks(list(positions))
    axes.set_title("acceptance by position")
    axes.legend()
    axes.grid(alpha=0.3)


def _verify_lengths(axes, collector: Collector) -> None:
    counts = collector.verify_lengths()
    axes.bar(range(len(counts)), counts)
    axes.set(xlabel="drafts verified", ylabel="passes", title="verify lengths")
    axes.set_xticks(range(len(counts)))


def _reliability(axes, collector: Collector) -> None:
    """Predicted and observed survival, all positions together."""
    from ..calibration import calibration_report

    data = samples(collector.all_blocks(), collector.num_drafts)
    outcome = calibration_report(
        data.conf_logits.sigmoid(), data.accepted, verify_lens=data.verify_lens, num_bins=10
    )
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    for k in range(collector.num_drafts):
        filled = outcome.bin_count[k] > 0
        if bool(filled.any()):
            share = outcome.bin_count[k][filled] / outcome.num_samples[k]
            predicted = outcome.bin_predicted[k][filled].tolist()
            observed = outcome.bin_observed[k][filled].tolist()
            (line,) = axes.plot(predicted, observed, alpha=0.4)
            label = f"x_{k + 1}, ECE {float(outcome.ece[k]):.2f}"
            sizes = (300 * share + 4).tolist()
            axes.scatter(predicted, observed, s=sizes, color=line.get_color(), label=label)
    axes.set(xlabel="predicted survival", ylabel="observed", xlim=(0, 1), ylim=(0, 1))
    axes.set_title("reliability")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


_DRAW = {"acceptance": _acceptance, "verify-lengths": _verify_lengths, "reliability": _reliability}
