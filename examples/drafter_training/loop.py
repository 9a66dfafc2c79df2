"""A training run: steps, reports, evaluations, checkpoints, until its schedule or its time ends."""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from . import checkpoints
from .evaluation import evaluate
from .interrupt import Interrupt
from .loss import backward
from .optimizers import Optimizers
from .report import Report, Window, rounded
from .samples import Samples, check_samples
from .settings import Settings, SettingsError
from .trainees import Trainee

CHECKPOINT = "checkpoint.safetensors"


class DivergedError(RuntimeError):
    """Weights or a loss that are no numbers any more."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When a run does what, none of which changes its weights.

    minutes             it ends after so many, whatever it has reached; None: with its schedule
    checkpoint_minutes  between checkpoints; 0: after every step
    report_every        steps between lines of the log
    evaluate_every      steps between evaluations; 0: at the end only
    evaluate_stride     anchors and rows left out of those between; see `evaluate`
    """

    minutes: float | None = None
    checkpoint_minutes: float = 10.0
    report_every: int = 50
    evaluate_every: int = 0
    evaluate_stride: int = 4

    def __post_init__(self) -> None:
        least = {"minutes": 0, "checkpoint_minutes": 0, "report_every": 1, "evaluate_every": 0,
                 "evaluate_stride": 1}  # fmt: skip
        findings = [
            f"{name}: expected at least {low}, got {getattr(self, name)!r}"
            for name, low in least.items()
            if getattr(self, name) is not None and not getattr(self, name) >= low
        ]
        if findings:
            raise SettingsError("training pace: " + "; ".join(findings))


class Run:
    """Everything that changes from step to step."""

    def __init__(self, trainee: Trainee, samples: Samples, settings: Settings):
        check_samples(samples, trainee)
        self.trainee, self.samples, self.settings = trainee, samples, settings
        self.average = trainee.twin()
        self.optimizers = Optimizers(trainee, settings.optimizer)
        weight = trainee.vocab_weight.detach()
        self.vocab_weight = weight.bfloat16() if settings.precision == "bf16" else weight
        self.step_count = self.num_anchors = self.num_tokens = 0
        self.seconds = 0.0
        self.window = Window()

    def step(self) -> None:
        """One update of the weights and of their average."""
        begun, settings = time.perf_counter(), self.settings
        batch = self.samples.batch(self.step_count, settings, self.trainee.num_drafts)
        parts = backward(self.trainee, batch, self.vocab_weight, settings, self.step_count)
        if not math.isfinite(parts["loss"][0]):
            raise DivergedError(f"step {self.step_count + 1}: the loss is {parts['loss'][0]}")
        self.optimizers.step(settings.learning_rate_at(self.step_count))
        self.step_count += 1
        keep = min(settings.average_decay, self.step_count / (self.step_count + 10))
        with torch.no_grad():
            means, values = self.average.parameters(), self.trainee.parameters()
            for name, mean in means.items():
                mean.lerp_(values[name], 1 - keep)
        self.window.add(parts)
        self.num_anchors += batch.anchor_positions.numel()
        self.num_tokens += int(batch.valid.sum())
        self.seconds += time.perf_counter() - begun

    def identity(self) -> dict:
        """What a checkpoint and the run that continues it must agree on."""
        config = self.trainee.head.config
        values = config.to_dict() if hasattr(config, "to_dict") else json.loads(config.to_json())
        return {
            "flavour": self.trainee.flavour,
            "settings": self.settings.to_dict(),
            "config": values,
            "samples": self.samples.fingerprint(),
        }

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        tensors = {f"head.{k}": v for k, v in self.trainee.parameters().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.parameters().items()}
        tensors |= self.optimizers.state()
        if self.trainee.head.d2t is not None:
            tensors["d2t"] = self.trainee.head.d2t
        return tensors

    def save(self, path: Path) -> None:
        """Raises DivergedError, and leaves what is there, for weights that are not finite."""
        tensors = self.tensors()
        for name, value in tensors.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise DivergedError(
                    f"step {self.step_count}: {name} has numbers that are not finite"
                )
        state = {
            **self.identity(), "step": self.step_count, "anchors": self.num_anchors,
            "tokens": self.num_tokens, "seconds": self.seconds, "window": self.window.state(),
        }  # fmt: skip
        checkpoints.write(path, tensors, state)

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """Stand where `save` was called. Raises ResumeError."""
        tensors, state = checkpoints.read(path)
        checkpoints.check_same(path, state, self.identity())
        checkpoints.check_whole(path, tensors, state, self.tensors())
        d2t = self.trainee.head.d2t
        if d2t is not None and not torch.equal(d2t, tensors["d2t"]):
            raise checkpoints.ResumeError(f"resume: {path}: another draft vocabulary")
        for part, trainee in (("head", self.trainee), ("average", self.average)):
            for name, parameter in trainee.parameters().items():
                parameter.copy_(tensors[f"{part}.{name}"])
        self.optimizers.load(tensors)
        self.step_count, self.seconds = state["step"], state["seconds"]
        self.num_anchors, self.num_tokens = state["anchors"], state["tokens"]
        self.window = Window(state["window"])


