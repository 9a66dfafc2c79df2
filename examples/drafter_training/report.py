"""What a run tells: a progress bar or lines, a log, a summary."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text


class Window:
    """Means of what the steps since the last report gave."""

    def __init__(self, state: dict | None = None):
        self.sums: dict[str, list[float]] = state["sums"] if state else {}
        self.count: int = state["count"] if state else 0

    def state(self) -> dict:
        return {"sums": self.sums, "count": self.count}

    def add(self, parts: dict[str, list[float]]) -> None:
        for name, values in parts.items():
            sums = self.sums.get(name, [0.0] * len(values))
            self.sums[name] = [a + b for a, b in zip(sums, values)]
        self.count += 1

    def means(self) -> dict[str, float | list[float]]:
        """`accept` is a list by position, everything else a number."""
        means = {k: [v / self.count for v in values] for k, values in self.sums.items()}
        return {k: v if k == "accept" else v[0] for k, v in means.items()}


class _Bar(Progress):
    """A bar, and a line of numbers under it, which narrow terminals wrap."""

    numbers = ""

    def get_renderables(self):
        yield self.make_tasks_table(self.tasks)
        yield Text(self.numbers)


class Report:
    """Into `out`/log.jsonl, one line per event, and onto the console."""

    def __init__(self, out: Path, steps: int, console: Console | None = None):
        self.path = out / "log.jsonl"
        _drop_torn_line(self.path)
        self.console = console or Console()
        self.steps = steps
        self.progress = _Bar(
            TextColumn("[bold]step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("[cyan]{task.fields[left]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.progress.add_task("", total=steps, left="")

    def __enter__(self) -> Report:
        self.progress.start()
        return self

    def __exit__(self, *_) -> None:
        self.progress.stop()

    def log(self, event: str, **values) -> None:
        """One line of the log, at once on disk."""
        line = {"event": event, "time": round(time.time(), 1), **rounded(values)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def advance(self, step: int, means: dict, tokens_per_second: float, left: float) -> None:
        """Move the bar."""
        if not self.progress.disable:
            self.progress.numbers = f"{_numbers(means)}  {tokens_per_second:.0f} tokens/s"
            self.progress.update(self.task, completed=step, left=_duration(left))

    def report(self, step: int, values: dict) -> None:
        """A line of the log; on the console, too, where no bar can be drawn."""
        self.log("report", step=step, **values)
        if self.progress.disable:
            self.console.print(
                f"step {step}/{self.steps}  {_numbers(values)}  "
                f"{values['tokens_per_second']:.0f} tokens/s  {_duration(values['seconds_left'])}",
                soft_wrap=True,
            )

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)


def _drop_torn_line(path: Path) -> None:
    """What a kill has left of a line that was being written."""
    if path.exists():
        text = path.read_bytes()
        if not text.endswith(b"\n"):
            path.write_bytes(text[: text.rfind(b"\n") + 1])


def rounded(value):
    """Floats to five places, in whatever they are nested."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def _numbers(values: dict) -> str:
    parts = [
        f"{key} {values[key]:.3f}" for key in ("loss", "ce", "tv", "confidence") if key in values
    ]
    accept = " ".join(f"{value:.2f}".lstrip("0") for value in values.get("accept", []))
    return "  ".join([*parts, f"accept {accept}"])


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} left"
