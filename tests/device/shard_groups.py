"""markov_sample over processes with a GPU each: what one of them finds."""

from __future__ import annotations

import contextlib
import pathlib

import draft_sweep as sweep
import torch
import torch.distributed as dist
import torch.multiprocessing
from gpukit import capture, on_cpu

from dspark_ext.draft_shards import MarkovShards


def cases() -> dict:
    """name: arguments of markov_sample; borders between processes lie inside of tiles."""
    bf16 = torch.bfloat16
    return {
        "vanilla": sweep.markov_case(1, "vanilla", 9, 3, 30001, 64, dtype=bf16),
        "gated": sweep.markov_case(2, "gated", 5, 3, 9001, 24, dtype=bf16, width=300),
        "rnn": sweep.markov_case(3, "rnn", 5, 4, 9001, 24, width=300),
        "d2t": sweep.markov_case(4, "vanilla", 3, 3, 9001, 24, target=20000, dtype=bf16),
        "greedy": sweep.markov_case(5, "rnn", 3, 3, 9001, 24, method="greedy"),
        "one request": sweep.markov_case(6, "vanilla", 1, 3, 9001, 24),
    }


@contextlib.contextmanager
def no_synchronisation():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def draft(shards: MarkovShards, case: dict, mine: slice, device) -> tuple:
    """A call whose inputs are there: a function without arguments."""
    it = {name: x.to(device) if torch.is_tensor(x) else x for name, x in case.items()}
    names = (
        *("head", "hidden", "head_weight", "head_bias", "method"),
        *("temperature", "seeds", "positions", "num_drafts"),
    )
    options = {name: it[name] for name in names}
    inputs = (it["base_logits"][:, :, mine].contiguous(), it["anchor"], it["w1"], it["w2"][mine])
    return lambda: flat(shards.markov_sample(*inputs, **options))


def flat(output) -> tuple:
    return (*output[:3], *output.statistics)


def run_case(case: dict, rank: int, world: int) -> dict:
    vocab = case["base_logits"].shape[2]
    begins = [r * vocab // world for r in range(world + 1)]
    mine = slice(begins[rank], begins[rank + 1])
    device = torch.device("cuda", rank)
    d2t = None if case["d2t"] is None else case["d2t"][mine]
    shards = MarkovShards(
        shard_size=begins[rank + 1] - begins[rank], d2t=d2t, vocab_size=case["vocab_size"]
    )
    call = draft(shards, case, mine, device)
    call()
    with no_synchronisation():
        output = call()
    graph, replayed = capture(call)
    for x in replayed:
        x.view(torch.uint8).fill_(0x7F)
    graph.replay()
    torch.cuda.synchronize()
    columns = (shards.first, shards.width)
    return {"output": on_cpu(output), "replayed": on_cpu(replayed), "columns": columns}


def work(rank: int, world: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world
    )
    found = {name: run_case(case, rank, world) for name, case in cases().items()}
    torch.save(found, pathlib.Path(folder) / f"{world}-{rank}.pt")
    dist.destroy_process_group()


def run_group(world: int, folder: pathlib.Path) -> list[dict]:
    """What every process found, by rank."""
    torch.multiprocessing.spawn(work, (world, str(folder)), nprocs=world)
    paths = [folder / f"{world}-{rank}.pt" for rank in range(world)]
    return [torch.load(path, weights_only=False) for path in paths]
