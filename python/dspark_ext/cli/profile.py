"""Measure what a step costs, by the rows of its target pass and by its requests: the cost table.

The schedules that weigh drafts against their price read it (docs/cost-table.md).
"""

import json
from pathlib import Path

from . import models
from .errors import told_of

FORMS = ("dspark_ext", "sglang_rates", "sglang_additive", "vllm")


def add_arguments(parser) -> None:
    models.add_arguments(parser, max_requests=8)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table as JSON")
    parser.add_argument("--json", action="store_true", help="print the JSON in place of the table")
    parser.add_argument(
        "--form", choices=FORMS, default="dspark_ext", help="of the JSON (default: dspark_ext)"
    )


def run(options) -> int:
    from rich.progress import Progress

    from ..engine import profile_step
    from .screen import consoles

    out, log = consoles()
    served = models.load_with_status(options, verify_all=True)
    engine = served.engine
    with Progress(console=log, transient=True) as bar:
        task = bar.add_task("Timing")

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        table = profile_step(engine.target, engine.drafter, engine.num_drafts, progress=progress)
    with told_of("--form", ValueError):
        form = table.to_dict(options.form)
    if options.out:
        with told_of("--out"):
            table.save(options.out, options.form)
        log.print(f"Wrote {options.out}")
    if options.json:
        print(json.dumps(form, indent=2))
    else:
        _show(out, served, table)
    return 0


def _show(out, served, table) -> None:
    from rich.table import Table

    facts = served.facts
    out.print(
        f"{facts['target']} ({facts['weights']}), drafter {facts['drafter']}, "
        f"{facts['threads']} thread(s), {facts['processor']}"
    )
    passes = Table("rows of a pass", "milliseconds", "a row", box=None, pad_edge=False)
    for rows, seconds in zip(table.rows, table.sample_seconds):
        passes.add_row(f"{rows}", f"{1e3 * seconds:.2f}", f"{1e3 * seconds / rows:.2f}")
    out.print(passes)
    if table.request_rows:
        drafts = Table("requests that draft", "milliseconds", box=None, pad_edge=False)
        for count, seconds in zip(table.request_rows, table.request_sample_seconds):
            drafts.add_row(f"{count}", f"{1e3 * seconds:.2f}")
        out.print()
        out.print(drafts)
    if served.engine.num_drafts:
        out.print()
        out.print(_verdict(table, served.engine.num_drafts))


def _verdict(table, num_drafts: int) -> str:
    """From how many emitted tokens a pass on verifying every draft pays, one request at a time."""
    plain = table.cost(1)
    ratio = table.cost(num_drafts + 1, 1) / plain
    return (
        f"One request: a step that verifies {num_drafts} drafts takes {ratio:.2f} plain steps, so "
        f"it pays from {ratio:.2f} emitted tokens a pass on."
    )
