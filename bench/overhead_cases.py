"""Every operator on tiny inputs, as `bench_overhead.py` calls it."""

import dataclasses
from collections.abc import Callable

import torch

from dspark_ext import attention, decoder, draft, formats, linear, moe, sampling, verify


@dataclasses.dataclass
class Case:
    """`make(rows)`: a call for so many rows (requests, tokens); 0 computes nothing."""

    name: str
    make: Callable[[int], Callable[[], object]]


def ids(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64)


def starts(rows: int, each: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.arange(rows + 1, dtype=dtype) * each


def make_sampling() -> list[Case]:
    width, drafts = 16, 3

    def law(rows):
        return {"temperature": torch.ones(rows), "seeds": ids(rows), "positions": ids(rows)}

    def rejection(rows, tokens, draft_logits=None, **more):
        logits = torch.zeros(rows * (drafts + 1), width)
        arguments = {"query_start_loc": starts(rows, drafts + 1), **law(rows), **more}
        return lambda: sampling.rejection_sample(logits, tokens, draft_logits, **arguments)

    def plain(rows, **more):
        return rejection(rows, ids(rows, drafts), **more)

    def with_drafts(rows):
        made = markov(rows)()
        return rejection(rows, made.token_ids, made.logits, draft_statistics=made.statistics)

    def filtered(rows):
        filters = {"top_k": ids(rows) * 3, "top_p": torch.ones(rows), "min_p": torch.zeros(rows)}
        return plain(rows, **filters)

    def written(rows):
        return plain(rows, out=plain(rows)())

    def acceptance(rows):
        tokens, logits = ids(rows, drafts), torch.zeros(rows * (drafts + 1), width)
        start, temperature = starts(rows, drafts + 1), torch.ones(rows)
        return lambda: sampling.block_acceptance(
            logits, tokens, query_start_loc=start, temperature=temperature
        )

    def probs(rows):
        logits, temperature = torch.zeros(rows, width), torch.ones(rows)
        return lambda: sampling.target_probs(logits, temperature=temperature)

    def sample(rows):
        logits, arguments = torch.zeros(rows, width), law(rows)
        return lambda: sampling.sample(logits, **arguments)

    return [
        Case("target_probs", probs),
        Case("sample", sample),
        Case("rejection_sample", plain),
        Case("rejection_sample, filters", filtered),
        Case("rejection_sample, draft logits and statistics", with_drafts),
        Case("rejection_sample, out", written),
        Case("block_acceptance", acceptance),
    ]


def markov(rows: int) -> Callable[[], draft.DraftOutput]:
    base, w1, w2 = torch.zeros(rows, 3, 16), torch.zeros(16, 4), torch.zeros(16, 4)
    per_request = {"temperature": torch.ones(rows), "seeds": ids(rows), "positions": ids(rows)}
    anchor = ids(rows)
    return lambda: draft.markov_sample(base, anchor, w1, w2, **per_request)


def make_draft() -> list[Case]:
    def step(rows):
        base, anchor = torch.zeros(rows, 16), ids(rows)
        w1, w2 = torch.zeros(16, 4), torch.zeros(16, 4)
        return lambda: draft.markov_logits(base, anchor, w1, w2)

    def statistics(rows):
        logits, temperature = torch.zeros(rows, 16), torch.ones(rows)
        return lambda: draft.row_statistics(logits, temperature)

    def draw(rows):
        logits = torch.zeros(rows, 16)
        found = draft.row_statistics(logits, torch.ones(rows))
        seeds, positions = ids(rows), ids(rows)
        return lambda: draft.draw_shard(logits, 0, found, seeds=seeds, positions=positions, slot=0)

    def confidence(rows):
        hidden, embed = torch.zeros(rows, 3, 8), torch.zeros(rows, 3, 4)
        weight, bias, temperatures = torch.zeros(12), torch.zeros(1), torch.ones(3)
        return lambda: draft.confidence(hidden, embed, weight, bias, temperatures)

    def calibrate(rows):
        logits, temperatures = torch.zeros(rows, 3), torch.ones(3)
        return lambda: draft.calibrate(logits, temperatures)

    return [
        Case("markov_sample", markov),
        Case("markov_logits", step),
        Case("row_statistics", statistics),
        Case("draw_shard", draw),
        Case("confidence", confidence),
        Case("calibrate", calibrate),
    ]


def make_verify() -> list[Case]:
    drafts = 3

    def fixed(rows):
        capacity = torch.full((rows,), drafts, dtype=torch.int32)
        return lambda: verify.schedule(None, mode="fixed", capacity=capacity, num_drafts=drafts)

    def early_stop(rows):
        confidence = torch.full((rows, drafts), 0.9)
        cost = torch.arange(1, 20, dtype=torch.float64)
        return lambda: verify.schedule(confidence, cost=cost)

    def pack(rows):
        chosen = fixed(rows)()
        anchor, tokens, lens = ids(rows), ids(rows, drafts), ids(rows)
        size = rows * (drafts + 1)
        return lambda: verify.pack(anchor, tokens, lens, chosen, max_rows=size)

    def unpack(rows):
        packed, values = pack(rows)(), torch.zeros(rows * (drafts + 1))
        return lambda: verify.unpack(values, packed)

    def commit(rows):
        packed, lens = pack(rows)(), ids(rows)
        none = torch.zeros(rows, dtype=torch.int32)
        output = sampling.RejectionOutput(none, none, none, ids(rows), none, None)
        return lambda: verify.commit(output, packed, lens)

    def count(rows):
        stats = verify.AcceptanceStats(rows, drafts)
        lens = torch.full((rows,), drafts, dtype=torch.int32)
        accepted = torch.ones(rows, dtype=torch.int32)
        return lambda: stats.update(lens, accepted)

    return [
        Case("schedule, fixed", fixed),
        Case("schedule, early stop", early_stop),
        Case("pack", pack),
        Case("unpack", unpack),
        Case("commit", commit),
        Case("accumulate_stats", count),
    ]


def make_moe() -> list[Case]:
    experts, k, width = 4, 2, 8

    def choices(rows):
        return torch.arange(rows * k, dtype=torch.int32).reshape(rows, k) % experts

    def planned(rows):
        return moe.plan(choices(rows), experts, tile_rows=16)

    def route(rows):
        logits = torch.zeros(rows, experts)
        return lambda: moe.route(logits, k)

    def plan(rows):
        chosen = choices(rows)
        return lambda: moe.plan(chosen, experts, tile_rows=16)

    def permute(rows):
        x, dispatch = torch.zeros(rows, width), planned(rows)
        return lambda: moe.permute(x, dispatch)

    def combine(rows):
        y, dispatch, weights = torch.zeros(rows * k, width), planned(rows), torch.ones(rows, k)
        return lambda: moe.combine(y, dispatch, weights)

    def gemm(rows):
        x, weight, dispatch = torch.zeros(rows, width), torch.zeros(4, 4, width), planned(rows)
        return lambda: moe.grouped_gemm(x, weight, dispatch)

    def swiglu(rows):
        x = torch.zeros(rows, width)
        return lambda: moe.swiglu(x)

    return [
        Case("route", route),
        Case("plan", plan),
        Case("permute", permute),
        Case("combine", combine),
        Case("grouped_gemm", gemm),
        Case("swiglu", swiglu),
    ]


def make_others() -> list[Case]:
    def encode(rows):
        values = torch.zeros(rows, 8)
        return lambda: formats.encode(values, "fp8_e4m3")

    def decode(rows):
        codes = torch.zeros(rows, 8, dtype=torch.uint8)
        return lambda: formats.decode(codes, "fp8_e4m3")

    def dequantize(rows):
        codes = torch.zeros(rows, 8, dtype=torch.uint8)
        scales = torch.ones(1 if rows else 0, 1)
        return lambda: formats.dequantize(codes, scales, "fp8_e4m3")

    def pack(rows):
        weight = torch.zeros(rows, 8)
        return lambda: linear.pack_linear(weight)

    def apply(rows):
        x, bias = torch.zeros(rows, 8), torch.zeros(4)
        packed = linear.pack_linear(torch.zeros(4, 8))
        return lambda: linear.linear(x, packed, bias, 4)

    def attend(rows):
        query = torch.zeros(rows, 2, 8)
        keys, values = torch.zeros(2, 4, 1, 8), torch.ones(2, 4, 1, 8)
        slots = torch.arange(rows, dtype=torch.int32)
        first, end = torch.zeros_like(slots), torch.ones_like(slots)
        return lambda: attention.attention(query, keys, values, slots, first, end, 1.0)

    def norm(rows):
        x, weight = torch.zeros(rows, 8), torch.ones(8)
        return lambda: decoder.rms_norm(x, weight, 1e-5)

    def silu(rows):
        x = torch.zeros(rows, 16)
        return lambda: decoder.silu_mul(x)

    def routed(rows):
        x, logits, bias = torch.zeros(rows, 16), torch.zeros(rows, 4), torch.zeros(4)
        sizes = {"expert_size": 2, "top_k": 2, "scaling": 1.0, "limit": 10.0}
        return lambda: decoder.routed_silu_mul(x, logits, bias, **sizes)

    def rope(rows):
        qkv, cos, sin = torch.zeros(rows, 4, 8), torch.ones(4, 8), torch.zeros(4, 8)
        positions, slots = torch.zeros(rows, dtype=torch.int64), torch.arange(rows).int()
        keys, values = torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 8)
        arguments = (qkv, cos, sin, positions, slots, keys, values)
        return lambda: decoder.rope_store(*arguments, num_heads=2)

    return [
        Case("encode", encode),
        Case("decode", decode),
        Case("dequantize", dequantize),
        Case("pack_linear", pack),
        Case("linear", apply),
        Case("attention", attend),
        Case("rms_norm", norm),
        Case("silu_mul", silu),
        Case("routed_silu_mul", routed),
        Case("rope_store", rope),
    ]


def make_cases() -> list[Case]:
    return [*make_sampling(), *make_verify(), *make_draft(), *make_moe(), *make_others()]
