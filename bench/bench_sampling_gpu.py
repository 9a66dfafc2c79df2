"""rejection_sample on a GPU against eager torch there, and against the copy bandwidth.

python bench/bench_sampling_gpu.py [--only B=32] [--json build/sampling_gpu.json]

Times are of replayed graphs between two events, on inputs taken in turns that exceed the caches.
The floor is every logit once plus one residual row of target and draft per request; the percentage
is floor over time over the bandwidth of a large copy measured in the same run.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import sys

import eager_sampling
import torch
from bench_sampling import NUM_DRAFTS, VOCAB, filters_of, make_inputs

import dspark_ext
from dspark_ext.sampling import rejection_sample

GPU = "cuda"
REPEATS = 30
CACHE_BYTES = 256 << 20
CASES = list(
    itertools.product(
        (1, 8, 32, 128),
        ("token", "block"),
        ("unfiltered", "top_k=50 top_p=.95"),
        (torch.bfloat16, torch.float32),
    )
)


def seconds_of(function, count: int) -> float:
    """Of one of `count` calls queued one after the other."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / count


def median_seconds(functions: list, repeats: int = REPEATS) -> float:
    turns = itertools.cycle(functions)
    for function in functions:
        function()
    torch.cuda.synchronize()
    return statistics.median(seconds_of(next(turns), 1) for _ in range(repeats))


def copy_bandwidth() -> float:
    """Bytes per second, reads and writes counted."""
    source = torch.ones(256 << 20, device=GPU)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds([lambda: target.copy_(source)])


def captured(function):
    """Replays `function` as a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def call_of(inputs: tuple, method: str, filters: dict):
    target, drafts, draft_logits, uniforms = inputs
    batch, rows, vocab = target.shape
    fixed = {
        "query_start_loc": torch.arange(batch + 1, dtype=torch.int32, device=GPU) * rows,
        "temperature": torch.full((batch,), 0.8, device=GPU),
        "seeds": torch.arange(batch, device=GPU),
        "positions": torch.full((batch,), 17, device=GPU),
        **filters,
    }
    flat = target.view(batch * rows, vocab)
    return lambda: rejection_sample(
        flat, drafts, draft_logits, method=method, uniforms=uniforms, **fixed
    )


def measure(batch: int, method: str, filters: str, dtype: torch.dtype, bandwidth: float) -> dict:
    row_bytes = VOCAB * dtype.itemsize
    floor = batch * (2 * NUM_DRAFTS + 1 + 2) * row_bytes
    sets = [
        tuple(x.to(GPU) for x in make_inputs(batch, dtype, seed))
        for seed in range(max(1, min(8, CACHE_BYTES // floor + 1)))
    ]
    chosen = {
        key: value.to(GPU)
        for key, value in filters_of(
            "unfiltered" if filters == "unfiltered" else "filtered", batch
        ).items()
    }
    calls = [call_of(inputs, method, chosen) for inputs in sets]
    seconds = median_seconds([captured(call) for call in calls])
    row = {
        "case": f"{method} {filters} {str(dtype)[6:]} B={batch}",
        "microseconds": seconds * 1e6,
        "microseconds_without_graph": median_seconds(calls) * 1e6,
        "gb_per_s": floor / seconds / 1e9,
        "percent_of_copy": 100 * floor / seconds / bandwidth,
    }
    if batch <= 32:  # eager torch needs several float32 copies of everything
        eager = [
            lambda x=x: eager_sampling.rejection_sample(
                *x, method=method, temperature=0.8, **chosen
            )
            for x in sets
        ]
        row["eager_microseconds"] = median_seconds(eager, 9) * 1e6
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--json", type=pathlib.Path, help="write the rows")
    options = parser.parse_args()
    if not torch.cuda.is_available() or not dspark_ext.capabilities("cuda")["available"]:
        print("bench_sampling_gpu: no GPU that this build serves")
        return
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e9:,.0f} GB/s, V={VOCAB}\n")
    print("| case | us | without graph | GB/s | % of copy | eager us | times faster |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    rows = []
    for batch, method, filters, dtype in CASES:
        if options.only not in f"{method} {filters} {str(dtype)[6:]} B={batch}":
            continue
        row = measure(batch, method, filters, dtype, bandwidth)
        eager = row.get("eager_microseconds")
        ratio = f"{eager / row['microseconds']:.1f}" if eager else "-"
        print(
            f"| {row['case']} | {row['microseconds']:.1f} | {row['microseconds_without_graph']:.1f}"
            f" | {row['gb_per_s']:.0f} | {row['percent_of_copy']:.0f} "
            f"| {eager and round(eager) or '-'} | {ratio} |",
            flush=True,
        )
        rows.append(row)
    if options.json:
        result = {"device": torch.cuda.get_device_name(), "copy_gb_per_s": bandwidth / 1e9}
        options.json.write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
