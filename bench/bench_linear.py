"""linear against torch's own and against prepacked oneDNN, shapes of SmolLM2-135M, one CPU thread.

python bench/bench_linear.py [--only 576x1536] [--markdown bench/results/linear_cpu.md]

Every implementation goes through enough copies of its weight to exceed the last-level cache twice,
so that weights come from memory as they do while decoding. The implementations take turns, repeat
by repeat; the time is the processor time of the calling thread, the least of all repeats, per call.
"% of read" is the speed at which M=1 reads the weight, against a thread that only reads.
"""

import argparse
import datetime
import pathlib
import time

import harness
import torch
from torch.nn import functional

from dspark_ext.linear import linear, pack_linear

ROWS = (1, 2, 4, 6, 8, 16, 32, 96)
# (in_features, out_features) of q/o, k/v, gate and up, down, output head
SHAPES = ((576, 576), (576, 192), (576, 1536), (1536, 576), (576, 49152))
BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32


class Packed:
    """dspark_ext.linear; `inputs` is the dtype of the rows."""

    def __init__(self, weight, inputs):
        self.packed, self.out_features, self.inputs = pack_linear(weight), len(weight), inputs

    def __call__(self, x):
        return linear(x, self.packed, None, self.out_features)


class Torch:
    """torch.nn.functional.linear."""

    def __init__(self, weight, inputs):
        self.weight, self.inputs = weight, inputs

    def __call__(self, x):
        return functional.linear(x, self.weight)


class OneDnn:
    """The prepacked linear that torch.compile uses (private operators of torch)."""

    def __init__(self, weight, inputs):
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.inputs = inputs

    def __call__(self, x):
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")


# name -> (class, dtype of the weight, dtype of the rows)
IMPLEMENTATIONS = {
    "dspark_ext, bf16": (Packed, BFLOAT16, BFLOAT16),
    "dspark_ext, bf16 weight, fp32 rows": (Packed, BFLOAT16, FLOAT32),
    "F.linear, bf16": (Torch, BFLOAT16, BFLOAT16),
    "oneDNN packed, bf16": (OneDnn, BFLOAT16, BFLOAT16),
    "dspark_ext, fp32": (Packed, FLOAT32, FLOAT32),
    "F.linear, fp32": (Torch, FLOAT32, FLOAT32),
    "oneDNN packed, fp32": (OneDnn, FLOAT32, FLOAT32),
}


def read_bandwidth() -> float:
    """Bytes per processor second of one thread that only reads (the best torch reduction)."""
    left, right = torch.ones(32 << 20), torch.ones(32 << 20)
    rates = []
    for _ in range(7):
        for reduce, num_bytes in (
            (left.sum, left.nbytes),
            (lambda: torch.dot(left, right), left.nbytes + right.nbytes),
        ):
            start = time.thread_time()
            reduce()
            rates.append(num_bytes / (time.thread_time() - start))
    return max(rates)


def make_layers(shape: tuple[int, int], kind: tuple) -> list:
    """Copies of one layer that together exceed the last-level cache twice over."""
    implementation, dtype, inputs = kind
    in_features, out_features = shape
    weight = torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(1))
    weight = (weight / in_features**0.5).to(dtype)
    copies = max(2, -(-2 * harness.last_level_cache_bytes() // weight.nbytes))
    return [implementation(weight.clone(), inputs) for _ in range(copies)]


def check(name: str, layer, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Against float64; results of torch's bf16 kernels are themselves rounded to bf16."""
    weight = torch.randn(shape[1], shape[0], generator=torch.Generator().manual_seed(1))
    weight = (weight / shape[0] ** 0.5).to(dtype).double()
    x = torch.randn(7, shape[0], generator=torch.Generator().manual_seed(2)).to(layer.inputs)
    error = (layer(x).double() - x.double() @ weight.T).abs().max().item()
    bound = 1e-5 if name.startswith("dspark_ext") or dtype == FLOAT32 else 2e-2
    if not error < bound:
        raise AssertionError(f"{name} {shape}: expected an error below {bound}, got {error}")


def measure(shape: tuple[int, int], repeats: int) -> dict[str, list[float]]:
    """Microseconds per call, by implementation, one for each of ROWS."""
    layers = {name: make_layers(shape, kind) for name, kind in IMPLEMENTATIONS.items()}
    for name, kind in IMPLEMENTATIONS.items():
        check(name, layers[name][0], shape, kind[1])
    best = {name: [float("inf")] * len(ROWS) for name in layers}
    for index, rows in enumerate(ROWS):
        x = torch.randn(rows, shape[0])
        for _ in range(repeats):
            for name, copies in layers.items():
                inputs = x.to(copies[0].inputs)
                start = time.thread_time()
                for layer in copies:
                    layer(inputs)
                seconds = (time.thread_time() - start) / len(copies)
                best[name][index] = min(best[name][index], seconds * 1e6)
    return best


def table(shape: tuple[int, int], best: dict[str, list[float]], bandwidth: float) -> str:
    lines = [
        f"## {shape[0]} -> {shape[1]}",
        "",
        "| us per call | "
        + " | ".join(f"M={rows}" for rows in ROWS)
        + " | % of read | M=6 : M=1 |",
        "|---" * (len(ROWS) + 3) + "|",
    ]
    for name, micros in best.items():
        weight_bytes = shape[0] * shape[1] * IMPLEMENTATIONS[name][1].itemsize
        percent = 100 * weight_bytes / (micros[0] * 1e-6) / bandwidth
        times = " | ".join(f"{value:,.0f}" for value in micros)
        ratio = micros[ROWS.index(6)] / micros[0]
        lines.append(f"| {name} | {times} | {percent:.0f} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="shapes IN x OUT that contain this text")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--markdown", type=pathlib.Path, help="also write the tables here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bandwidth = read_bandwidth()
    facts = harness.header(harness.copy_bandwidth()) | {"read_gb_per_s": round(bandwidth / 1e9, 1)}
    parts = [
        "# linear on the CPU",
        f"{datetime.date.today().isoformat()}; "
        + ", ".join(
            f"{key}: {value}" for key, value in facts.items() if key not in ("date", "commit")
        ),
        __doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
    ]
    print("\n\n".join(parts), flush=True)
    for shape in SHAPES:
        if options.only in f"{shape[0]}x{shape[1]}":
            parts.append(table(shape, measure(shape, options.repeats), bandwidth))
            print(parts[-1], flush=True)
    if options.markdown:
        options.markdown.write_text("\n\n".join(parts))


if __name__ == "__main__":
    main()
