"""Bytes that the device kernels move, counted by the emulator, over the bytes that must move.

    python tests/simt/sampling_traffic.py    the table of bench/NOTES.md

The floor, in rows of logits: every target and draft row once for its statistics; two rows for every
residual mass that the walk from the last position down asks for, and for the residual of the final
draw unless its mass was asked for.
"""

from __future__ import annotations

import pathlib
import sys

if __name__ == "__main__":
    sys.path[:0] = [str(pathlib.Path(__file__).parents[i]) for i in (1, 0)]

import emulated
import torch
from kit import starts

from dspark_ext import sampling

VOCAB, DRAFTS, BATCH = 129280, 5, 6
FILTERS = {
    "none": {},
    "top_p .95": {"top_p": 0.95},
    "top_k 50": {"top_k": 50},
    "min_p .02": {"min_p": 0.02},
    "top_k 50, top_p .95": {"top_k": 50, "top_p": 0.95},
}


def realistic_batch(dtype=torch.float32, vocab=VOCAB, drafts=DRAFTS, batch=BATCH, seed=3) -> dict:
    """Peaked laws, as of a language model, and drafts drawn from nearby ones."""
    generator = torch.Generator().manual_seed(seed)
    rows = batch * (drafts + 1)
    target = torch.empty(rows, vocab)
    for row in target:
        slope = 1.5 + 1.5 * torch.rand(1, generator=generator)  # entropies of 0.7 to 2.6 nats
        ranks = torch.randperm(vocab, generator=generator) + 1
        row.copy_(-slope * ranks.log())
    target += 0.3 * torch.randn(target.shape, generator=generator)
    target = target.to(dtype)
    by_request = target.view(batch, drafts + 1, vocab)
    draft = by_request[:, :drafts].float()
    draft = (draft + 0.95 * torch.randn(draft.shape, generator=generator)).to(dtype)
    seeds = torch.arange(batch) + 10 * seed
    ids = sampling.sample(
        draft.flatten(0, 1), seeds=seeds.repeat_interleave(drafts), stream="draft",
        positions=torch.arange(drafts).repeat(batch), slots=torch.arange(drafts).repeat(batch),
    ).ids.view(batch, drafts)  # fmt: skip
    return {
        "target_logits": target,
        "draft_token_ids": ids,
        "draft_logits": draft,
        "query_start_loc": starts([drafts] * batch),
        "temperature": torch.ones(batch),
        "uniforms": torch.rand(batch, drafts + 1, generator=generator, dtype=torch.float64),
        "seeds": seeds,
        "positions": torch.zeros(batch, dtype=torch.int64),
    }


def floor_rows(inputs: dict, method: str) -> float:
    """Rows that must be read."""
    batch, drafts = inputs["draft_token_ids"].shape
    rows = batch * (2 * drafts + 1.0)
    if method == "token":
        out = sampling.rejection_sample(**inputs, method=method)
        return rows + 2 * int((out.num_accepted < drafts).sum())
    dropped = ("uniforms", "seeds", "positions")
    given = {key: value for key, value in inputs.items() if key not in dropped}
    prefix, _, accept = sampling.block_acceptance(**given)
    for b in range(batch):
        rows += 2 * len(masses_of_walk(inputs["uniforms"][b], prefix[b], accept[b]))
    return rows


def masses_of_walk(uniforms, prefix, accept) -> set[int]:
    """Rows whose residual the walk of the block rule or its final draw needs."""
    drafts = len(prefix)
    needed = set()
    for i in range(drafts, 0, -1):
        if uniforms[i - 1] >= prefix[i - 1]:
            continue
        if i == drafts:
            return needed
        needed.add(i)
        if uniforms[i - 1] < accept[i - 1]:
            return needed
    return needed | {0}


def measure(inputs: dict, method: str, warp_size: int = 32) -> dict:
    """`launches`, `bytes` moved, `floor` in bytes, `ratio`; `logits_ratio` counts logits alone.

    Bytes are summed over threads: what many of them read from a cache counts every time.
    """
    counted = emulated.counters(
        lambda: sampling.rejection_sample(**inputs, method=method), warp_size=warp_size
    )
    kernels = counted["kernels"]
    moved = sum(k["bytes_loaded"] + k["bytes_stored"] for k in kernels.values())
    logits = inputs["target_logits"]
    floor = floor_rows(inputs, method) * logits.shape[1] * logits.element_size()
    return {
        "launches": sum(k["launches"] for k in kernels.values()),
        "bytes": moved,
        "floor": floor,
        "ratio": moved / floor,
        "logits_ratio": sum(
            counted["buffers"][name]["bytes_loaded"] for name in ("target_logits", "draft_logits")
        )
        / floor,
    }


def acceptance(inputs: dict) -> float:
    """Mean over the slots of sum min(p, q): how often a draft stands by itself."""
    p = sampling.target_probs(inputs["target_logits"])
    q = sampling.target_probs(inputs["draft_logits"].flatten(0, 1))
    batch, drafts = inputs["draft_token_ids"].shape
    p = p.view(batch, drafts + 1, -1)[:, :drafts].flatten(0, 1)
    return float(torch.minimum(p, q).sum(1).mean())


def main() -> None:
    inputs = realistic_batch()
    row = VOCAB * 4
    print(f"B {BATCH}, K {DRAFTS}, V {VOCAB}, fp32, acceptance {acceptance(inputs):.2f}\n")
    print(
        "| method | filters | launches | rows per request | floor | moved / floor | logits alone |"
    )
    print("|---|---|--:|--:|--:|--:|--:|")
    for method in ("token", "block"):
        for name, filters in FILTERS.items():
            m = measure({**inputs, **filters}, method)
            print(
                f"| {method} | {name} | {m['launches']} | {m['bytes'] / row / BATCH:.2f} "
                f"| {m['floor'] / row / BATCH:.2f} | {m['ratio']:.3f} | {m['logits_ratio']:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
