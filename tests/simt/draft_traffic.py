"""Bytes that the draft kernels move, counted by the emulator, over the bytes that must move.

    python tests/simt/draft_traffic.py    a table

The floor of a draft: w2 once, the base logits once, the logits kept once. Besides, a draft reads
the row it draws from, which was just written: `row`; and every block brings in the inputs of its
requests: `inputs`. `ratio` counts what each thread asks for, `sectors` what that moves: a warp's
load of one address is one sector of 32 bytes. `memory` is what passes between device memory and a
second-level cache of the size that an H200 has.
"""

from __future__ import annotations

import itertools
import pathlib
import sys

if __name__ == "__main__":
    sys.path[:0] = [str(pathlib.Path(__file__).parents[i]) for i in (1, 0)]

import draft_sweep as sweep
import emulated
import torch

VOCAB, RANK = 129280, 256
CACHE = 50 << 20


def case(batch, drafts=2, vocab=VOCAB, dtype=torch.bfloat16, kind="vanilla") -> dict:
    return sweep.markov_case(batch, kind, batch, drafts, vocab, RANK, dtype=dtype)


def measure(it: dict, warp_size: int = 32, cache: int = CACHE) -> dict:
    """Bytes per draft, over the floor."""
    counted = emulated.counters(
        lambda: torch.ops.dspark_simt.markov_sample(*it.values()),
        warp_size=warp_size,
        cache=cache,
    )
    buffers = counted["buffers"]
    kernels = counted["kernels"]

    def bytes_of(name, way):
        return buffers.get(name, {}).get(way, 0)

    batch, drafts = len(it["anchor"]), it["num_drafts"]
    size = it["base_logits"].element_size()
    row = batch * it["vocab_size"] * size
    w2 = it["w2"].nbytes
    base = batch * it["base_logits"].shape[2] * size
    floor = drafts * (w2 + base + row)
    logits = bytes_of("logits", "bytes_loaded")
    inputs = bytes_of("w1", "bytes_loaded") + bytes_of("prev_embed", "bytes_loaded")
    moved = sum(k["bytes_loaded"] + k["bytes_stored"] for k in kernels.values())
    sectors = sum(k["load_segments_32"] + k["store_segments_32"] for k in kernels.values())
    memory = sum(k["memory_sectors_read"] + k["memory_sectors_written"] for k in kernels.values())
    step = kernels["markov_step"]
    return {
        "launches": sum(k["launches"] for k in kernels.values()),
        "w2": bytes_of("w2", "bytes_loaded") / (drafts * w2),
        "streams": (
            bytes_of("w2", "bytes_loaded")
            + bytes_of("base_logits", "bytes_loaded")
            + bytes_of("logits", "bytes_stored")
        )
        / floor,
        "row": logits / floor,
        "row_reads": logits / (drafts * row),
        "inputs": inputs / floor,
        "ratio": moved / floor,
        "sectors": sectors * 32 / floor,
        "memory": memory * 32 / floor,
        "wide_w2": step["accesses_16"] * 16 / (drafts * w2),
        "store_segments": step["store_segments_32"] * 32 / (drafts * row),
    }


def main() -> None:
    print(
        "| B | exact | launches | w2 | w2, base, logits | row | inputs | all | sectors | memory |"
    )
    print("|--:" * 10 + "|")
    for batch, exact in itertools.product((1, 8, 64), (True, False)):
        m = measure(case(batch, drafts=2) | {"exact": exact})
        print(
            f"| {batch} | {exact} | {m['launches']} | {m['w2']:.3f} | {m['streams']:.3f} "
            f"| {m['row']:.3f} | {m['inputs']:.3f} | {m['ratio']:.3f} | {m['sectors']:.3f} "
            f"| {m['memory']:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
