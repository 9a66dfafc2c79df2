"""What goes to the terminal. Answers go to standard output, everything about them to standard
error, so that `> file` keeps answers alone."""

from __future__ import annotations

import contextlib
import math
import time

from rich.console import Console
from rich.live import Live
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

REFRESH_SECONDS = 0.12
FILE_WIDTH = 110  # of tables where there is no terminal to measure
SHOWN_ROWS = 20  # of a live table


def consoles() -> tuple[Console, Console]:
    """(standard output, standard error)"""
    return _console(stderr=False), _console(stderr=True)


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    return console


def write(console: Console, text: str, style: str = "") -> None:
    """A text as it is. (`print` would expand tabs and read :names: as emoji.)"""
    console.print(Segments([Segment(text, console.get_style(style))]), end="", soft_wrap=True)


def number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)


class LiveTable:
    """A row for each running or finished request, and a total; redrawn a few times a second.

    console     standard error's; where that is no terminal nothing is shown until the end
    generation  the call in progress
    collector   what its events said so far
    """

    def __init__(self, console: Console, labels: list[str], collector, generation) -> None:
        self._console, self._labels = console, labels
        self._collector, self._generation = collector, generation
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._shown = 0.0

    @contextlib.contextmanager
    def running(self):
        """Show the table while the body runs, and leave the finished one."""
        if not self._console.is_terminal:
            yield self
        else:
            with self._live:
                yield self
        self._console.print(self.table())
        self._console.print(work_line(self._generation.stats))

    def update(self) -> None:
        now = time.perf_counter()
        if self._console.is_terminal and now - self._shown > REFRESH_SECONDS:
            self._live.update(self.table(SHOWN_ROWS), refresh=True)
            self._shown = now

    def table(self, most: int | None = None) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("request", no_wrap=True, overflow="ellipsis", max_width=30)
        headings = ("tokens", "per pass", "accepted", "first at", "ms/token", "p90")
        for heading in (*headings, "tokens/s", "ends"):
            table.add_column(heading, justify="right", no_wrap=True)
        rows = list(enumerate(self._collector.requests))
        if most is not None and len(rows) > most:
            rows = [(i, count) for i, count in rows if count.passes and not count.finish_reason]
            rows = rows[-most:]
        for index, count in rows:
            output = self._generation.outputs[index]
            table.add_row(
                Text(self._labels[index]),
                *_counts(count),
                *(("", "", "", "") if output is None else _times_of_request(count, output.stats)),
                count.finish_reason or "",
            )
        stats = self._generation.stats
        table.add_row(
            f"{len(self._labels)} requests",
            *_counts(self._collector.total()),
            *_times(stats, stats.first_token_median, stats.tokens_per_second),
            style="bold",
        )
        return table


def _counts(count) -> tuple[str, str, str]:
    return (
        str(count.tokens),
        _share(count.tokens, count.passes, ".2f"),
        _share(count.accepted, count.verified, ".0%"),
    )


def _times_of_request(count, stats) -> tuple[str, ...]:
    """Its tokens per second are those after its first pass: time in the queue does not count."""
    spent = stats.seconds - stats.first_token_seconds
    rate = (count.tokens - count.first) / spent if spent > 0 else math.nan
    return _times(stats, stats.first_token_seconds, rate)


def _times(stats, first: float, rate: float) -> tuple[str, ...]:
    """When the first token came, milliseconds of those after it (median and 90th percentile), and
    tokens per second."""
    latencies = (stats.token_latency_median, stats.token_latency_p90)
    shown = (number(1e3 * seconds, ".1f") for seconds in latencies)
    return (number(first) + " s", *shown, number(rate, ".1f"))


def work_line(stats) -> str:
    """Where the time went, and what verifying and trimming came to."""
    parts = {
        "target": stats.target_seconds,
        "drafting and scheduling": stats.draft_seconds,
        "acceptance": stats.sample_seconds,
    }
    shares = ", ".join(
        f"{name} {_share(seconds, stats.seconds, '.0%')}" for name, seconds in parts.items()
    )
    line = f"{stats.steps} target passes in {stats.seconds:.2f} s: {shares}"
    if stats.drafted:
        line += f"; {stats.verified_drafts} drafts verified"
        if stats.trimmed_rows:
            line += f", {stats.trimmed_rows} rows saved by trimming"
    return line


def _share(numerator: float, denominator: float, form: str) -> str:
    return number(numerator / denominator if denominator else math.nan, form)
