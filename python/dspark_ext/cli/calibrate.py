"""Fit the confidences of the drafter to your own prompts (STS) and write a calibration.

Answers the prompts with every draft verified, compares confidences with what was accepted, fits one
temperature per position on a part of the requests and judges it on the rest (docs/calibration.md).
"""

import contextlib
import hashlib
import math
import random
from pathlib import Path

from . import models, prompts, sampling
from .errors import UserError, told_of


def add_arguments(parser) -> None:
    prompts.add_arguments(parser)
    sampling.add_arguments(parser, temperature=0.8, seed=0)
    models.add_arguments(parser, max_requests=8)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("calibration.json"),
        metavar="FILE",
        help="default: %(default)s",
    )
    parser.add_argument("--objective", choices=("ece", "log_loss"), default="ece")
    parser.add_argument(
        "--held-out",
        type=float,
        default=0.25,
        metavar="SHARE",
        help="of the requests, for judging the fit (default: 0.25)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="reliability diagram, an image")


def run(options) -> int:
    from ..calibration import fit_calibration
    from .collect import samples
    from .screen import consoles

    if not 0 <= options.held_out < 1:
        raise UserError(f"--held-out: expected a share in [0, 1), got {options.held_out}")
    if options.calibration:
        raise UserError("--calibration: a fit starts from confidences as the drafter gives them")
    sampling.check(options)
    out, log = consoles()
    asked = prompts.read(options)
    dataset = _dataset(options)
    if not asked:
        asked, dataset = _held_out_prompts(), "the demo's held-out prompts"
        log.print("No prompts were given; using the demo's. A calibration is good for prompts like")
        log.print("those it was fitted on: give your own with --file.")
    served = models.load_with_status(options, verify_all=True)
    if served.engine.drafter is None:
        raise UserError("--drafter: a calibration needs a drafter with confidences")
    collector = _collect(options, served, asked, log)
    fitted, judged = _split(collector, options.held_out)
    num_drafts = collector.num_drafts
    if not fitted:
        raise UserError("PROMPT: no draft was verified; give more prompts or more tokens")
    data = samples(fitted, num_drafts)
    calibration = fit_calibration(
        data.conf_logits,
        data.accepted,
        verify_lens=data.verify_lens,
        dataset=dataset,
        conditions=_conditions(options, served),
        objective=options.objective,
    )
    with told_of("--out"):
        calibration.save(options.out)
    _show(out, calibration, judged, num_drafts)
    if options.plot:
        _plot(options.plot, calibration, judged or fitted, num_drafts)
        log.print(f"Wrote {options.plot}")
    log.print(f"Wrote {options.out}; use it with --calibration {options.out}")
    return 0


def _collect(options, served, asked, log):
    from .collect import Collector

    params = sampling.read_all(options, served, asked)
    encoded = prompts.encode(asked, served, options.raw)
    collector = Collector(len(asked), served.engine.num_drafts)
    with told_of("PROMPT", ValueError):
        stream = served.engine.stream(encoded, params)
    with contextlib.closing(stream), log.status("Answering the prompts") as status:
        for event in stream:
            collector.add(event)
            finished = sum(count.finish_reason is not None for count in collector.requests)
            status.update(
                f"Answering the prompts: {finished} of {len(asked)}, {stream.stats.emitted} tokens"
            )
    return collector


def _split(collector, share: float):
    """Blocks to fit on and blocks to judge by, from different requests."""
    order = list(range(len(collector.blocks)))
    random.Random(0).shuffle(order)
    held = min(math.ceil(share * len(order)), len(order) - 1)
    judged = [block for index in order[:held] for block in collector.blocks[index]]
    return [block for index in order[held:] for block in collector.blocks[index]], judged


def _reports(calibration, blocks, num_drafts: int) -> dict:
    """name -> `CalibrationReport`, without and with the calibration."""
    from ..calibration import calibration_report
    from .collect import samples

    data = samples(blocks, num_drafts)
    return {
        name: calibration_report(confidence, data.accepted, verify_lens=data.verify_lens)
        for name, confidence in (
            ("raw", data.conf_logits.sigmoid()),
            ("calibrated", calibration.apply(data.conf_logits)),
        )
    }


def _show(out, calibration, judged, num_drafts: int) -> None:
    from rich.table import Table

    from .screen import number

    table = Table(box=None, pad_edge=False, title_justify="left")
    headings = ("draft", "temperature", "ECE fitted", "after", "ECE held out", "after", "blocks")
    for heading in headings:
        table.add_column(heading, justify="right")
    held = _reports(calibration, judged, num_drafts) if judged else {}
    for k, temperature in enumerate(calibration.temperatures):
        row = [f"x_{k + 1}", f"{temperature:.2f}"]
        row += [number(e[k], ".3f") for e in (calibration.ece_before, calibration.ece_after)]
        row += [number(float(report.ece[k]), ".3f") for report in held.values()] or ["-", "-"]
        row += [str(int(held["raw"].num_samples[k])) if held else "0"]
        table.add_row(*row)
    out.print(table)
    out.print(f"Fitted on {calibration.num_samples} blocks, judged on {len(judged)} held-out ones.")
    if len(judged) < 100:
        out.print("Too few to trust the held-out figures: give more prompts or --max-new-tokens.")


def _plot(path: Path, calibration, blocks, num_drafts: int) -> None:
    from ..calibration import plot_reliability

    with told_of("--plot", ImportError, OSError, ValueError):
        plot_reliability(_reports(calibration, blocks, num_drafts), path)


def _conditions(options, served) -> dict:
    names = ("temperature", "top_k", "top_p", "min_p")
    return {name: getattr(options, name) for name in names} | {
        "target": served.facts["target"],
        "drafter": served.facts["drafter"],
        "weights": served.facts["weights"],
        "rule": served.engine.config.rejection_sample_method,
        "draft_sample_method": served.engine.config.draft_sample_method,
    }


def _dataset(options) -> str:
    """Files by name and digest; prompts of the command line by their digest."""
    parts = []
    for path in options.file:
        with told_of("--file"):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        parts.append(f"{path.name} (sha256 {digest})")
    if options.prompts:
        digest = hashlib.sha256("\n".join(options.prompts).encode()).hexdigest()[:12]
        parts.append(f"{len(options.prompts)} prompts of the command line (sha256 {digest})")
    return ", ".join(parts)


def _held_out_prompts():
    from ..demo.prompts import HELD_OUT

    return [prompts.Prompt(text=text) for _, text in HELD_OUT]
