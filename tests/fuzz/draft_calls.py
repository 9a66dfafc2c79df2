"""Calls of dspark_ext.draft, and of MarkovShards in a group of one."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from calls import FLOATS, INTEGERS, Call, Source, builds, has_nan, require, require_shape

from dspark_ext import draft
from dspark_ext.draft_shards import MarkovShards

TILE = 4096


def head_arguments(source: Source, batch: int, width: int, rank: int, steps=True) -> dict:
    head = source.pick(("vanilla", "gated", "rnn"))
    if head == "vanilla":
        return {"head": head, "hidden": None, "head_weight": None, "head_bias": None}
    hidden = source.size(0, 6)
    shape = (rank, hidden + rank) if head == "gated" else (3 * rank, 2 * rank + hidden)
    return {
        "head": head,
        "hidden": source.floats(*((batch, width, hidden) if steps else (batch, hidden))),
        "head_weight": source.floats(*shape, dtype=source.pick(FLOATS), scale=0.5),
        "head_bias": source.maybe(lambda: source.floats(shape[0], dtype=source.pick(FLOATS))),
    }


def heats(source: Source, rows: int):
    heat = source.uniform(rows) * 2
    heat[source.uniform(rows) < 0.3] = 0.0
    return source.per_item(heat)


def block_arguments(source: Source) -> dict:
    batch, width = source.size(0, 3), source.size(0, 4)
    rank, vocab, drafted = source.size(1, 9), source.pick((1, 2, 5, 17, 40)), None
    drafted = source.size(1, vocab) if source.chance(0.3) else vocab
    d2t = None
    if drafted < vocab:
        ids = source.rng.permutation(vocab)[:drafted]
        d2t = torch.from_numpy(ids) - torch.arange(drafted)
    return {
        "base_logits": source.logits(batch, width, drafted, dtype=source.pick(FLOATS)),
        "anchor": source.integers(0, vocab - 1, batch, dtype=source.pick(INTEGERS)),
        "w1": source.floats(vocab, rank, dtype=source.pick(FLOATS)),
        "w2": source.floats(drafted, rank, dtype=source.pick(FLOATS)),
        **head_arguments(source, batch, width, rank),
        "method": source.pick(("probabilistic", "greedy")),
        "temperature": heats(source, batch),
        "seeds": source.per_item(source.integers(-(2**63), 2**63 - 1, batch)),
        "positions": source.per_item(source.integers(0, 2**40, batch)),
        "num_drafts": source.maybe(lambda: source.size(0, width), 0.3),
        "d2t": d2t,
        "exact": source.chance(0.5),
        "vocab_size": source.maybe(vocab, 0.3) if d2t is not None else None,
    }


@builds("markov_sample", 2)
def markov_sample(source: Source) -> Call:
    return Call(
        "markov_sample", draft.markov_sample, block_arguments(source), check_block,
        at_most=("vocab_size", "num_drafts"),
    )  # fmt: skip


def check_block(arguments, out, tame) -> None:
    logits, w1, d2t = arguments["base_logits"], arguments["w1"], arguments.get("d2t")
    batch, width, drafted = logits.shape
    steps = width if arguments["num_drafts"] is None else arguments["num_drafts"]
    vocab = arguments.get("vocab_size")
    if vocab is None:
        vocab = drafted if d2t is None else w1.shape[0]
    tiles = -(-vocab // TILE)
    require_shape(out.token_ids, (batch, steps), torch.int64, "token_ids")
    require_shape(out.logits, (batch, steps, vocab), logits.dtype, "logits")
    require_shape(out.prev_embed, (batch, steps, w1.shape[1]), w1.dtype, "prev_embed")
    require_shape(out.statistics.temperature, (batch, steps), torch.float32, "temperature")
    for name, dtype in (
        ("tile_max", torch.float32), ("tile_sum", torch.float32), ("tile_nan", torch.uint8),
    ):  # fmt: skip
        values = getattr(out.statistics, name)
        require_shape(values, (batch, steps, tiles), dtype, name)
        require(values.is_meta or not has_nan(values), name, "NaN")
    if out.token_ids.is_meta:
        return
    ids = out.token_ids
    require(bool(((ids >= 0) & (ids < vocab)).all()), "ids", ids.tolist())
    nan_rows = torch.isnan(out.logits).any(2)
    require(torch.equal(out.statistics.tile_nan.any(2), nan_rows), "NaN without its flag")
    require(not tame or not bool(nan_rows.any()), "NaN of tame numbers")
    if steps and batch:
        previous = torch.cat([arguments["anchor"].long()[:, None], ids[:, :-1]], 1)
        wanted = w1.detach().resolve_neg()[previous]
        got = out.prev_embed
        require(torch.equal(got[~got.isnan()], wanted[~wanted.isnan()]), "prev_embed")


@builds("markov_logits")
def markov_logits(source: Source) -> Call:
    arguments = block_arguments(source)
    batch, rank = len(arguments["anchor"]), arguments["w1"].shape[1]
    arguments = {key: arguments[key] for key in ("anchor", "w1", "w2", "exact")}
    drafted = len(arguments["w2"])
    arguments |= head_arguments(source, batch, 1, rank, steps=False)
    arguments["base_logits"] = source.logits(batch, drafted, dtype=source.pick(FLOATS))
    arguments["state"] = None
    if arguments["head"] == "rnn":
        arguments["state"] = source.maybe(lambda: source.floats(batch, rank))
    return Call("markov_logits", draft.markov_logits, arguments, check_step)


def check_step(arguments, out, tame) -> None:
    logits, w1 = arguments["base_logits"], arguments["w1"]
    batch = len(logits)
    require_shape(out.logits, logits.shape, logits.dtype, "logits")
    require_shape(out.prev_embed, (batch, w1.shape[1]), w1.dtype, "prev_embed")
    if arguments["head"] == "rnn":
        require_shape(out.state, (batch, w1.shape[1]), torch.float32, "state")
    for values in out:
        if tame and values is not None and not values.is_meta:
            require(not has_nan(values), "NaN of tame numbers")


@builds("row_statistics")
def row_statistics(source: Source) -> Call:
    rows, vocab = source.size(0, 4), source.pick((1, 5, 33, 130))
    if source.chance(0.05):
        vocab = source.pick((4096, 4097))
    logits = source.logits(rows, vocab, dtype=source.pick(FLOATS))
    arguments = {"logits": logits, "temperature": heats(source, rows)}
    return Call("row_statistics", draft.row_statistics, arguments, check_statistics)


def check_statistics(arguments, out, tame) -> None:
    logits = arguments["logits"]
    shape = (len(logits), -(-logits.shape[1] // TILE))
    require_shape(out.tile_max, shape, torch.float32, "tile_max")
    require_shape(out.tile_sum, shape, torch.float32, "tile_sum")
    require_shape(out.tile_nan, shape, torch.uint8, "tile_nan")
    if out.tile_max.is_meta:
        return
    require(not has_nan(out.tile_max) and not has_nan(out.tile_sum), "NaN")
    require(bool((out.tile_sum >= 0).all()), "negative sums")
    nan_rows = torch.isnan(logits).any(1)
    require(torch.equal(out.tile_nan.any(1), nan_rows), "NaN flags")


@builds("draw_shard")
def draw_shard(source: Source) -> Call:
    rows, vocab = source.size(0, 4), source.pick((1, 5, 33))
    if source.chance(0.1):
        vocab = 4100
    logits = source.logits(rows, vocab, dtype=source.pick(FLOATS))
    first = source.size(0, 1) if vocab > TILE else 0
    arguments = {
        "logits": logits[:, first * TILE :],
        "first_tile": first,
        "statistics": draft.row_statistics(logits, heats(source, rows)),
        "seeds": source.per_item(source.integers(-(2**63), 2**63 - 1, rows)),
        "positions": source.per_item(source.integers(0, 2**40, rows)),
        "slot": source.size(0, 7),
    }
    return Call(
        "draw_shard", draft.draw_shard, arguments, check_draw,
        words=("tile_max", "tile_sum", "tile_nan", "temperature", "tiles"),
    )  # fmt: skip


def check_draw(arguments, ids, tame) -> None:
    rows, width = arguments["logits"].shape
    require_shape(ids, (rows,), torch.int64, "ids")
    if not ids.is_meta:
        end = arguments["first_tile"] * TILE + max(width, 1)
        require(bool(((ids >= -1) & (ids < end)).all()), "ids", ids.tolist())


@builds("confidence")
def confidence(source: Source) -> Call:
    batch, width = source.size(0, 4), source.size(0, 5)
    hidden, rank = source.size(0, 40), source.size(0, 9)
    weight = source.floats(hidden + rank, dtype=source.pick(FLOATS))
    arguments = {
        "hidden": source.floats(batch, width, hidden, dtype=source.pick(FLOATS)),
        "prev_embed": source.floats(batch, width, rank, dtype=source.pick(FLOATS)),
        "weight": weight[None] if source.chance(0.3) else weight,
        "bias": source.pick((None, 0.5, source.floats(1))),
        "temperatures": source.maybe(lambda: source.uniform(width) + 0.1),
    }
    return Call("confidence", draft.confidence, arguments, check_confidence)


def check_confidence(arguments, out, tame) -> None:
    require_shape(out, arguments["hidden"].shape[:2], torch.float32, "confidence")
    check_probabilities(out, tame)


def check_probabilities(out, tame) -> None:
    if out.is_meta:
        return
    require(not tame or not has_nan(out), "NaN of tame numbers")
    require(bool(((out >= 0) & (out <= 1) | out.isnan()).all()), "no probabilities", out.tolist())


@builds("calibrate")
def calibrate(source: Source) -> Call:
    shape = [(), (3,), (2, 2)][source.size(0, 2)]
    width = source.size(0, 6)
    arguments = {
        "conf_logits": source.floats(*shape, width, dtype=source.pick(FLOATS)),
        "temperatures": source.uniform(width) + 0.1,
    }
    return Call("calibrate", draft.calibrate, arguments, check_calibrated)


def check_calibrated(arguments, out, tame) -> None:
    require_shape(out, arguments["conf_logits"].shape, torch.float32, "result")
    check_probabilities(out, tame)


# ---- a group of one -----------------------------------------------------------------------------


@functools.cache
def group_of_one():
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist.group.WORLD


@builds("MarkovShards")
def markov_shards(source: Source) -> Call:
    arguments = block_arguments(source)
    for name in ("exact", "vocab_size", "d2t"):
        arguments.pop(name)
    drafted = arguments["base_logits"].shape[2]
    arguments["shards"] = MarkovShards(group_of_one(), shard_size=drafted)
    return Call(
        "MarkovShards", sample_shards, arguments, check_shards, fixed=("shards",),
        ops=("markov_logits", "row_statistics", "draw_shard"),
        words=("logits", "temperature"), at_most=("num_drafts",),
    )  # fmt: skip


def sample_shards(shards, **arguments):
    return shards.markov_sample(**arguments)


def check_shards(arguments, out, tame) -> None:
    batch, width, drafted = arguments["base_logits"].shape
    steps = width if arguments["num_drafts"] is None else arguments["num_drafts"]
    require_shape(out.token_ids, (batch, steps), torch.int64, "token_ids")
    if not out.token_ids.is_meta:
        ids = out.token_ids
        require(bool(((ids >= 0) & (ids < drafted)).all()), "ids", ids.tolist())
