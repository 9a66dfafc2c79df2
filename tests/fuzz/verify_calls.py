"""Calls of dspark_ext.verify."""

from __future__ import annotations

import torch
from calls import FLOATS, INTEGERS, Call, Source, builds, require, require_shape

from dspark_ext import sampling, verify

MODES = ("early_stop", "budget", "lagged", "uniform", "threshold", "fixed")


def schedule_arguments(source: Source) -> dict:
    batch, width = source.size(0, 4), source.size(0, 4)
    mode = source.pick(MODES)
    confidence = source.uniform(batch, width)
    if source.chance(0.2):
        confidence = confidence.round()
    lagged = mode == "lagged" or (mode == "uniform" and source.chance(0.5))
    cost = None
    if mode in ("early_stop", "lagged", "uniform") or source.chance(0.2):
        cost = source.uniform(source.size(2, 30), dtype=torch.float64).cumsum(0) + 1e-3
    budget = None
    if mode == "budget":
        budget = source.size(0, 25)
        if source.chance(0.5):
            budget = torch.tensor(budget, dtype=torch.int32)
    capacity = source.maybe(lambda: source.integers(-1, width + 1, batch, dtype=torch.int32), 0.4)
    num_drafts = source.maybe(lambda: source.size(0, width), 0.3)
    if mode == "fixed" and source.chance(0.3):
        confidence, num_drafts = None, width
        capacity = source.integers(0, width, batch, dtype=torch.int32)
    return {
        "confidence": confidence,
        "cost": cost,
        "budget": budget,
        "mode": mode,
        "capacity": capacity,
        "min_drafts": source.size(0, 2) if source.chance(0.3) else 0,
        "max_rows": source.maybe(lambda: source.size(batch, batch * (width + 1) + 1), 0.4),
        "num_other_rows": source.size(0, 9) if source.chance(0.3) else 0,
        "threshold": float(source.rng.random()) if mode == "threshold" else None,
        "num_drafts": num_drafts,
        "lagged_confidence": source.uniform(batch, width) if lagged else None,
        "num_requests": source.maybe(lambda: source.size(0, batch), 0.3),
    }


@builds("schedule", 3)
def schedule(source: Source) -> Call:
    return Call("schedule", verify.schedule, schedule_arguments(source), check_schedule)


def check_schedule(arguments, out, tame) -> None:
    confidence, capacity = arguments["confidence"], arguments["capacity"]
    if confidence is None:
        batch, width = len(capacity), arguments["num_drafts"]
    else:
        batch, width = confidence.shape
    require_shape(out.verify_lens, (batch,), torch.int32, "verify_lens")
    require_shape(out.query_start_loc, (batch + 1,), torch.int32, "query_start_loc")
    require_shape(out.num_rows, (), torch.int32, "num_rows")
    require_shape(out.expected_tokens, (), torch.float32, "expected_tokens")
    if out.verify_lens.is_meta:
        return
    lengths, starts = out.verify_lens.tolist(), out.query_start_loc.tolist()
    most = width if arguments["num_drafts"] is None else arguments["num_drafts"]
    room = [most] * batch if capacity is None else [min(most, max(c, 0)) for c in list(capacity)]
    require(all(0 <= n <= limit for n, limit in zip(lengths, room)), "verify_lens", lengths, room)
    live = batch if arguments["num_requests"] is None else int(arguments["num_requests"])
    live = min(max(live, 0), batch)
    rows = [n + 1 for n in lengths[:live]] + [0] * (batch - live)
    require(all(n == 0 for n in lengths[live:]), "drafts of requests that are not", lengths)
    require(starts[0] == 0, "starts", starts)
    require([b - a for a, b in zip(starts, starts[1:])] == rows, "starts", starts, rows)
    require(int(out.num_rows) == starts[-1], "num_rows", int(out.num_rows))
    limit = arguments["max_rows"]
    require(limit is None or starts[-1] <= limit, "more than max_rows", starts)
    tokens = float(out.expected_tokens)
    require(live - 1e-3 <= tokens <= starts[-1] + 1e-3, "expected_tokens", tokens, starts)


