"""A profile of a run, by torch's profiler: a file to look at and a table of the phases."""

from __future__ import annotations

import contextlib
from pathlib import Path

from .errors import UserError, told_of

PREFIX = "dspark."


def add_argument(parser) -> None:
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a profile of the run (for ui.perfetto.dev or chrome://tracing) and show the "
        "time of every phase",
    )


@contextlib.contextmanager
def recorded(path: Path | None, log):
    """Profiles what happens in it, operators and phases, if there is a path to write it to."""
    if path is None:
        yield
        return
    with told_of("--trace"):
        path.open("w").close()
    import torch

    from .. import ranges

    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    were_on = ranges.enabled()
    ranges.enable()
    try:
        with torch.profiler.profile(activities=activities) as profile:
            yield
    finally:
        if not were_on:
            ranges.disable()
    with told_of("--trace", OSError, RuntimeError):
        profile.export_chrome_trace(str(path))
    log.print(phases(profile))
    log.print(f"Wrote {path}")


def phases(profile):
    """Calls and time of every phase, the host's. A step contains those that follow it."""
    from rich.table import Table

    found = [each for each in profile.key_averages() if each.key.startswith(PREFIX)]
    if not found:
        raise UserError("--trace: nothing was profiled")
    table = Table("phase", box=None, header_style="dim")
    for title in ("calls", "ms", "ms a call"):
        table.add_column(title, justify="right")
    for each in sorted(found, key=lambda event: -event.cpu_time_total):
        total = each.cpu_time_total / 1e3
        name = each.key.removeprefix(PREFIX)
        table.add_row(name, str(each.count), f"{total:.1f}", f"{total / each.count:.2f}")
    return table
