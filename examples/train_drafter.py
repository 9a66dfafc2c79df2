"""Train the demo's drafter: sample the target, train on its samples, evaluate, export.

python examples/train_drafter.py sample --out data/train
python examples/train_drafter.py sample --out data/held_out --held-out
python examples/train_drafter.py train --data data/train --held-out data/held_out --out run
python examples/train_drafter.py eval --data data/held_out --drafter run/drafter.safetensors
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import drafter_start
import drafter_training as training
import prompts
import target_samples
import torch
from drafter_training import Samples
from target_samples import Request

from dspark_ext.draft_head.compact import CompactDraftHead, CompactDraftHeadConfig

TAPS = [9, 19, 29]
TEMPERATURES = [0.0, 0.5, 0.7, 1.0]
TEMPERATURE_WEIGHTS = [0.25, 0.10, 0.25, 0.40]
SELF_ASKED_SHARE = 0.25


def sample(args: argparse.Namespace) -> None:
    from dspark_ext.demo import smollm2

    model, tokenizer = smollm2.load()

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    before, after = smollm2.chat_prompt("\0").split("\0")
    prefix, suffix = encode(before), encode(after)
    requests = (
        held_out_requests(encode, suffix)
        if args.held_out
        else training_requests(encode, suffix, args.seed)
    )
    deadline = time.time() + args.minutes * 60
    target_samples.generate(
        model,
        requests,
        args.out,
        prefix=prefix,
        taps=TAPS,
        end_id=tokenizer.eos_token_id,
        answer_prefix=suffix[1:],
        batch=args.batch,
        max_length=args.max_length,
        max_tokens=args.tokens,
        seed=args.seed,
        stop=lambda: time.time() > deadline or (args.out / "stop").exists(),
    )


def training_requests(encode, suffix: list[int], seed: int) -> Iterator[Request]:
    generator = random.Random(seed)
    greedy_seen: set[str] = set()
    for prompt in prompts.training_prompts(seed):
        temperature = generator.choices(TEMPERATURES, TEMPERATURE_WEIGHTS)[0]
        if temperature and generator.random() < SELF_ASKED_SHARE:
            yield Request([], temperature, self_asked=True)
            continue
        if not temperature:
            if prompt in greedy_seen:
                temperature = 1.0  # a greedy row would be a copy
            greedy_seen.add(prompt)
        yield Request(encode(prompt) + suffix, temperature, text=prompt)


def held_out_requests(encode, suffix: list[int]) -> Iterator[Request]:
    """Every held-out prompt greedily once and at temperature 1 twice; then the generator ends."""
    for temperature in (0.0, 1.0, 1.0):
        for prompt in prompts.held_out_prompts():
            yield Request(encode(prompt) + suffix, temperature, text=prompt)


def train(args: argparse.Namespace) -> None:
    from dspark_ext.demo import smollm2

    torch.manual_seed(args.seed)
    model, _ = smollm2.load()
    samples, held_out = Samples(args.data), Samples(args.held_out)
    prompts.assert_held_out(samples.prompts())
    embed, lm_head = model.model.embed_tokens.weight, model.lm_head.weight
    config = CompactDraftHeadConfig(
        hidden_size=embed.shape[1],
        vocab_size=embed.shape[0],
        draft_vocab_size=args.draft_vocabulary,
        num_attention_heads=9,
        num_key_value_heads=9,
        head_dim=64,
        moe_intermediate_size=96,
        shared_intermediate_size=96,
        dspark_target_layer_ids=TAPS,
        rope_theta=model.config.rope_parameters["rope_theta"],
    )
    head = CompactDraftHead(config)
    counts = samples.token_counts(config.vocab_size)
    draft_ids = drafter_start.choose_draft_vocabulary(counts, config.draft_vocab_size)
    print(
        f"draft vocabulary: {counts[draft_ids].sum() / counts.sum():.4f} of {samples.num_tokens} tokens",
        flush=True,
    )
    drafter_start.initialise(head, draft_ids, model.model.norm.weight.detach())
    if args.init:
        drafter_start.resume(head, torch.load(args.init))
    head.bind_target(embed, lm_head)
    schedule = training.Schedule(
        args.minutes * 60, args.decay_minutes * 60, lr=args.lr, progress_before=args.progress
    )
    training.train(head, samples, held_out, args.out, schedule, seed=args.seed)
    prompts.assert_held_out(samples.prompts())


def evaluate(args: argparse.Namespace) -> None:
    from dspark_ext.demo import smollm2

    model, _ = smollm2.load()
    head = CompactDraftHead.load(args.drafter)
    head.bind_target(model.model.embed_tokens.weight, model.lm_head.weight)
    kinds = {
        prompt: "other kinds" if kind.startswith("*") else "trained kinds"
        for kind, prompt in prompts.HELD_OUT
    }
    kinds |= {prompt: f"demo {name}" for name, prompt in prompts.DEMO.items()}
    held_out = Samples(args.data)
    for name, values in training.evaluate(
        head, held_out, groups=lambda row: kinds[row["prompt"]]
    ).items():
        print(name, values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("sample", help="sample the target into chunks")
    command.add_argument("--out", type=Path, required=True)
    command.add_argument(
        "--held-out", action="store_true", help="the evaluation prompts instead of the templates"
    )
    command.add_argument("--tokens", type=int, default=1_000_000)
    command.add_argument("--minutes", type=float, default=90)
    command.add_argument("--batch", type=int, default=128)
    command.add_argument("--max-length", type=int, default=288)
    command.add_argument("--seed", type=int, default=0)
    command.set_defaults(run=sample)
    command = commands.add_parser(
        "train", help="train a drafter on chunks, also while they are being written"
    )
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--held-out", type=Path, required=True)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--minutes", type=float, default=60)
    command.add_argument("--decay-minutes", type=float, default=20)
    command.add_argument("--lr", type=float, default=2e-3)
    command.add_argument("--draft-vocabulary", type=int, default=8192)
    command.add_argument("--init", type=Path, help="weights of an earlier run (last.pt)")
    command.add_argument(
        "--progress", type=float, default=0.0, help="share of the loss schedule already done"
    )
    command.add_argument("--seed", type=int, default=0)
    command.set_defaults(run=train)
    command = commands.add_parser("eval", help="teacher-forced acceptance on held-out samples")
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--drafter", type=Path, required=True)
    command.set_defaults(run=evaluate)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
