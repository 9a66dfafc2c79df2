"""Calls of dspark_ext.moe."""

from __future__ import annotations

import torch
from calls import FLOATS, INTEGERS, Call, Source, builds, has_nan, require, require_shape
from draft_calls import group_of_one

from dspark_ext import formats, moe

FIELDS = ("inverse", "sorted", "tile_expert", "tile_row", "tile_size", "tiles")


@builds("route", 2)
def route(source: Source) -> Call:
    tokens, experts = source.size(0, 4), source.pick((1, 2, 8, 16, 33))
    k = source.size(1, min(experts, 6))
    arguments = {
        "logits": source.floats(tokens, experts, dtype=source.pick(FLOATS)),
        "k": k,
        "scoring": source.pick(("softmax", "sigmoid", "sqrtsoftplus")),
        "bias": source.maybe(lambda: source.floats(experts, scale=0.1)),
        "num_groups": None,
        "topk_groups": None,
        "renormalize": source.chance(0.5),
        "scale": source.pick((1.0, 2.5)),
        "hash_ids": None,
        "hash_table": None,
        "shared_expert_weight": source.pick((None, 1.0)),
        "return_status": True,
    }
    if experts in (8, 16) and source.chance(0.4):
        arguments |= {"num_groups": 4, "topk_groups": source.size(-(-k * 4 // experts), 4)}
        arguments["topk_groups"] = max(arguments["topk_groups"], 1)
    elif source.chance(0.2):
        arguments["bias"] = None
        arguments["hash_ids"] = source.integers(0, 8, tokens, dtype=source.pick(INTEGERS))
        arguments["hash_table"] = source.integers(0, experts - 1, 9, k, dtype=torch.int32)
    return Call("route", moe.route, arguments, check_route)


def check_route(arguments, out, tame) -> None:
    tokens, experts = arguments["logits"].shape
    shared = arguments["shared_expert_weight"] is not None
    slots = arguments["k"] + shared
    if not arguments["return_status"]:
        require(len(out) == 2, "two tensors")
        return
    require_shape(out.ids, (tokens, slots), torch.int32, "ids")
    require_shape(out.weights, (tokens, slots), torch.float32, "weights")
    require_shape(out.status, (tokens,), torch.int32, "status")
    if out.ids.is_meta:
        return
    require(bool(((out.ids >= 0) & (out.ids < experts + shared)).all()), "ids", out.ids.tolist())
    chosen = out.ids[:, : arguments["k"]]
    if arguments["hash_ids"] is None and chosen.shape[1]:
        sorted_ids = chosen.sort(1).values
        require(bool((sorted_ids.diff(dim=1) > 0).all()), "an expert twice", out.ids.tolist())
    is_number = torch.isfinite(torch.tensor(float(arguments["scale"]))) and (
        not shared or arguments["shared_expert_weight"] == arguments["shared_expert_weight"]
    )
    require(not is_number or not has_nan(out.weights), "NaN weights")
    dead = (out.status & moe.DEAD_ROW) != 0
    require(bool((out.weights[dead] == 0).all()), "weights of dead rows")
    nan_rows = torch.isnan(arguments["logits"]).any(1)
    require(bool((out.status[nan_rows] & 1).all()), "NaN rows without their flag")


def plan_arguments(source: Source, tiles=None) -> dict:
    tokens, k, experts = source.size(0, 6), source.size(0, 4), source.size(1, 9)
    ids = source.integers(-1, experts, tokens, k, dtype=source.pick(INTEGERS))
    return {
        "ids": ids,
        "num_experts": experts,
        "alignment": source.pick((1, 1, 4, 16)),
        "expert_map": source.maybe(
            lambda: source.integers(-1, experts, source.size(0, 12), dtype=torch.int32), 0.2
        ),
        "tile_rows": tiles or source.pick((None, 1, 4, 64)),
    }


@builds("plan", 2)
def plan(source: Source) -> Call:
    return Call(
        "plan", moe.plan, plan_arguments(source), check_plan,
        at_most=("alignment", "num_experts", "tile_rows"),
    )  # fmt: skip


def check_plan(arguments, out, tame) -> None:
    tokens, k = arguments["ids"].shape
    experts, slots = arguments["num_experts"], tokens * k
    room = moe.plan_capacity(tokens, k, experts, arguments["alignment"], arguments["tile_rows"])
    require_shape(out.counts, (experts,), torch.int64, "counts")
    require_shape(out.offsets, (experts + 1,), torch.int64, "offsets")
    require_shape(out.sorted, (room.rows,), torch.int64, "sorted")
    require_shape(out.inverse, (tokens, k), torch.int64, "inverse")
    require_shape(out.tile_expert, (room.tiles,), torch.int32, "tile_expert")
    require_shape(out.tile_row, (room.tiles,), torch.int64, "tile_row")
    require_shape(out.tile_size, (room.tiles,), torch.int32, "tile_size")
    if out.sorted.is_meta:
        return
    inverse = out.inverse.reshape(-1)
    here = inverse >= 0
    require(int(out.counts.sum()) == int(here.sum()), "counts", out.counts.tolist())
    require(bool((inverse < room.rows).all()), "inverse", inverse.tolist())
    require(int(out.total) == int(out.offsets[-1]) <= room.rows, "total", int(out.total))
    require(torch.equal(out.sorted[inverse[here]], here.nonzero()[:, 0]), "sorted, inverse")
    require(bool(((out.sorted >= 0) & (out.sorted <= slots)).all()), "sorted")
    require(int((out.sorted < slots).sum()) == int(here.sum()), "rows that hold a slot")
    if arguments["tile_rows"] is not None:
        require(int(out.tile_size.sum()) == int(here.sum()), "tile_size", out.tile_size.tolist())


@builds("plan_capacity")
def plan_capacity(source: Source) -> Call:
    arguments = {
        "num_tokens": source.size(0, 99), "k": source.size(0, 9),
        "num_experts": source.size(1, 99), "alignment": source.size(1, 64),
        "tile_rows": source.maybe(64),
    }  # fmt: skip
    return Call("plan_capacity", moe.plan_capacity, arguments, check_room)


def check_room(arguments, out, tame) -> None:
    slots = arguments["num_tokens"] * arguments["k"]
    require(out.rows >= slots and out.rows % arguments["alignment"] == 0, "rows", out)


@builds("permute")
def permute(source: Source) -> Call:
    p = moe.plan(**plan_arguments(source))
    x = source.floats(len(p.inverse), source.size(0, 20), dtype=source.pick(FLOATS))
    if source.chance(0.2):
        x = (x.float() * 9).to(source.pick((torch.int64, torch.uint8, torch.float8_e4m3fn)))
    return Call("permute", moe.permute, {"x": x, "plan": p}, check_permute, words=FIELDS)


def check_permute(arguments, out, tame) -> None:
    p, x = arguments["plan"], arguments["x"]
    require_shape(out, (len(p.sorted), x.shape[1]), x.dtype, "rows")
    if tame and not out.is_meta and out.dtype in FLOATS:
        require(not has_nan(out), "NaN of tame numbers")


@builds("combine")
def combine(source: Source) -> Call:
    p = moe.plan(**plan_arguments(source))
    width, dtype = source.size(0, 20), source.pick(FLOATS)
    tokens, k = p.inverse.shape
    arguments = {
        "y": source.floats(len(p.sorted), width, dtype=dtype),
        "plan": p,
        "weights": source.uniform(tokens, k).to(source.pick(FLOATS)),
        "shared": source.maybe(lambda: source.floats(tokens, width, dtype=dtype), 0.4),
        "residual": source.maybe(lambda: source.floats(tokens, width, dtype=dtype), 0.4),
    }
    return Call("combine", moe.combine, arguments, check_combine, words=FIELDS)


def check_combine(arguments, out, tame) -> None:
    y, p = arguments["y"], arguments["plan"]
    require_shape(out, (len(p.inverse), y.shape[1]), y.dtype, "out")
    if out.is_meta:
        return
    require(not tame or not has_nan(out), "NaN of tame numbers")
    nowhere = (p.inverse < 0).all(1)
    if arguments["shared"] is None and arguments["residual"] is None:
        require(bool((out[nowhere] == 0).all()), "a token that is nowhere")


def weight_kind(source: Source):
    """(format, block, dtype)"""
    format = source.pick((None, None, "fp8_e4m3", "fp8_e4m3fnuz", "mxfp4"))
    block = source.pick(((128, 128), (32, 32), (8, 4)))
    return format, (1, 32) if format == "mxfp4" else block, source.pick(FLOATS)


def expert_weight(source: Source, kind, *shape: int):
    """(weight, scales, format, block)"""
    format, block, dtype = kind
    values = source.floats(*shape, scale=0.5)
    if format is None:
        return values.to(dtype), None, None, None
    return *formats.quantize(values, format, block=block), format, block


@builds("grouped_gemm", 3)
def grouped_gemm(source: Source) -> Call:
    p = moe.plan(**plan_arguments(source, tiles=source.pick((1, 4, 64))))
    rows, columns = 2 * source.size(0, 12), 2 * source.size(1, 24)
    weight, scales, format, block = expert_weight(
        source, weight_kind(source), len(p.counts), rows, columns
    )
    gather = source.chance(0.5)
    activation = source.pick((None, "swiglu"))
    arguments = {
        "x": source.floats(
            len(p.inverse) if gather else len(p.sorted), columns, dtype=source.pick(FLOATS)
        ),
        "weight": weight,
        "plan": p,
        "scales": scales,
        "format": format,
        "block": block,
        "layout": "rows",
        "size": None,
        "gather": gather,
        "dtype": source.pick((None, *FLOATS)),
        "activation": activation,
        "interleaved": activation is not None and source.chance(0.5),
        "limit": source.maybe(10.0, 0.3) if activation else None,
        "exact": source.chance(0.4),
    }
    return Call(
        "grouped_gemm", moe.grouped_gemm, arguments, check_gemm, words=FIELDS, ops=("formats",)
    )


def check_gemm(arguments, out, tame) -> None:
    require(out.shape[0] == len(arguments["plan"].sorted), "rows", list(out.shape))
    if arguments["dtype"] is None:
        require(out.dtype == arguments["x"].dtype, "dtype", out.dtype)
    require(out.is_meta or not tame or not has_nan(out), "NaN of tame numbers")


@builds("swiglu")
def swiglu(source: Source) -> Call:
    arguments = {
        "gate_up": source.floats(
            source.size(0, 5), 2 * source.size(0, 20), dtype=source.pick(FLOATS)
        ),
        "limit": source.pick((None, 10.0)),
        "interleaved": source.chance(0.5),
    }
    return Call("swiglu", moe.swiglu, arguments, check_swiglu)


def check_swiglu(arguments, out, tame) -> None:
    rows, width = arguments["gate_up"].shape
    require_shape(out, (rows, width // 2), arguments["gate_up"].dtype, "out")
    require(out.is_meta or not tame or not has_nan(out), "NaN of tame numbers")


def layer_weights(source: Source, width: int, device: str = "cpu") -> moe.ExpertWeights:
    experts, inner = source.size(1, 5), 2 * source.size(1, 12)
    kind = weight_kind(source)
    w13, s13, format, block = expert_weight(source, kind, experts, 2 * inner, width)
    w2, s2, *_ = expert_weight(source, kind, experts, width, inner)
    weights = moe.ExpertWeights(w13, w2, s13, s2, format, block, source.chance(0.5))
    if source.chance(0.4):
        weights = moe.prepare_weights(weights, device)
    return weights


@builds("fused_moe", 2)
def fused_moe(source: Source) -> Call:
    width = 2 * source.size(1, 12)
    weights = layer_weights(source, width)
    tokens, k, experts = source.size(0, 5), source.size(0, 3), len(weights.w13)
    dtype = source.pick(FLOATS)
    fields = weights._asdict()
    arguments = {
        "x": source.floats(tokens, width, dtype=dtype),
        "ids": source.integers(-1, experts, tokens, k, dtype=source.pick(INTEGERS)),
        "weights": source.uniform(tokens, k).to(source.pick(FLOATS)),
        **fields,
        "num_experts": source.maybe(experts, 0.3),
        "expert_map": None,
        "swiglu_limit": source.maybe(10.0, 0.3),
        "residual": source.maybe(lambda: source.floats(tokens, width, dtype=dtype), 0.3),
        "exact": weights.layout == "rows" and source.chance(0.3),
    }
    return Call(
        "fused_moe", moe.fused_moe, arguments, check_layer, at_most=("num_experts",),
        ops=("plan", "grouped_gemm", "combine", "swiglu"),
        words=("weight", "scales", "size", "limit", "activation"),
    )  # fmt: skip


def check_layer(arguments, out, tame) -> None:
    x = arguments["x"]
    require_shape(out, x.shape, x.dtype, "out")
    require(out.is_meta or not tame or not has_nan(out), "NaN of tame numbers")


@builds("prepare_weights")
def prepare_weights(source: Source) -> Call:
    weights = layer_weights(source, 2 * source.size(1, 12), source.pick(("cpu", "cuda")))
    arguments = {"weights": weights, "device": source.pick(("cpu", "cuda"))}
    return Call(
        "prepare_weights", prepare_and_restore, arguments, check_prepared,
        ops=("restore_weights", "prepared_bytes", "formats"), words=("sizes",),
    )  # fmt: skip


def prepare_and_restore(weights, device):
    count = moe.prepared_bytes(weights, device)
    prepared = moe.prepare_weights(weights, device)
    return count, prepared, moe.restore_weights(weights), moe.restore_weights(prepared)


def check_prepared(arguments, out, tame) -> None:
    count, prepared, plain, restored = out
    tensors = [t for t in prepared if isinstance(t, torch.Tensor)]
    require(sum(t.numel() * t.element_size() for t in tensors) == count, "prepared_bytes", count)
    for name in ("w13", "w2", "w13_scales", "w2_scales"):
        a, b = getattr(plain, name), getattr(restored, name)
        if a is not None and a.is_floating_point() and a.dtype.itemsize > 1:
            a, b = a.resolve_neg(), b.resolve_neg()
        require((a is None) == (b is None), name)
        if a is None or a.is_meta:
            continue
        require(a.shape == b.shape and a.dtype == b.dtype, name, a.shape, b.shape)
        same = torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        require(same, name, "does not come back")


@builds("ExpertParallel")
def expert_parallel(source: Source) -> Call:
    experts, tokens, k = source.size(1, 6), source.size(0, 5), source.size(1, 3)
    capacity = source.maybe(tokens + 1, 0.4)
    arguments = {
        "parallel": moe.ExpertParallel(group_of_one(), experts, max_tokens=capacity),
        "x": source.floats(tokens, source.size(1, 8)),
        "ids": source.integers(-1, experts, tokens, k, dtype=source.pick(INTEGERS)),
        "weights": source.uniform(tokens, k),
    }
    return Call(
        "ExpertParallel", dispatch_and_combine, arguments, check_layer, fixed=("parallel",),
        ops=("plan", "permute", "combine"), words=(*FIELDS, "y"),
    )  # fmt: skip


def dispatch_and_combine(parallel, x, ids, weights):
    return parallel(x, ids, weights, moe.permute)
