"""markov_sample over processes: the cases, and what one process of a group makes of them."""

import pathlib

import torch
import torch.distributed as dist
import torch.multiprocessing
from draft_inputs import head

from dspark_ext.draft_shards import MarkovShards

TILE = 4096


def awkward():
    """NaN, +inf, rows and tiles without entries; greedy rows among sampled ones; ties."""
    it = head(6, 3, 4 * TILE + 100, 4, seed=5)
    it.temperature[::2] = 0
    it.base_logits[1, 0, TILE + 3] = float("nan")
    it.base_logits[2] = 0.0
    it.base_logits[2, :, [TILE - 1, TILE, 3 * TILE + 5]] = 9.0
    it.base_logits[3, 1] = -torch.inf
    it.base_logits[4, 2, : 3 * TILE] = -torch.inf
    it.base_logits[5, 1, [7, 2 * TILE + 1]] = torch.inf
    it.w2[:] = 0
    return it


def reduced(order):
    """5,000 draft ids of 20,000, ascending or not."""
    it = head(5, 3, 5000, 8, target=20000, dtype=torch.bfloat16, seed=8)
    if not order:
        ids = torch.randperm(20000, generator=torch.Generator().manual_seed(3))[:5000]
        it.d2t = ids - torch.arange(5000)
    return it


# name: (inputs, {world: sizes}, options of markov_sample, options of MarkovShards)
def cases():
    bf16 = torch.bfloat16
    ragged = {2: [3000, 7000], 4: [1, 4095, 0, 5904]}
    return {
        "released": (head(2, 2, 129280, 4, dtype=bf16), None, {}, {}),
        "ragged": (head(7, 4, 10000, 12, dtype=torch.float16), ragged, {}, {}),
        "gated": (head(5, 3, 10000, 12, kind="gated", width=300, dtype=bf16), ragged, {}, {}),
        "rnn": (head(5, 4, 10000, 12, kind="rnn", width=300), ragged, {}, {}),
        "fewer": (head(3, 4, 9000, 5), None, {"num_drafts": 2}, {}),
        "greedy": (head(4, 3, 9000, 5, dtype=bf16), None, {"method": "greedy"}, {}),
        "awkward": (awkward(), None, {}, {}),
        "tiny": (head(3, 2, 5, 3), {2: [5, 0], 4: [0, 2, 3, 0]}, {}, {}),
        "whole tiles": (head(3, 2, 4 * TILE, 3), None, {}, {}),
        "wider": (head(3, 2, 5000, 3), None, {"vocab_size": 13000}, {"vocab_size": 13000}),
        "d2t": (reduced(True), None, {}, {"vocab_size": 20000}),
        "d2t, any order": (reduced(False), None, {}, {"vocab_size": 20000}),
        "one request": (head(1, 3, 10000, 12, dtype=bf16), ragged, {}, {}),
        "nobody": (head(0, 2, 9000, 3), None, {}, {}),
    }


def sizes_of(vocab, world, given):
    """`given`, or as equal as can be."""
    if given is not None:
        return given[world]
    return [(r + 1) * vocab // world - r * vocab // world for r in range(world)]


def run_case(case, rank, world):
    it, given, options, shard_options = case
    sizes = sizes_of(it.base_logits.shape[2], world, given)
    mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    d2t = it.d2t
    if d2t is not None:
        d2t = d2t[mine]
    shards = MarkovShards(shard_size=sizes[rank], d2t=d2t, **shard_options)
    options = {name: value for name, value in options.items() if name != "vocab_size"}
    output = shards.markov_sample(
        it.base_logits[:, :, mine],
        it.anchor,
        it.w1,
        it.w2[mine],
        head=it.head,
        hidden=it.hidden,
        head_weight=it.head_weight,
        head_bias=it.head_bias,
        temperature=it.temperature,
        seeds=it.seeds,
        positions=it.positions,
        **options,
    )
    return {"output": tuple(output), "first": shards.first, "width": shards.width}


def refusals():
    """Messages of what every process refuses."""
    found = {}
    attempts = {
        "no vocabulary": lambda: MarkovShards(shard_size=3, d2t=torch.zeros(3)),
        "d2t shape": lambda: MarkovShards(shard_size=3, d2t=torch.zeros(4), vocab_size=99),
        "outside": lambda: MarkovShards(
            shard_size=3, d2t=torch.tensor([0, 0, 100]), vocab_size=50
        ),
        "twice": lambda: MarkovShards(
            shard_size=3, d2t=torch.arange(3) * -1 + dist.get_rank(), vocab_size=50
        ),
        "negative": lambda: MarkovShards(shard_size=-1),
        "no number": lambda: MarkovShards(shard_size=2.5),
        "negative on one": lambda: MarkovShards(shard_size=-1 if dist.get_rank() == 1 else 3),
        "nothing": lambda: MarkovShards(shard_size=0),
        "shape on one": lambda: MarkovShards(
            shard_size=3, d2t=torch.zeros(3 + dist.get_rank()), vocab_size=99
        ),
        "d2t on one": lambda: MarkovShards(
            shard_size=3, d2t=None if dist.get_rank() else torch.zeros(3), vocab_size=99
        ),
        "base_logits": lambda: MarkovShards(shard_size=3).markov_sample(
            torch.zeros(1, 1, 4), None, None, None, temperature=1.0, seeds=0, positions=0
        ),
        "method": lambda: MarkovShards(shard_size=3).markov_sample(
            torch.zeros(1, 1, 3), None, None, None, temperature=1.0, seeds=0, positions=0,
            method="gumbel",
        ),
        "num_drafts": lambda: MarkovShards(shard_size=3).markov_sample(
            torch.zeros(1, 1, 3), None, None, None, temperature=1.0, seeds=0, positions=0,
            num_drafts=2,
        ),
    }  # fmt: skip
    for name, attempt in attempts.items():
        try:
            attempt()
        except RuntimeError as error:
            found[name] = str(error)
    return found


def work(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world
    )
    results = {name: run_case(case, rank, world) for name, case in cases().items()}
    results["refusals"] = refusals()
    torch.save(results, pathlib.Path(folder) / f"{world}-{rank}.pt")
    dist.destroy_process_group()


def run_group(world, folder):
    """What every process found, by rank."""
    torch.multiprocessing.spawn(work, (world, str(folder)), nprocs=world)
    paths = [folder / f"{world}-{rank}.pt" for rank in range(world)]
    return [torch.load(path, weights_only=False) for path in paths]
