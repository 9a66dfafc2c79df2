"""Bytes that a call of each function takes at most beside its arguments and its results, on a CPU:
measured in a process with counting_malloc.cpp preloaded; prints JSON.

`CALLS` is shared with test_memory.py, which has the limits that docs/api.md states.
"""

import ctypes
import json

import torch

from dspark_ext import attention, decoder, draft, formats, linear, moe, sampling, verify

B, K, V, T, E, D, N, TOP = 16, 5, 32_768, 512, 16, 256, 128, 2


def calls() -> dict:
    """name -> a call without arguments"""
    rows = torch.randn(B * (K + 1), V)
    drafts = torch.randn(B, K, V)
    ids = torch.randint(0, V, (B, K))
    starts = torch.arange(0, B * (K + 1) + 1, K + 1, dtype=torch.int32)
    law = {"temperature": torch.ones(B), "seeds": torch.arange(B), "positions": torch.arange(B)}
    filters = {"top_k": torch.full((B,), 50), "top_p": torch.full((B,), 0.9)}
    request = {"query_start_loc": starts, **law}
    w1, w2 = torch.randn(V, 64), torch.randn(V, 64)
    x, routed = torch.randn(T, D), torch.randint(0, E, (T, TOP))
    weights = torch.rand(T, TOP)
    w13, down = torch.randn(E, 2 * N, D), torch.randn(E, D, N)
    plan = moe.plan(routed, E, tile_rows=64)
    y = torch.randn(len(plan.sorted), D)
    packed = linear.pack_linear(torch.randn(1024, D))
    cache = torch.randn(4, 512, 2, 64)
    query = torch.randn(64, 8, 64)
    slots = torch.arange(64, dtype=torch.int32) // 16
    ends = torch.full((64,), 512, dtype=torch.int32)
    codes, scales = formats.quantize(torch.randn(512, 512), "fp8_e4m3")
    confidence = torch.rand(256, 8)
    schedule = verify.schedule(confidence, mode="fixed")
    big = torch.arange(256)
    return {
        "rejection_sample": lambda: sampling.rejection_sample(rows, ids, drafts, **request),
        "rejection_sample, filters": lambda: sampling.rejection_sample(
            rows, ids, drafts, **request, **filters
        ),
        "target_probs": lambda: sampling.target_probs(rows),
        "sample": lambda: sampling.sample(rows, seeds=1, positions=0),
        "markov_sample": lambda: draft.markov_sample(drafts, ids[:, 0], w1, w2, **law),
        "row_statistics": lambda: draft.row_statistics(rows, 1.0),
        "schedule": lambda: verify.schedule(confidence, mode="fixed"),
        "pack": lambda: verify.pack(big, big[:, None].expand(-1, 8), big, schedule, max_rows=2304),
        "route": lambda: moe.route(torch.zeros(1, E).expand(T, E).contiguous(), TOP),
        "plan": lambda: moe.plan(routed, E, tile_rows=64),
        "permute": lambda: moe.permute(x, plan),
        "combine": lambda: moe.combine(y, plan, weights),
        "grouped_gemm": lambda: moe.grouped_gemm(x, w13, plan),
        "fused_moe": lambda: moe.fused_moe(x, w13, down, routed, weights),
        "swiglu": lambda: moe.swiglu(y),
        "linear": lambda: linear.linear(x, packed, None, 1024),
        "attention": lambda: attention.attention(
            query, cache, cache, slots, torch.zeros_like(ends), ends, 0.125
        ),
        "silu_mul": lambda: decoder.silu_mul(y),
        "dequantize": lambda: formats.dequantize(codes, scales, "fp8_e4m3"),
    }


def sizes(value) -> int:
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, (tuple, list)):
        return sum(sizes(item) for item in value)
    return 0


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    counter = ctypes.CDLL(None)
    for name in ("counted_now", "counted_most"):
        getattr(counter, name).restype = ctypes.c_longlong
    found = {}
    for name, call in calls().items():
        for _ in range(2):
            call()
        before = counter.counted_now()
        counter.begin_counting()
        result = call()
        found[name] = counter.counted_most() - before - sizes(result)
        del result
    print(json.dumps(found))


if __name__ == "__main__":
    main()
