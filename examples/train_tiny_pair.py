"""Train the tiny model pair of the tests, from nothing, in a few CPU minutes.

python examples/train_tiny_pair.py --work build/tiny --out tests/fixtures
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import target_samples
import torch
import torch.nn.functional as F
from drafter_training import start
from drafter_training.loop import train
from drafter_training.samples import Samples
from drafter_training.settings import Settings
from targets import Shape, TinyTarget, corpus
from transformers import LlamaForCausalLM

from dspark_ext.demo import tiny


def train_target(
    data: torch.Tensor, minutes: float, length: int = 256, batch: int = 32
) -> LlamaForCausalLM:
    model = LlamaForCausalLM(tiny.target_config())
    matrices = [p for p in model.parameters() if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    begun, step = time.process_time(), 0
    while (progress := (time.process_time() - begun) / (minutes * 60)) < 1:
        lr = 3e-3 * min(1.0, (step + 1) / 50, max(2 * (1 - progress), 0.02))
        for group in optimizer.param_groups:
            group["lr"] = lr
        starts = torch.randint(len(data) - length - 1, (batch,))
        rows = torch.stack([data[s : s + length + 1] for s in starts.tolist()]).long()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(rows[:, :-1]).logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 50 == 0:
            print(
                f"target: step {step}, {loss.item() / 0.6931:.3f} bits a byte, {progress:.0%}",
                flush=True,
            )
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target-minutes", type=float, default=4)
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--held-out-tokens", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=720)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)

    data = corpus(0)
    split = len(data) * 9 // 10
    model = train_target(
        torch.frombuffer(bytearray(data[:split]), dtype=torch.uint8), args.target_minutes
    )
    tiny.save_target(model, args.out / "tiny_target.safetensors")
    target = TinyTarget(args.out / "tiny_target.safetensors", data)

    shutil.rmtree(args.work, ignore_errors=True)
    for name, tokens in (("train", args.tokens), ("held_out", args.held_out_tokens)):
        target_samples.generate(
            target.model, target.requests(name == "held_out", 1), args.work / name, prefix=[],
            taps=target.taps, end_id=None, answer_prefix=[], batch=128, max_length=256,
            max_tokens=tokens, seed=0, stop=lambda: False,
        )  # fmt: skip
    samples, held_out = Samples(args.work / "train"), Samples(args.work / "held_out")
    config = target.head_config("compact", Shape())
    counts = samples.token_counts(config.vocab_size)
    draft_ids = start.choose_draft_vocabulary(counts, config.draft_vocab_size)
    trainee = start.new_trainee(config, draft_ids, target.model, seed=0)
    settings = Settings(
        steps=args.steps, rows_per_step=8, learning_rate=4e-3, loss="kl-tv", confidence_share=0.2
    )
    train(trainee, samples, held_out, args.work / "run", settings)
    shutil.copyfile(args.work / "run/drafter.safetensors", args.out / "tiny_drafter.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
