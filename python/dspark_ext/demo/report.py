"""Tables, plots and the file of numbers."""

import json
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from ..engine import Generation
from .experiments import ALL_DRAFTS, BatchRun, LawCheck
from .race import Race

BINS = 10


def show_races(console: Console, races: list[Race]) -> list[dict]:
    table = Table(
        *("answer", "T", "tokens", "rows", "emitted", "plain", "DSpark", "gain", "output"),
        caption="rows, emitted: per target pass with DSpark; plain, DSpark: tokens per second",
    )
    rows = []
    for race in races:
        plain, dspark = race.plain.stats, race.dspark.stats
        verdict = {True: "[green]identical[/]", False: "[red]DIFFERS[/]", None: "sampled"}
        table.add_row(
            race.kind,
            f"{race.temperature:g}",
            str(dspark.emitted),
            f"{dspark.verified_rows / dspark.passes:.2f}",
            f"{dspark.tokens_per_pass:.2f}",
            f"{plain.tokens_per_second:.1f}",
            f"{dspark.tokens_per_second:.1f}",
            f"[bold]{race.speedup:.2f}x[/]",
            verdict[race.identical],
        )
        rows.append(
            {
                "kind": race.kind,
                "temperature": race.temperature,
                "speedup": race.speedup,
                "identical": race.identical,
                "plain": _summary(race.plain),
                "dspark": _summary(race.dspark),
            }
        )
    console.print(table)
    for temperature in dict.fromkeys(race.temperature for race in races):
        _show_mean(console, [race for race in races if race.temperature == temperature])
    _show_times(console, races)
    return rows


def _show_mean(console: Console, races: list[Race]) -> None:
    """Tokens and seconds of several prompts added up, not a mean of ratios."""
    rate = {
        name: sum(getattr(race, name).stats.emitted for race in races)
        / sum(getattr(race, name).stats.seconds for race in races)
        for name in ("plain", "dspark")
    }
    passes = sum(race.dspark.stats.passes for race in races)
    emitted = sum(race.dspark.stats.emitted for race in races)
    console.print(
        f"T={races[0].temperature:g}: {rate['plain']:.1f} tokens/s plain, {rate['dspark']:.1f} "
        f"with DSpark: [bold]{rate['dspark'] / rate['plain']:.2f}x[/], "
        f"{emitted / passes:.2f} tokens per target pass."
    )


def _show_times(console: Console, races: list[Race]) -> None:
    table = Table("ms per pass", "target", "draft", "accept", "other", "all")
    for name in ("plain", "dspark"):
        stats = [getattr(race, name).stats for race in races]
        steps = sum(each.steps for each in stats)
        parts = ("target", "draft", "sample", "other")
        seconds = [sum(getattr(each, f"{part}_seconds") for each in stats) for part in parts]
        cells = [f"{1e3 * value / steps:.2f}" for value in [*seconds, sum(seconds)]]
        table.add_row({"plain": "plain", "dspark": "DSpark"}[name], *cells)
    console.print(table)


def show_acceptance(console: Console, run: BatchRun) -> dict:
    """Share of the verified drafts that were accepted, by position, greedy and sampled apart."""
    found = {}
    for temperature, events in run.events.items():
        count = max(len(event.confidences) for event in events)
        verified = [sum(k < len(event.confidences) for event in events) for k in range(count)]
        accepted = [sum(k < event.num_accepted for event in events) for k in range(count)]
        found[f"{temperature:g}"] = [a / v for a, v in zip(accepted, verified, strict=True)]
    table = Table(ALL_DRAFTS, *(f"x_{k + 1}" for k in range(count)))
    for temperature, rates in found.items():
        table.add_row(f"accepted at T={temperature}", *(f"{rate:.2f}" for rate in rates))
    console.print(table)
    return found


