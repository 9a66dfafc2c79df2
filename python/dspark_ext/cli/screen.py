"""What goes to the terminal. Answers go to standard output, everything about them to standard
error, so that `> file` keeps answers alone."""

from __future__ import annotations

import contextlib
import math
import time

from rich.console import Console
from rich.live import Live
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


def number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)


class LiveTable:
    """A row for each running or finished request, and a total; redrawn a few times a second.

    console  standard error's; where that is no terminal nothing is shown until the end
    """

    def __init__(self, console: Console, labels: list[str], collector, stats) -> None:
        self._console, self._labels = console, labels
        self._collector, self._stats = collector, stats
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._shown = 0.0
        self._seen: dict[int, tuple[float, float]] = {}

    @contextlib.contextmanager
    def running(self):
        """Show the table while the body runs, and leave the finished one."""
        if not self._console.is_terminal:
            yield self
        else:
            with self._live:
                yield self
        self._console.print(self.table())

    def update(self, request: int) -> None:
        first, _ = self._seen.get(request, (self._stats.seconds, 0.0))
        self._seen[request] = (first, self._stats.seconds)
        now = time.perf_counter()
        if self._console.is_terminal and now - self._shown > REFRESH_SECONDS:
            self._live.update(self.table(SHOWN_ROWS), refresh=True)
            self._shown = now

    def table(self, most: int | None = None) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("request", no_wrap=True, overflow="ellipsis", max_width=32)
        for heading in ("tokens", "per pass", "accepted", "first at", "tokens/s", "ends"):
            table.add_column(heading, justify="right", no_wrap=True)
        rows = list(enumerate(self._collector.requests))
        if most is not None and len(rows) > most:
            rows = [row for row in rows if row[0] in self._seen and not row[1].finish_reason]
            rows = rows[-most:]
        for index, count in rows:
            table.add_row(*self._row(index, count))
        total, stats = self._collector.total(), self._stats
        table.add_row(
            f"{len(self._collector.requests)} requests",
            str(total.tokens),
            _share(total.tokens, total.passes, ".2f"),
            _share(total.accepted, total.verified, ".0%"),
            "",
            number(stats.tokens_per_second, ".1f"),
            style="bold",
        )
        return table

    def _row(self, index: int, count) -> tuple:
        first, last = self._seen.get(index, (math.nan, math.nan))
        spent = last - first
        after_first = count.tokens - ratio_or_zero(count.tokens, count.passes)
        return (
            Text(self._labels[index]),
            str(count.tokens),
            _share(count.tokens, count.passes, ".2f"),
            _share(count.accepted, count.verified, ".0%"),
            number(first, ".2f") + " s",
            number(after_first / spent if spent > 0 else math.nan, ".1f"),
            count.finish_reason or "",
        )


def ratio_or_zero(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def _share(numerator: float, denominator: float, form: str) -> str:
    return number(numerator / denominator if denominator else math.nan, form)
