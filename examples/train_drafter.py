"""Train a drafter from scratch: sample the target, train on its samples, evaluate.

python examples/train_drafter.py sample --out data/train
python examples/train_drafter.py sample --out data/held_out --held-out
python examples/train_drafter.py train --data data/train --held-out data/held_out --out run
python examples/train_drafter.py train --data data/train --held-out data/held_out --out run --resume
python examples/train_drafter.py eval --data data/held_out --drafter run/drafter.safetensors

docs/training.md says what to expect and what the settings do.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import target_samples
import torch
from drafter_training import start
from drafter_training.checkpoints import ResumeError
from drafter_training.evaluation import evaluate
from drafter_training.interrupt import Interrupt
from drafter_training.loop import DivergedError, Pace, train
from drafter_training.samples import Samples, check_samples
from drafter_training.settings import LOSSES, OPTIMIZERS, PRECISIONS, Settings, SettingsError
from targets import TARGETS, Shape

from dspark_ext.draft_head import CheckpointError, ConfigError

FAILURES = (
    CheckpointError,
    ConfigError,
    DivergedError,
    OSError,
    ResumeError,
    SettingsError,
    target_samples.SamplingError,
)


def run_sample(args: argparse.Namespace) -> None:
    target = TARGETS[args.target]()
    deadline = time.monotonic() + args.minutes * 60
    with Interrupt() as interrupt:
        target_samples.generate(
            target.model,
            target.requests(args.held_out, args.seed),
            args.out,
            prefix=target.prefix,
            taps=target.taps,
            end_id=target.end_id,
            answer_prefix=target.answer_prefix,
            batch=args.batch,
            max_length=args.max_length,
            max_tokens=args.tokens,
            seed=args.seed,
            stop=lambda: interrupt.asked or time.monotonic() > deadline,
        )


def run_train(args: argparse.Namespace) -> None:
    settings, pace, shape = (_chosen(args, kind) for kind in (Settings, Pace, Shape))
    target = TARGETS[args.target]()
    config = target.head_config(args.flavour, shape)
    samples, held_out = Samples(args.data), Samples(args.held_out)
    for each in (samples, held_out):
        each.check_target(config.hidden_size, config.vocab_size)
    target.check_prompts(samples.prompts())
    counts = samples.token_counts(config.vocab_size)
    draft_ids = start.choose_draft_vocabulary(counts, config.draft_vocab_size)
    covered = counts[draft_ids].sum() / counts.sum()
    print(f"{samples.num_tokens} tokens; the draft vocabulary has {covered:.2%} of the answers'")
    trainee = start.new_trainee(config, draft_ids, target.model, settings.seed)
    if args.init:
        start.continue_from(trainee, args.init, target.model)
    train(trainee, samples, held_out, args.out, settings, pace, resume=args.resume)


def run_evaluate(args: argparse.Namespace) -> None:
    target = TARGETS[args.target]()
    trainee = start.load_trainee(args.drafter, target.model)
    samples = Samples(args.data)
    check_samples(samples, trainee)
    groups = evaluate(trainee, samples, groups=target.group)
    for name, values in groups.items():
        print(name, values)


def _chosen(args: argparse.Namespace, kind):
    return kind(**{field.name: getattr(args, field.name) for field in dataclasses.fields(kind)})


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--target", choices=TARGETS, default="smollm2")
    shared.add_argument("--threads", type=int, default=1)

    command = commands.add_parser("sample", parents=[shared], help="sample the target into chunks")
    command.set_defaults(run=run_sample)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--held-out", action="store_true", help="prompts kept for evaluation")
    command.add_argument("--tokens", type=int, default=1_000_000)
    command.add_argument("--minutes", type=float, default=90, help="end earlier, cleanly")
    command.add_argument("--batch", type=int, default=128)
    command.add_argument("--max-length", type=int, default=288)
    command.add_argument("--seed", type=int, default=0, help="a second call adds rows: change it")

    command = commands.add_parser("train", parents=[shared], help="train a drafter on chunks")
    command.set_defaults(run=run_train)
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--held-out", type=Path, required=True)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--resume", action="store_true", help="continue the run in --out")
    command.add_argument("--init", type=Path, help="a trained drafter to start from")
    command.add_argument("--flavour", choices=("compact", "qwen3"), default="compact")
    choices = {
        "loss": LOSSES,
        "optimizer": OPTIMIZERS,
        "precision": PRECISIONS,
        "markov_head": ("vanilla", "gated", "rnn"),
    }
    for kind in (Shape, Settings, Pace):
        group = command.add_argument_group(kind.__name__.lower())
        for field in dataclasses.fields(kind):
            default = field.default
            name = field.name
            of_text = name in choices
            of_number = int if "int" in field.type else float
            group.add_argument(
                f"--{name.replace('_', '-')}",
                type=str if of_text else of_number,
                choices=choices.get(name),
                default=default,
                help=None if default is None else f"default {default}",
            )

    command = commands.add_parser(
        "eval", parents=[shared], help="teacher-forced acceptance on held-out samples"
    )
    command.set_defaults(run=run_evaluate)
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--drafter", type=Path, required=True)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    torch.set_num_threads(args.threads)
    try:
        args.run(args)
    except FAILURES as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