def show_batches(console: Console, runs: dict[str, BatchRun], size: int) -> dict:
    table = Table(f"{size} requests", "tokens/s", "emitted", "rows per step", "ms per step")
    for name, run in runs.items():
        stats = run.generation.stats
        table.add_row(
            name,
            f"{stats.tokens_per_second:.1f}",
            f"{stats.tokens_per_pass:.2f}",
            f"{(stats.verified_rows + stats.prefill_rows) / stats.steps:.1f}",
            f"{1e3 * stats.seconds / stats.steps:.1f}",
        )
    console.print(table)
    return {name: _summary(run.generation) for name, run in runs.items()}


def show_law(console: Console, law: LawCheck) -> dict:
    console.print(
        f"{law.runs} first tokens against the target's exact law, chi-square over {law.cells} "
        f"cells: with verification p = [bold]{law.verified:.3g}[/], the drafter's proposals "
        f"unverified (negative control) p = [bold]{law.drafted:.3g}[/]."
    )
    return vars(law)


def write(console: Console, out: Path, numbers: dict) -> None:
    """The plots as PNG and all numbers as JSON, paths printed."""
    out.mkdir(parents=True, exist_ok=True)
    _plot_acceptance(out / "acceptance.png", numbers["acceptance"])
    _plot_reliability(out / "reliability.png", numbers["reliability"])
    (out / "numbers.json").write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    for name in ("acceptance.png", "reliability.png", "numbers.json"):
        console.print(f"Wrote {out / name}")


def reliability(run: BatchRun) -> dict:
    """Accepted share of the drafts that were reached, by confidence, greedy and sampled apart.

    Reached: all earlier drafts of the block were accepted, which is what a conditional confidence
    is about. Lists by bin of width 0.1; empty bins are None.
    """
    found = {}
    for temperature, events in run.events.items():
        pairs = [
            (confidence, k < event.num_accepted)
            for event in events
            for k, confidence in enumerate(event.confidences[: event.num_accepted + 1])
        ]
        bins = [[] for _ in range(BINS)]
        for confidence, accepted in pairs:
            bins[min(int(confidence * BINS), BINS - 1)].append((confidence, accepted))
        found[f"{temperature:g}"] = {
            "count": [len(each) for each in bins],
            "confidence": [_mean(confidence for confidence, _ in each) for each in bins],
            "accepted": [_mean(accepted for _, accepted in each) for each in bins],
        }
    return found


def _mean(values) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def _summary(run: Generation) -> dict:
    stats = run.stats
    report = stats.acceptance
    return {
        "tokens": stats.emitted,
        "seconds": stats.seconds,
        "tokens_per_second": stats.tokens_per_second,
        "tokens_per_pass": stats.tokens_per_pass,
        "steps": stats.steps,
        "verified_rows": stats.verified_rows,
        "prefill_rows": stats.prefill_rows,
        "target_seconds": stats.target_seconds,
        "draft_seconds": stats.draft_seconds,
        "accept_seconds": stats.sample_seconds,
        "verified_by_position": report.verified_by_position.tolist(),
        "accepted_by_position": report.accepted_by_position.tolist(),
    }


def _figure():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(5.5, 4), layout="constrained")


def _plot_acceptance(path: Path, acceptance: dict) -> None:
    figure, axes = _figure()
    for temperature, rates in acceptance.items():
        axes.plot(range(1, len(rates) + 1), rates, "o-", label=f"T={temperature}")
    axes.set(xlabel="position in the block", ylabel="drafts accepted", ylim=(0, 1))
    axes.set_xticks(range(1, len(rates) + 1))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


def _plot_reliability(path: Path, found: dict) -> None:
    figure, axes = _figure()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    for temperature, bins in found.items():
        points = [
            (confidence, accepted, count)
            for confidence, accepted, count in zip(
                bins["confidence"], bins["accepted"], bins["count"], strict=True
            )
            if count
        ]
        confidence, accepted, count = zip(*points, strict=True)
        sizes = torch.tensor(count).sqrt().mul(12).tolist()
        axes.plot(confidence, accepted, alpha=0.5)
        axes.scatter(confidence, accepted, s=sizes, label=f"T={temperature}")
    axes.set(xlabel="confidence", ylabel="accepted, of those reached", xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)