def packed(source: Source):
    """(arguments of pack, the batch that they give)"""
    batch, width = source.size(0, 4), source.size(0, 4)
    lengths = source.integers(0, width, batch, dtype=torch.int32)
    starts = torch.cat([lengths.new_zeros(1), (lengths + 1).cumsum(0).int()])
    plan = verify.Schedule(lengths, starts, starts[-1], torch.tensor(1.0))
    per_request = source.maybe(width + 1, 0.3)
    rows = batch * per_request if per_request else int(starts[-1])
    arguments = {
        "anchor": source.integers(0, 99, batch, dtype=source.pick(INTEGERS)),
        "draft_token_ids": source.integers(-1, 99, batch, width, dtype=source.pick(INTEGERS)),
        "seq_lens": source.integers(0, 40, batch, dtype=source.pick(INTEGERS)),
        "schedule": plan,
        "max_rows": rows + source.size(0, 3),
        "block_table": None,
        "block_size": None,
        "rows_per_request": per_request,
    }
    if source.chance(0.5):
        arguments["block_size"] = source.size(1, 16)
        blocks = 50 // arguments["block_size"] + 1
        arguments["block_table"] = source.integers(0, 99, batch, blocks, dtype=torch.int32)
    return arguments, verify.pack(**arguments)


@builds("pack", 2)
def pack(source: Source) -> Call:
    arguments, _ = packed(source)
    return Call(
        "pack", verify.pack, arguments, check_pack, at_most=("max_rows",),
        words=("verify_lens", "query_start_loc"),
    )  # fmt: skip


def check_pack(arguments, out, tame) -> None:
    rows, batch = arguments["max_rows"], len(arguments["anchor"])
    for name in ("input_ids", "positions", "slot_mapping", "sample_rows"):
        require_shape(getattr(out, name), (rows,), torch.int64, name)
    require_shape(out.request_ids, (rows,), torch.int32, "request_ids")
    if out.input_ids.is_meta:
        return
    require(bool((out.input_ids >= 0).all()), "input_ids", out.input_ids.tolist())
    require(bool((out.positions >= 0).all()), "positions", out.positions.tolist())
    require(bool((out.slot_mapping >= -1).all()), "slots", out.slot_mapping.tolist())
    requests = out.request_ids
    require(bool(((requests >= -1) & (requests < batch)).all()), "requests", requests.tolist())
    require(bool(((out.sample_rows >= 0) & (out.sample_rows < max(rows, 1))).all()), "sample_rows")
    lengths = arguments["schedule"].verify_lens.tolist()
    starts = arguments["schedule"].query_start_loc.tolist()
    for b, count in enumerate(lengths):
        wanted = count + 1 if starts[b + 1] > starts[b] else 0
        require(int((requests == b).sum()) == wanted, "rows of", b, requests.tolist(), starts)


@builds("unpack")
def unpack(source: Source) -> Call:
    arguments, batch = packed(source)
    shape = (arguments["max_rows"], *[(), (3,), (2, 2)][source.size(0, 2)])
    rows = source.floats(*shape)
    if source.chance(0.3):
        rows = (rows * 9).to(source.pick((torch.int64, torch.bfloat16, torch.uint8)))
    return Call(
        "unpack", verify.unpack, {"rows": rows, "batch": batch, "fill": 0.0}, check_unpack,
        words=("query_start_loc", "rows_per_request", "num_drafts"), at_most=("num_drafts",),
    )  # fmt: skip


def check_unpack(arguments, out, tame) -> None:
    batch, rows = arguments["batch"], arguments["rows"]
    shape = (len(batch.query_start_loc) - 1, batch.num_drafts + 1, *rows.shape[1:])
    require_shape(out, shape, rows.dtype, "rows")
    moderate = tame and abs(arguments["fill"]) < 1e4
    if moderate and out.numel() and not out.is_meta and out.dtype in FLOATS:
        require(bool(out.isfinite().all()), "not finite")


