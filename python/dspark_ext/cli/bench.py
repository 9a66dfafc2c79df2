"""Measure plain decoding against DSpark on the same prompts, for several numbers of requests.

Both run in turns, each several times, and both rates are shown with their ratio, gains and losses
alike. Greedy answers are compared token by token.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from . import models, prompts, sampling
from .errors import UserError, told_of

if TYPE_CHECKING:
    from ..engine import SpeedupReport


def add_arguments(parser) -> None:
    prompts.add_arguments(parser)
    sampling.add_arguments(parser, max_new_tokens=64, seed=0)
    models.add_arguments(parser, max_requests=8)
    parser.add_argument(
        "--concurrency",
        default="1,4,8",
        metavar="LIST",
        help="requests served at once, separated by commas (default: 1,4,8)",
    )
    parser.add_argument(
        "--repeats", type=models.positive, default=3, help="runs of each kind (default: 3)"
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


@dataclasses.dataclass
class Measurement:
    """One number of requests at once: `engine.SpeedupReport`, between which ratios its rounds lie,
    and the share of verified drafts that were accepted (None: there were none)."""

    concurrency: int
    speedup: SpeedupReport
    lowest: float
    highest: float
    acceptance: float | None

    def to_dict(self) -> dict:
        return {**vars(self), "speedup": self.speedup.to_dict()}


def run(options) -> int:
    from .screen import consoles

    sampling.check(options)
    numbers = _concurrency(options.concurrency)
    options.max_requests = max(numbers)
    out, log = consoles()
    asked = prompts.read(options)
    if not asked:
        asked = _held_out_prompts()
        log.print("No prompts were given; using the demo's, which its drafter never saw.")
    served = models.load_with_status(options)
    if served.engine.drafter is None:
        raise UserError("--drafter: there is nothing to measure without a drafter")
    params = sampling.read_all(options, served, asked)
    encoded = prompts.encode(asked, served, options.raw)
    measured = []
    with log.status("Measuring") as status:
        for concurrency in numbers:
            status.update(f"Measuring {concurrency} at once, {len(asked)} prompts")
            measured.append(measure(served.engine, encoded, params, concurrency, options.repeats))
    if options.json:
        rows = [row.to_dict() for row in measured]
        facts = {"prompts": len(asked), "repeats": options.repeats}
        print(json.dumps({"models": served.facts, **facts, "measurements": rows}, indent=2))
    else:
        _show(out, served, measured, options, len(asked))
    return 0


def measure(engine, encoded, params, concurrency: int, repeats: int) -> Measurement:
    """Run everything `repeats` times plainly and with DSpark, in turns."""
    from ..engine import measure_speedup

    limited = _limited(engine, concurrency)
    with told_of("PROMPT", ValueError):
        speedup = measure_speedup(limited, encoded, params, rounds=repeats)
    ratios = [mine / plain for plain, mine in speedup.rounds]
    counted = limited.acceptance.read()
    acceptance = counted.acceptance_rate if counted.drafted else None
    return Measurement(concurrency, speedup, min(ratios), max(ratios), acceptance)


def _limited(engine, concurrency: int):
    """An engine over the same models that serves `concurrency` requests at once."""
    from ..engine import DSparkEngine
    from ..engine.cache import SlotAllocator

    limited = DSparkEngine(
        engine.target,
        engine.drafter,
        dataclasses.replace(engine.config, cost_table=engine.cost_table, cost_table_cache=None),
        tokenizer=engine.tokenizer,
    )
    limited.slots = SlotAllocator(concurrency, (engine.target, engine.drafter))
    return limited


def _concurrency(text: str) -> list[int]:
    try:
        numbers = sorted({models.positive(part) for part in text.split(",")})
    except ValueError:
        raise UserError(
            f"--concurrency: expected whole numbers >= 1 with commas between, got {text!r}"
        ) from None
    return numbers


def _show(out, served, measured: list[Measurement], options, num_prompts: int) -> None:
    from rich.table import Table

    from .screen import number

    facts = served.facts
    out.print(
        f"{facts['target']} ({facts['weights']}), drafter {facts['drafter']}, schedule "
        f"{facts['settings']}, {facts['threads']} thread(s), {facts['processor']}"
    )
    out.print(
        f"{num_prompts} prompts, up to {options.max_new_tokens} tokens each, temperature "
        f"{options.temperature:g}, {options.repeats} runs of each kind in turns"
    )
    table = Table(box=None, pad_edge=False)
    headings = ("at once", "plain", "DSpark", "ratio", "range", "per pass", "accepted", "greedy")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    verdict = {True: "identical", False: "DIFFERS", None: "-"}
    for row in measured:
        speedup = row.speedup
        table.add_row(
            str(row.concurrency),
            f"{speedup.plain_tokens_per_second:.1f}",
            f"{speedup.speculative_tokens_per_second:.1f}",
            f"{speedup.ratio:.2f}x",
            f"{row.lowest:.2f}-{row.highest:.2f}",
            f"{speedup.tokens_per_pass:.2f}",
            number(row.acceptance, ".0%"),
            verdict[speedup.identical],
        )
    out.print(table)
    out.print("plain, DSpark: tokens a second; per pass: tokens a request and target pass.")
    if any(row.highest > 1.3 * row.lowest for row in measured):
        out.print("The ratios of the runs differ a lot: is the machine busy? Try more --repeats.")
    slower = [row.concurrency for row in measured if row.speedup.ratio < 1]
    if slower:
        out.print(
            f"Slower than plain decoding with {', '.join(map(str, slower))} at once: rows cost "
            "more here than accepted drafts bring. See `dspark-ext profile` and --preset."
        )


def _held_out_prompts():
    from ..demo.prompts import HELD_OUT

    return [prompts.Prompt(text=text) for _, text in HELD_OUT[:8]]
