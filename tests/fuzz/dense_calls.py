"""Calls of dspark_ext.linear, .attention, .decoder and .formats."""

from __future__ import annotations

import torch
from calls import FLOATS, Call, Source, builds, has_nan, require, require_shape

from dspark_ext import attention, decoder, formats, linear

WEIGHTS = (torch.float32, torch.bfloat16)


def check_numbers(out, shape, dtype, tame) -> None:
    require_shape(out, shape, dtype, "out")
    require(out.is_meta or not tame or not has_nan(out), "NaN of tame numbers")


@builds("pack_linear")
def pack_linear(source: Source) -> Call:
    weight = source.floats(source.size(0, 70), source.size(0, 9), dtype=source.pick(WEIGHTS))
    return Call("pack_linear", linear.pack_linear, {"weight": weight}, check_packed)


def check_packed(arguments, out, tame) -> None:
    weight = arguments["weight"]
    rows, columns = weight.shape
    check_numbers(out, (-(-rows // 32), columns, 32), weight.dtype, tame)
    if not out.is_meta:
        kind = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[weight.dtype]
        wanted = weight.detach().resolve_neg().contiguous().view(-1).view(kind)
        got = out.view(-1).view(kind)
        padding = got.new_zeros(len(got) - len(wanted))
        wanted = torch.cat([wanted, padding]).sort().values
        require(torch.equal(got.sort().values, wanted), "the weight is not what was packed")


@builds("linear", 2)
def apply_linear(source: Source) -> Call:
    rows, columns = source.size(0, 70), source.size(0, 9)
    lead = [(), (3,), (0,), (2, 2)][source.size(0, 3)]
    weight = linear.pack_linear(source.floats(rows, columns, dtype=source.pick(WEIGHTS)))
    arguments = {
        "x": source.floats(*lead, columns, dtype=source.pick(WEIGHTS)),
        "packed_weight": weight,
        "bias": source.maybe(lambda: source.floats(rows)),
        "out_features": rows,
    }
    return Call("linear", linear.linear, arguments, check_linear)


def check_linear(arguments, out, tame) -> None:
    x = arguments["x"]
    check_numbers(out, (*x.shape[:-1], arguments["out_features"]), torch.float32, tame)


@builds("attention", 2)
def attend(source: Source) -> Call:
    rows, groups, heads = source.size(0, 5), source.size(1, 3), source.size(1, 3)
    width, slots, length = source.pick((1, 3, 8, 16)), source.size(1, 3), source.size(1, 20)
    cache = (slots, length, heads, width)
    dtype = source.pick(WEIGHTS)
    end = source.integers(0, length, rows, dtype=torch.int32)
    arguments = {
        "query": source.floats(rows, heads * groups, width),
        "key_cache": source.floats(*cache, dtype=dtype),
        "value_cache": source.floats(*cache, dtype=dtype),
        "slots": source.integers(-1, slots - 1, rows, dtype=torch.int32),
        "key_start": (end * source.uniform(rows)).int(),
        "key_end": end,
        "scale": width**-0.5,
    }
    return Call("attention", attention.attention, arguments, check_attention)


def check_attention(arguments, out, tame) -> None:
    check_numbers(out, arguments["query"].shape, torch.float32, tame)
    if out.is_meta:
        return
    empty = (arguments["slots"] < 0) | (arguments["key_start"] >= arguments["key_end"])
    require(bool((out[empty] == 0).all()), "rows without keys")


# ---- decoder ------------------------------------------------------------------------------------


@builds("rms_norm")
def rms_norm(source: Source) -> Call:
    width, lead = source.size(0, 20), [(), (3,), (2, 2)][source.size(0, 2)]
    arguments = {"x": source.floats(*lead, width), "weight": source.floats(width), "eps": 1e-6}
    return Call("rms_norm", decoder.rms_norm, arguments, check_like_x)


def check_like_x(arguments, out, tame) -> None:
    check_numbers(out, arguments["x"].shape, torch.float32, tame and arguments["eps"] > 0)


@builds("silu_mul")
def silu_mul(source: Source) -> Call:
    arguments = {"gate_up": source.floats(source.size(0, 4), 2 * source.size(0, 20))}
    return Call("silu_mul", decoder.silu_mul, arguments, check_halves)


def check_halves(arguments, out, tame) -> None:
    rows, width = arguments["gate_up"].shape
    check_numbers(out, (rows, width // 2), torch.float32, tame)


@builds("routed_silu_mul")
def routed_silu_mul(source: Source) -> Call:
    rows, experts, size, shared = (source.size(*r) for r in ((0, 4), (1, 6), (0, 5), (0, 3)))
    arguments = {
        "gate_up": source.floats(rows, 2 * (experts * size + shared)),
        "router_logits": source.floats(rows, experts),
        "router_bias": source.floats(experts),
        "expert_size": size,
        "top_k": source.size(1, experts),
        "scaling": 1.5,
        "limit": 10.0,
    }
    return Call("routed_silu_mul", decoder.routed_silu_mul, arguments, check_routed)


def check_routed(arguments, out, tame) -> None:
    check_halves(arguments, out, tame and arguments["limit"] == arguments["limit"])


@builds("rope_store")
def rope_store(source: Source) -> Call:
    rows, heads, kv_heads = source.size(0, 4), source.size(0, 3), source.size(1, 2)
    width, slots, length = 2 * source.size(1, 6), source.size(1, 3), source.size(1, 9)
    table = source.size(1, 12)
    arguments = {
        "qkv": source.floats(rows, heads + 2 * kv_heads, width),
        "cos": source.floats(table, width, scale=0.5),
        "sin": source.floats(table, width, scale=0.5),
        "positions": source.integers(0, min(table, length) - 1, rows),
        "slots": source.integers(0, slots - 1, rows, dtype=torch.int32),
        "key_cache": source.floats(slots, length, kv_heads, width),
        "value_cache": source.floats(slots, length, kv_heads, width),
        "num_heads": heads,
        "query_norm": source.maybe(lambda: source.floats(width)),
        "key_norm": source.maybe(lambda: source.floats(width)),
        "eps": 1e-6,
    }
    return Call(
        "rope_store", decoder.rope_store, arguments, check_rope, ("key_cache", "value_cache")
    )


def check_rope(arguments, out, tame) -> None:
    rows, _, width = arguments["qkv"].shape
    tame = tame and arguments["eps"] > 0
    check_numbers(out, (rows, arguments["num_heads"], width), torch.float32, tame)


# ---- formats ------------------------------------------------------------------------------------

CODES = ("fp8_e4m3", "fp8_e4m3fnuz", "fp4_e2m1", "e8m0")


@builds("decode")
def decode(source: Source) -> Call:
    lead = [(), (3,), (2, 2)][source.size(0, 2)]
    codes = source.integers(0, 255, *lead, source.size(0, 20), dtype=torch.uint8)
    arguments = {"codes": codes, "format": source.pick(CODES)}
    return Call("decode", formats.decode, arguments, check_decoded)


def check_decoded(arguments, out, tame) -> None:
    codes, format = arguments["codes"], arguments["format"]
    twice = 2 if format == "fp4_e2m1" else 1
    require_shape(out, (*codes.shape[:-1], twice * codes.shape[-1]), torch.float32, "numbers")
    if not out.is_meta and format != "fp4_e2m1":
        bits = codes.contiguous().view(torch.uint8).long()
        nan = {"fp8_e4m3": bits & 127 == 127, "fp8_e4m3fnuz": bits == 128, "e8m0": bits == 255}
        require(torch.equal(out.isnan(), nan[format]), "codes without a number")


@builds("encode")
def encode(source: Source) -> Call:
    lead = [(), (3,), (2, 2)][source.size(0, 2)]
    values = source.floats(*lead, 2 * source.size(0, 20), scale=source.pick((0.01, 2.0, 300.0)))
    arguments = {"values": values, "format": source.pick(CODES[:3])}
    return Call("encode", formats.encode, arguments, check_encoded)


def check_encoded(arguments, codes, tame) -> None:
    values, format = arguments["values"], arguments["format"]
    half = 2 if format == "fp4_e2m1" else 1
    require_shape(codes, (*values.shape[:-1], values.shape[-1] // half), torch.uint8, "codes")
    if codes.is_meta:
        return
    back = formats.decode(codes, format)
    largest = formats.LARGEST["mxfp4" if half == 2 else format]
    nan = values.isnan()
    if half == 1:
        require(torch.equal(back.isnan(), nan), "NaN")
    clamped = values.clamp(-largest, largest)
    near = (back - clamped).abs() <= clamped.abs() / (4 if half == 2 else 16) + 0.25
    require(bool((near | nan).all()), "not the nearest", back.tolist(), values.tolist())


def coded_weight(source: Source):
    """(codes, scales, format, block)"""
    format = source.pick(formats.FORMATS)
    lead = [(), (2,), (0,)][source.size(0, 2)]
    shape = (*lead, source.size(1, 9), 2 * source.size(1, 40))
    block = (1, 32) if format == "mxfp4" else source.pick(((128, 128), (32, 32), (2, 6)))
    options = (torch.float8_e8m0fnu,)
    if format != "mxfp4":
        options = formats.SCALE_DTYPES
    values = source.floats(*shape)
    codes, scales = formats.quantize(values, format, block=block, scale_dtype=source.pick(options))
    return codes, scales, format, block


@builds("dequantize")
def dequantize(source: Source) -> Call:
    codes, scales, format, block = coded_weight(source)
    arguments = {
        "weight": codes, "scale": scales, "format": format, "block": block,
        "dtype": source.pick(FLOATS),
    }  # fmt: skip
    return Call("dequantize", formats.dequantize, arguments, check_dequantized)


def check_dequantized(arguments, out, tame) -> None:
    codes = arguments["weight"]
    twice = 2 if arguments["format"] == "mxfp4" else 1
    shape = (*codes.shape[:-1], twice * codes.shape[-1])
    require_shape(out, shape, arguments["dtype"], "weights")
    require(out.is_meta or not tame or not has_nan(out), "NaN of tame numbers")


@builds("quantize")
def quantize(source: Source) -> Call:
    format = source.pick(formats.FORMATS)
    block = (1, 32) if format == "mxfp4" else source.pick((None, (32, 32), (3, 5)))
    options = (torch.float8_e8m0fnu,) if format == "mxfp4" else formats.SCALE_DTYPES
    shape = (*[(), (2,), (0,)][source.size(0, 2)], source.size(0, 9), 2 * source.size(0, 40))
    arguments = {
        "weight": source.floats(*shape, dtype=source.pick(FLOATS)), "format": format,
        "block": block, "scale_dtype": source.pick(options),
    }  # fmt: skip
    return Call("quantize", formats.quantize, arguments, check_quantized, ops=("formats",))


def check_quantized(arguments, out, tame) -> None:
    codes, scales = out
    weight, format, block = arguments["weight"], arguments["format"], arguments["block"]
    back = formats.dequantize(codes, scales, format, block=block)
    require_shape(back, weight.shape, torch.float32, "what comes back")
    require(not has_nan(back), "NaN of finite numbers")
    if tame:
        error = (back - weight.detach().float()).abs()
        require(bool((error <= weight.abs().max() / 3 + 1e-30).all()) if error.numel() else True)
