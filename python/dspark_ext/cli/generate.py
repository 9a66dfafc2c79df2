"""Answer prompts: from arguments, a file or stdin, as text or JSON lines.

Without prompts it answers three built-in ones with and without DSpark and shows what was gained.
"""

import contextlib
import json
import sys

from . import models, plots, prompts, sampling, tracing
from .errors import told_of


def add_arguments(parser) -> None:
    prompts.add_arguments(parser)
    sampling.add_arguments(parser)
    models.add_arguments(parser, max_requests=8)
    parser.add_argument("--plain", action="store_true", help="plain decoding, without drafts")
    parser.add_argument(
        "--compare", action="store_true", help="also decode plainly, and show the speed-up measured"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line per answer")
    parser.add_argument("--report", metavar="FILE", help="write the numbers as JSON")
    plots.add_argument(parser)
    tracing.add_argument(parser)


def run(options) -> int:
    from .collect import report
    from .screen import consoles

    plots.check(options.plot)
    sampling.check(options)
    out, log = consoles()
    asked = prompts.read(options)
    if not asked:
        asked, options.compare, options.max_requests = prompts.built_in(), not options.plain, 1
        log.print("No prompt was given; answering three built-in ones, one after the other.")
    served = models.load_with_status(options)
    plain = options.plain or served.engine.drafter is None
    log.print(_headline(served, plain))
    params = sampling.read_all(options, served, asked)
    encoded = prompts.encode(asked, served, options.raw)
    labels = [prompt.label for prompt in asked]
    with told_of("PROMPT", ValueError):
        stream = served.engine.stream(encoded, params, speculative=not plain)
    # Closed also where it is left early, by a reader that goes or by Ctrl-C: what is not may still
    # be there when the interpreter ends, and torch aborts the process then.
    with contextlib.closing(stream), tracing.recorded(options.trace, log):
        collector = _answer(options, served, (stream, encoded, asked), plain, out, log)
    numbers = report(stream, labels) | {"models": served.facts}
    if options.compare and not plain and not _failed(stream):
        numbers["speedup"] = _compare(served, encoded, params, log)
    if options.report:
        with told_of("--report"), open(options.report, "w", encoding="utf-8") as file:
            json.dump(numbers, file, indent=2)
            file.write("\n")
        log.print(f"Wrote {options.report}")
    if options.plot:
        with told_of("--plot"):
            written = plots.write(options.plot, collector)
        log.print(f"Wrote {', '.join(map(str, written))}")
    failed = _failed(stream)
    if failed:
        log.print(f"{failed} of {len(asked)} answers ended with an error, see above.")
    return int(failed > 0)


def _failed(generation) -> int:
    return sum(output.finish_reason == "error" for output in generation.outputs)


def _headline(served, plain: bool) -> str:
    facts = served.facts
    drafter = "plain decoding" if plain else f"drafter {facts['drafter']}, blocks of"
    return (
        f"{facts['target']}, weights {facts['weights']}; {drafter}"
        f"{'' if plain else ' ' + str(facts['drafts'])}; {facts['threads']} thread(s)"
    )


def _answer(options, served, work, plain: bool, out, log):
    """Run all prompts, showing text (one prompt) or the live table (several) on the way."""
    from .collect import Collector
    from .screen import LiveTable, work_line

    stream, encoded, asked = work
    engine = served.engine
    collector = Collector(len(encoded), 0 if plain else engine.most_drafts)
    if len(encoded) == 1 and not options.json:
        _write_as_it_comes(stream, collector, served, encoded[0], out)
        log.print(_summary(collector, stream))
        log.print(work_line(stream.stats))
        return collector
    table = LiveTable(log, [prompt.label for prompt in asked], collector, stream)
    with table.running():
        for event in stream:
            collector.add(event)
            table.update()
    for prompt, output in zip(asked, stream.outputs, strict=True):
        _print_answer(options, out, prompt, output)
    return collector


def _write_as_it_comes(stream, collector, served, prompt_ids, out) -> None:
    """Accepted drafts in green, where standard output is a terminal."""
    from ..engine.text import TextStream
    from .screen import write

    text = TextStream(served.tokenizer.decode, context=prompt_ids)
    for event in stream:
        collector.add(event)
        for token, accepted in zip(event.token_ids, event.accepted, strict=True):
            piece, _ = text.push([token])
            write(out, piece, "green" if accepted else "")
    write(out, text.finish() + "\n")


def _print_answer(options, out, prompt, output) -> None:
    from rich.text import Text

    from .screen import write

    if options.json:
        answer = {
            "prompt": prompt.given,
            "text": output.text,
            "token_ids": output.token_ids,
            "finish_reason": output.finish_reason,
            "passes": output.passes,
            "drafts_accepted": sum(output.accepted),
            **({"lossy": True} if output.lossy else {}),
        }
        # Not every locale can write every character.
        print(json.dumps(answer, ensure_ascii=sys.stdout.encoding.lower() != "utf-8"))
        return
    out.rule(Text(prompt.label), style="dim", align="left")
    write(out, output.text + "\n")


def _summary(collector, stream) -> str:
    from .collect import ratio
    from .screen import number

    total, stats = collector.total(), stream.stats
    line = f"{total.tokens} tokens in {stats.seconds:.2f} s, {stats.tokens_per_second:.1f}/s"
    if collector.num_drafts:
        line += (
            f"; {number(ratio(total.tokens, total.passes))} tokens a target pass, "
            f"{number(ratio(total.accepted, total.verified), '.0%')} of {total.verified} drafts "
            "accepted"
        )
    return line


def _compare(served, encoded, params, log) -> dict:
    """Plain decoding of the same prompts, and DSpark again, in turns."""
    from ..engine import measure_speedup

    with log.status("Decoding the same prompts plainly and with DSpark, in turns"):
        measured = measure_speedup(served.engine, encoded, params)
    ratios = [mine / plain for plain, mine in measured.rounds]
    log.print(
        f"Measured on these prompts: {measured.plain_tokens_per_second:.1f} tokens/s plainly, "
        f"{measured.speculative_tokens_per_second:.1f} with DSpark: [bold]{measured.ratio:.2f}x[/] "
        f"(median of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f})."
    )
    if measured.identical is not None:
        verdict = "identical to plain decoding" if measured.identical else "[red]NOT identical[/]"
        greedy = sum(each.temperature == 0 for each in params)
        log.print(f"Greedy answers: {verdict} ({greedy} of {len(params)} requests).")
    return measured.to_dict()
