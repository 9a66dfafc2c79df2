"""Measure plain decoding against DSpark on the same prompts, for several numbers of requests.

Both run in turns, each several times, and both rates are shown with their ratio, gains and losses
alike. Greedy answers are compared token by token.
"""

import dataclasses
import json
import statistics

from . import models, prompts, sampling
from .errors import UserError, told_of


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
    """One number of requests at once. Rates are tokens per second of the engine, medians; `ratio`
    is the median of the ratios of neighbouring runs, between `lowest` and `highest`."""

    concurrency: int
    tokens: int
    plain_tokens_per_second: float
    dspark_tokens_per_second: float
    ratio: float
    lowest: float
    highest: float
    tokens_per_pass: float
    acceptance: float | None
    rows_per_step: float
    greedy_identical: bool | None


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
    with log.status("Loading the models"):
        served = models.load(options)
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
        rows = [dataclasses.asdict(row) for row in measured]
        facts = {"prompts": len(asked), "repeats": options.repeats}
        print(json.dumps({"models": served.facts, **facts, "measurements": rows}, indent=2))
    else:
        _show(out, served, measured, options, len(asked))
    return 0


def measure(engine, encoded, params, concurrency: int, repeats: int) -> Measurement:
    """Run everything `repeats` times plainly and with DSpark, the order changing from turn to
    turn."""
    limited = _limited(engine, concurrency)
    warm = encoded[:concurrency]
    with told_of("PROMPT", ValueError):
        for speculative in (False, True):
            shorter = [dataclasses.replace(each, max_new_tokens=4) for each in params[: len(warm)]]
            limited.generate(warm, shorter, speculative=speculative)
    rates = {False: [], True: []}
    for turn in range(repeats):
        runs = {}
        for speculative in (False, True) if turn % 2 == 0 else (True, False):
            runs[speculative] = limited.generate(encoded, params, speculative=speculative)
            rates[speculative].append(runs[speculative].stats.tokens_per_second)
    ratios = [mine / plain for mine, plain in zip(rates[True], rates[False])]
    stats = runs[True].stats
    greedy = [index for index, each in enumerate(params) if each.temperature == 0]
    same = all(
        runs[True].outputs[index].token_ids == runs[False].outputs[index].token_ids
        for index in greedy
    )
    return Measurement(
        concurrency=concurrency,
        tokens=stats.emitted,
        plain_tokens_per_second=statistics.median(rates[False]),
        dspark_tokens_per_second=statistics.median(rates[True]),
        ratio=statistics.median(ratios),
        lowest=min(ratios),
        highest=max(ratios),
        tokens_per_pass=stats.tokens_per_pass,
        acceptance=stats.acceptance.acceptance_rate if stats.acceptance.drafted else None,
        rows_per_step=(stats.verified_rows + stats.prefill_rows) / stats.steps,
        greedy_identical=same if greedy else None,
    )


def _limited(engine, concurrency: int):
    """An engine over the same models that serves `concurrency` requests at once."""
    from ..engine import DSparkEngine
    from ..engine.cache import SlotAllocator

    limited = DSparkEngine(
        engine.target,
        engine.drafter,
        dataclasses.replace(engine.config, cost_table=engine.cost_table),
        tokenizer=engine.tokenizer,
    )
    limited.slots = SlotAllocator(concurrency)
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
    headings = ("at once", "plain", "DSpark", "ratio", "range", "per pass", "accepted", "rows")
    for heading in (*headings, "greedy"):
        table.add_column(heading, justify="right", no_wrap=True)
    verdict = {True: "identical", False: "DIFFERS", None: "-"}
    for row in measured:
        table.add_row(
            str(row.concurrency),
            f"{row.plain_tokens_per_second:.1f}",
            f"{row.dspark_tokens_per_second:.1f}",
            f"{row.ratio:.2f}x",
            f"{row.lowest:.2f}-{row.highest:.2f}",
            f"{row.tokens_per_pass:.2f}",
            number(row.acceptance, ".0%"),
            f"{row.rows_per_step:.1f}",
            verdict[row.greedy_identical],
        )
    out.print(table)
    out.print("plain, DSpark: tokens a second; per pass: tokens a request and target pass with")
    out.print("DSpark; rows: of its target pass, prompts included.")
    if any(row.highest > 1.3 * row.lowest for row in measured):
        out.print("The ratios of the runs differ a lot: is the machine busy? Try more --repeats.")
    slower = [row.concurrency for row in measured if row.ratio < 1]
    if slower:
        out.print(
            f"Slower than plain decoding with {', '.join(map(str, slower))} at once: rows cost "
            "more here than accepted drafts bring. See `dspark-ext profile` and --preset."
        )


def _held_out_prompts():
    from ..demo.prompts import HELD_OUT

    return [prompts.Prompt(text=text) for _, text in HELD_OUT[:8]]