def train(
    trainee: Trainee,
    samples: Samples,
    held_out: Samples,
    out: Path,
    settings: Settings,
    pace: Pace | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> dict:
    """Runs until the schedule ends, or the time, or a first interrupt; returns the summary.

    Into `out` go the averaged weights as a drafter, log.jsonl, summary.json and the checkpoint, from
    which `resume` continues. Raises ResumeError if there is none, if there is one and `resume` is not
    set, or if it belongs to other settings; DivergedError if the weights leave the numbers: the last
    checkpoint and the last drafter then stay.
    """
    pace = pace or Pace()
    check_samples(held_out, trainee)
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / CHECKPOINT
    run = Run(trainee, samples, settings)
    if resume:
        run.load(checkpoint)
    elif checkpoint.exists():
        raise checkpoints.ResumeError(
            f"{out} holds a run already: continue it with --resume, or name another folder"
        )
    started = saved = time.monotonic()
    report = Report(out, settings.steps, console)
    report.log("start", step=run.step_count, minutes=pace.minutes, **run.identity())
    with Interrupt() as interrupt, report, _telling_of_the_end(run, report):
        while run.step_count < settings.steps and not interrupt.asked:
            if pace.minutes is not None and time.monotonic() - started >= pace.minutes * 60:
                break
            run.step()
            _tell(run, report, pace)
            if pace.evaluate_every and run.step_count % pace.evaluate_every == 0:
                values = evaluate(
                    run.average, held_out, pace.evaluate_stride, precision=settings.precision
                )
                report.log("evaluation", step=run.step_count, **values)
                report.say(f"step {run.step_count}: held out {values}")
            if time.monotonic() - saved >= pace.checkpoint_minutes * 60:
                run.save(checkpoint)
                saved = time.monotonic()
                report.log("checkpoint", step=run.step_count)
        run.save(checkpoint)
    return _finish(run, held_out, out, report)


@contextlib.contextmanager
def _telling_of_the_end(run: Run, report: Report):
    try:
        yield
    except DivergedError as error:
        report.log("diverged", step=run.step_count, reason=str(error))
        raise DivergedError(
            f"{error}; a lower --learning-rate may help. {CHECKPOINT} is that of an earlier step"
        ) from None


def _tell(run: Run, report: Report, pace: Pace) -> None:
    means = run.window.means()
    rate = run.num_tokens / run.seconds
    left = (run.settings.steps - run.step_count) * run.seconds / run.step_count
    report.advance(run.step_count, means, rate, left)
    if run.step_count % pace.report_every == 0:
        report.report(run.step_count, {
            "learning_rate": run.settings.learning_rate_at(run.step_count - 1), **means,
            "anchors": run.num_anchors, "tokens": run.num_tokens, "tokens_per_second": rate,
            "seconds": run.seconds, "seconds_left": left,
        })  # fmt: skip
        run.window = Window()


def _finish(run: Run, held_out: Samples, out: Path, report: Report) -> dict:
    drafter = run.average.save(out)
    summary = {
        "finished": run.step_count == run.settings.steps,
        "step": run.step_count,
        "steps": run.settings.steps,
        "anchors": run.num_anchors,
        "tokens": run.num_tokens,
        "seconds": run.seconds,
        "tokens_per_second": run.num_tokens / max(run.seconds, 1e-9),
        "parameters": sum(value.numel() for value in run.trainee.parameters().values()),
        "held_out": evaluate(run.average, held_out, precision=run.settings.precision),
        "drafter": drafter.name,
    }
    summary = rounded(summary)
    report.log("summary", **summary)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    state = "finished" if summary["finished"] else "stopped; --resume continues"
    report.say(
        f"{state} at step {run.step_count}/{run.settings.steps}: {run.num_tokens} tokens in "
        f"{run.seconds:.0f} s, {summary['tokens_per_second']:.0f} tokens/s\n"
        f"held out: {summary['held_out']}\n{drafter}"
    )
    return summary
