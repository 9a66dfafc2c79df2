"""Train the tiny model pair of the tests, from nothing, in a few CPU minutes.

python examples/train_tiny_pair.py --work build/tiny --out tests/fixtures
"""

from __future__ import annotations

import argparse
import random
import shutil
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import drafter_start
import drafter_training as training
import target_samples
import torch
import torch.nn.functional as F
from target_samples import Request
from transformers import LlamaForCausalLM

from dspark_ext.demo import tiny
from dspark_ext.draft_head.compact import CompactDraftHead

LEFT_OUT = {"test", "tests", "idlelib", "site-packages", "lib2to3", "turtledemo", "ensurepip"}


def corpus(seed: int) -> bytes:
    """The standard library's source files, in random order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not LEFT_OUT & set(path.relative_to(root).parts)
    ]
    random.Random(seed).shuffle(files)
    return b"\n".join(path.read_bytes() for path in files)


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


def requests(data: torch.Tensor, seed: int) -> Iterator[Request]:
    generator = random.Random(seed)
    while True:
        start = generator.randrange(len(data) - 64)
        length = generator.randrange(8, 48)
        temperature = generator.choice([0.0, 0.7, 1.0, 1.0])
        yield Request(data[start : start + length].tolist(), temperature)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target-minutes", type=float, default=4)
    parser.add_argument("--drafter-minutes", type=float, default=4)
    parser.add_argument("--tokens", type=int, default=400_000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)

    data = torch.frombuffer(bytearray(corpus(0)), dtype=torch.uint8)
    held_out_from = len(data) * 9 // 10
    model = train_target(data[:held_out_from], args.target_minutes)
    tiny.save_target(model, args.out / "tiny_target.safetensors")
    model = tiny.load_target(args.out / "tiny_target.safetensors")

    config = tiny.draft_config()
    shutil.rmtree(args.work, ignore_errors=True)
    for name, part, tokens in (
        ("train", data[:held_out_from], args.tokens),
        ("held_out", data[held_out_from:], 20_000),
    ):
        target_samples.generate(
            model, requests(part, 1), args.work / name, prefix=[], taps=config.dspark_target_layer_ids,
            end_id=None, answer_prefix=[], batch=128, max_length=256, max_tokens=tokens, seed=0, stop=lambda: False,
        )  # fmt: skip
    samples, held_out = (
        training.Samples(args.work / "train"),
        training.Samples(args.work / "held_out"),
    )
    head = CompactDraftHead(config)
    counts = samples.token_counts(config.vocab_size)
    draft_ids = drafter_start.choose_draft_vocabulary(counts, config.draft_vocab_size)
    drafter_start.initialise(head, draft_ids, model.model.norm.weight.detach())
    head.bind_target(model.model.embed_tokens.weight, model.lm_head.weight)
    schedule = training.Schedule(args.drafter_minutes * 60, args.drafter_minutes * 24, lr=4e-3)
    head = training.train(
        head,
        samples,
        held_out,
        args.work / "run",
        schedule,
        rows_per_step=8,
        anchors_per_row=64,
        evaluate_every=60,
    )
    head.save(args.out / "tiny_drafter.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