@builds("commit")
def commit(source: Source) -> Call:
    arguments, batch = packed(source)
    rows = batch.verify_lens + 1
    emitted = (source.uniform(len(rows)) * (rows + 1)).int().minimum(rows)
    output = sampling.RejectionOutput(
        torch.zeros(0), torch.zeros(0), emitted, source.integers(0, 99, len(rows)), torch.zeros(0),
        None,
    )  # fmt: skip
    arguments = {"output": output, "batch": batch, "seq_lens": arguments["seq_lens"]}
    return Call(
        "commit", verify.commit, arguments, check_commit, at_most=("num_drafts",),
        words=("num_emitted", "last_token", "query_start_loc", "rows_per_request", "max_rows"),
    )  # fmt: skip


def check_commit(arguments, out, tame) -> None:
    batch = len(arguments["seq_lens"])
    rows = arguments["batch"].input_ids.shape[:1].numel()
    require_shape(out.seq_lens, (batch,), torch.int64, "seq_lens")
    require_shape(out.anchor, (batch,), torch.int64, "anchor")
    require_shape(out.row_kept, (rows,), torch.bool, "row_kept")
    require_shape(out.num_rejected, (batch,), torch.int32, "num_rejected")
    if out.row_kept.is_meta:
        return
    kept = int(out.row_kept.sum())
    emitted = arguments["output"].num_emitted.clamp(min=0)  # not looked at without rows
    grown = out.seq_lens - arguments["seq_lens"]
    require(int(grown.sum()) == kept, "kept rows", kept, "lengths grew by", grown.tolist())
    require(bool((grown <= emitted).all()), "grown", grown.tolist(), emitted.tolist())
    require(bool((out.num_rejected >= 0).all()), "num_rejected", out.num_rejected.tolist())


@builds("accumulate_stats")
def accumulate_stats(source: Source) -> Call:
    slots, width, batch = source.size(0, 4), source.size(0, 4), source.size(0, 4)
    if batch > slots:
        batch = slots
    lengths = source.integers(0, width, batch, dtype=torch.int32)
    accepted = (source.uniform(batch) * (lengths + 1)).int().minimum(lengths)
    stats = verify.AcceptanceStats(slots, width)
    arguments = {
        "stats": stats,
        "verify_lens": lengths,
        "num_accepted": accepted,
        "request_ids": source.maybe(
            lambda: source.integers(-1, slots - 1, batch, dtype=source.pick(INTEGERS)), 0.5
        ),
    }
    return Call(
        "accumulate_stats", update_stats, arguments, check_stats, writes=("stats",),
        words=("verified", "num_requests"), fixed=("stats",), ops=("AcceptanceStats",),
    )  # fmt: skip


def update_stats(stats, verify_lens, num_accepted, request_ids):
    stats.reset()
    stats.update(verify_lens, num_accepted, request_ids)
    return stats.read()


def check_stats(arguments, report, tame) -> None:
    lengths, slots = arguments["verify_lens"], arguments["request_ids"]
    counted = slice(None) if slots is None else slots >= 0
    require(report.steps == lengths[counted].numel(), "steps", report.steps)
    require(report.drafted == int(lengths[counted].sum()), "drafted", report.drafted)
    accepted = int(arguments["num_accepted"][counted].sum())
    require(report.accepted == accepted, "accepted", report.accepted)


@builds("draft_capacity")
def draft_capacity(source: Source) -> Call:
    batch = source.size(0, 4)
    limits = [source.integers(-3, 50, batch, dtype=source.pick(INTEGERS)) for _ in range(2)]
    if source.chance(0.3):
        limits[0] = [None if v < 9 else v for v in limits[0].tolist()]
    arguments = {
        "context_left": limits[0],
        "output_left": source.maybe(limits[1], 0.7),
        "num_drafts": source.size(0, 8),
    }
    return Call("draft_capacity", verify.draft_capacity, arguments, check_capacity)


def check_capacity(arguments, capacity, tame) -> None:
    given = arguments["context_left"]
    given = arguments["output_left"] if given is None else given
    require_shape(capacity, (len(given),), torch.int32, "capacity")
    if not capacity.is_meta:
        most = arguments["num_drafts"]
        require(bool(((capacity >= 0) & (capacity <= max(most, 0))).all()), capacity.tolist())
