"""Expert layers on a CPU beside vLLM's and torch's: bfloat16, in one process, in turns.

python bench/compare/moe_cpu.py [--threads 1] [--repeats 9] [--markdown FILE]
    [--layer 128,3,5120,2304 --contenders "prepared,vllm cpu_fused_moe"]

`rows` and `prepared` are `moe.fused_moe` with weights as they are and after `prepare_weights`.
Peers: vLLM's `cpu_fused_moe` on weights that its own function packed, torch's `grouped_mm` and its
loop over experts. One that is missing is named. Results are compared before anything is timed.
Each of `prepared` and vLLM has a copy of the weights; of a layer that fills half of the memory only
two contenders fit beside each other, and the weights they were made from lie in a file.

Two yardsticks take turns with them, so that they meet the same machine: a plain read of memory, and
bf16 products of a matrix in the cache. Nothing can take less time than the longer of the two would
for the weights and the products of a layer.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

from dspark_ext import moe
from dspark_ext.moe.huge_pages import ask_for_huge_pages

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import harness  # noqa: E402

TOKENS = (5, 40, 160, 640)
# experts, slots, width, inner width
LAYERS = ((128, 3, 2048, 768), (16, 3, 5120, 2304))
MORE_RUNS = 8  # times as many where they are short
LARGE = 2 << 30  # bytes of weights that lie in a file
BOUND = 1e-2  # relative L2, of results in bfloat16


# ---- who computes -------------------------------------------------------------------------------


class Ours:
    name = "prepared"

    def __init__(self, w13, w2):
        self.weights = moe.prepare_weights(moe.ExpertWeights(w13, w2))

    def __call__(self, x, ids, weights):
        how = self.weights._asdict()
        return moe.fused_moe(x, how.pop("w13"), how.pop("w2"), ids, weights, **how)


class OursInRows:
    name = "rows"

    def __init__(self, w13, w2):
        self.weights = w13, w2

    def __call__(self, x, ids, weights):
        return moe.fused_moe(x, *self.weights, ids, weights)


class Vllm:
    name = "vllm cpu_fused_moe"

    def __init__(self, w13, w2):
        import vllm._C  # noqa: F401

        if max(w13.numel(), w2.numel()) > 2**31 - 1:
            raise RuntimeError("it crashes where an index of weights takes more than 31 bits")
        self.isa = "amx" if torch.cpu._is_amx_tile_supported() else "vec"
        self.weights = [self.packed(weight) for weight in (w13, w2)]

    def packed(self, weight):
        out = torch.empty_like(weight)
        torch.ops._C.prepack_moe_weight(weight, out, self.isa)
        return out

    def __call__(self, x, ids, weights):
        out = torch.empty_like(x)
        torch.ops._C.cpu_fused_moe(
            out, x, *self.weights, None, None, weights, ids, False, "silu", self.isa
        )
        return out


class TorchGrouped:
    name = "torch grouped_mm"

    def __init__(self, w13, w2):
        self.weights = w13.transpose(1, 2), w2.transpose(1, 2)
        self.multiply = getattr(F, "grouped_mm", None) or torch._grouped_mm

    def __call__(self, x, ids, weights):
        first, second = self.weights
        flat = ids.flatten()
        order = flat.argsort(stable=True)
        ends = torch.bincount(flat, minlength=len(first)).cumsum(0).int()
        token = order // ids.shape[1]
        gate, up = self.multiply(x[token], first, offs=ends).chunk(2, 1)
        hidden = (F.silu(gate.float()) * up.float()).to(x.dtype)
        y = self.multiply(hidden, second, offs=ends)
        out = torch.zeros(x.shape)
        out.index_add_(0, token, y.float() * weights.flatten()[order, None])
        return out.to(x.dtype)


class TorchLoop:
    name = "torch loop"

    def __init__(self, w13, w2):
        self.weights = w13, w2

    def __call__(self, x, ids, weights):
        out = torch.zeros(x.shape)
        for expert in ids.unique().tolist():
            token, slot = (ids == expert).nonzero(as_tuple=True)
            gate, up = F.linear(x[token], self.weights[0][expert]).float().chunk(2, 1)
            hidden = (F.silu(gate) * up).to(x.dtype)
            y = F.linear(hidden, self.weights[1][expert]).float()
            out.index_add_(0, token, y * weights[token, slot, None])
        return out.to(x.dtype)


CONTENDERS = (Ours, OursInRows, Vllm, TorchGrouped, TorchLoop)


# ---- what the machine can do --------------------------------------------------------------------


class Reads:
    """A sum of numbers in huge pages, far more than the caches hold."""

    name = "read"

    def __init__(self):
        self.numbers = torch.empty(1 << 27)
        ask_for_huge_pages(self.numbers)
        self.numbers.zero_()

    def per_second(self) -> float:
        """Bytes."""
        return self.numbers.nbytes / processor_seconds(self.numbers.sum)


class Products:
    """The better of torch's product of two matrices and this package's of an expert."""

    name = "multiply"
    ROWS, SIDE, CALLS = 60, 1024, 6

    def __init__(self):
        self.square = torch.randn(512, 512).bfloat16()
        self.x = torch.randn(self.ROWS, self.SIDE).bfloat16()
        self.plan = moe.plan(torch.zeros(self.ROWS, 1, dtype=torch.int32), 1, tile_rows=self.ROWS)
        w13 = normal_weights(1, self.SIDE, self.SIDE)
        w2 = normal_weights(1, self.SIDE, self.SIDE // 2)
        self.weights = moe.prepare_weights(moe.ExpertWeights(w13, w2))

    def ours(self) -> None:
        size = self.weights.sizes[0]
        moe.grouped_gemm(self.x, self.weights.w13, self.plan, layout="pairs", size=size)

    def torchs(self) -> None:
        F.linear(self.square, self.square)

    def per_second(self) -> float:
        """Flops, two a multiply-add; of the fastest of a few calls, which are short."""
        ours = min(processor_seconds(self.ours) for _ in range(self.CALLS))
        torchs = min(processor_seconds(self.torchs) for _ in range(self.CALLS))
        return 2 * max(self.ROWS * self.SIDE**2 / ours, len(self.square) ** 3 / torchs)


# ---- measuring ----------------------------------------------------------------------------------


def processor_seconds(function, *arguments) -> float:
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def normal_weights(experts: int, rows: int, columns: int) -> torch.Tensor:
    shape, deviation = (experts, rows, columns), columns**-0.5
    numbers = experts * rows * columns
    if 2 * numbers < LARGE:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(0, deviation)
    with tempfile.NamedTemporaryFile() as file:  # its memory outlives it
        expert = torch.empty(shape[1:], dtype=torch.bfloat16)
        for _ in range(experts):
            file.write(expert.normal_(0, deviation).view(torch.int16).numpy())
        file.flush()
        os.fsync(file.fileno())  # or it could not give way
        return torch.from_file(file.name, False, numbers, dtype=torch.bfloat16).view(shape)


def inputs_of(tokens: int, experts: int, k: int, width: int) -> tuple:
    ids = torch.rand(tokens, experts).argsort(1)[:, :k].int().contiguous()
    return torch.randn(tokens, width).bfloat16(), ids, torch.rand(tokens, k)


def contenders_of(w13, w2, names: list[str]) -> list:
    found = []
    for make in CONTENDERS:
        if names and make.name not in names:
            continue
        try:
            contender = make(w13, w2)
            contender(*inputs_of(2, w13.shape[0], 1, w13.shape[2]))
        except (ImportError, AttributeError, NotImplementedError, RuntimeError) as error:
            if make is Ours or make is OursInRows:
                raise
            print(f"skipped: {make.name}: {str(error).splitlines()[0]}", flush=True)
            continue
        found.append(contender)
    return found


def check(contenders: list, inputs: tuple) -> None:
    want = contenders[0](*inputs).float()
    for contender in contenders[1:]:
        error = (contender(*inputs).float() - want).norm() / want.norm()
        if not error < BOUND:
            raise AssertionError(f"moe_cpu: {contender.name}: relative error {error:.4f}")


def measure(layer: tuple, names: list[str], repeats: int) -> list[dict]:
    """A row for each number of tokens: milliseconds of processor time, medians."""
    experts, k, width, inner = layer
    yardsticks = Reads(), Products()
    w13 = normal_weights(experts, 2 * inner, width)
    w2 = normal_weights(experts, width, inner)
    contenders = contenders_of(w13, w2, names)
    del w13, w2
    rows = []
    for tokens in TOKENS:
        check(contenders, inputs_of(tokens, experts, k, width))
        seconds = {each.name: [] for each in (*contenders, *yardsticks)}
        touched = []
        for turn in range(repeats * max(1, min(MORE_RUNS, 320 // tokens))):
            inputs = inputs_of(tokens, experts, k, width)
            touched.append(len(inputs[1].unique()))
            first = turn % len(contenders)
            for contender in contenders[first:] + contenders[:first]:
                seconds[contender.name].append(processor_seconds(contender, *inputs))
            bytes_of_weights = touched[-1] * 3 * width * inner * 2
            flops = tokens * k * 3 * width * inner * 2
            for yardstick, work in zip(yardsticks, (bytes_of_weights, flops), strict=True):
                seconds[yardstick.name].append(work / yardstick.per_second())
        name = f"T={tokens} E={experts} k={k} d={width} N={inner}"
        medians = {name: statistics.median(each) * 1e3 for name, each in seconds.items()}
        gigabytes = statistics.mean(touched) * 3 * width * inner * 2 / 1e9
        rows.append({"case": name, "gb": gigabytes, "ms": medians})
        print(name, {name: round(ms, 2) for name, ms in medians.items()}, flush=True)
    return rows


def markdown(rows: list[dict]) -> str:
    names = [make.name for make in CONTENDERS if any(make.name in row["ms"] for row in rows)]
    peers = [name for name in names if name not in (Ours.name, OursInRows.name)]
    head = ["case", *(f"{name}, ms" for name in names), "prepared, GB/s"]
    head += [f"times {name}" for name in peers]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        ms = row["ms"]
        cells = [row["case"], *(f"{ms[n]:.2f}" if n in ms else "-" for n in names)]
        cells.append(f"{row['gb'] / ms['prepared'] * 1e3:.1f}")
        cells += [f"{ms[n] / ms['prepared']:.2f}" if n in ms else "-" for n in peers]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def limits(rows: list[dict]) -> str:
    """How near the machine's limits each contender is."""
    names = [make.name for make in CONTENDERS if any(make.name in row["ms"] for row in rows)]
    names = [name for name in names if name != OursInRows.name]
    head = ["case", "read, ms", "multiply, ms", *(f"{name}, % of both" for name in names)]
    head += [f"most times {name}" for name in names[1:]]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        ms = row["ms"]
        least = ms[Reads.name], ms[Products.name]
        cells = [row["case"], *(f"{each:.2f}" for each in least)]
        for name in names:
            parts = (f"{100 * each / ms[name]:.0f}" for each in least) if name in ms else "-"
            cells.append(" / ".join(parts))
        cells += [f"{ms[name] / max(least):.2f}" if name in ms else "-" for name in names[1:]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's choice)")
    parser.add_argument("--repeats", type=int, default=9, help="timed runs, more of short cases")
    parser.add_argument(
        "--layer", action="append", metavar="E,K,WIDTH,INNER", default=[],
        type=lambda text: tuple(int(part) for part in text.split(",")),
        help="experts, slots, width, inner width (default: two layers; may be given again)",
    )  # fmt: skip
    parser.add_argument(
        "--contenders", default="", help="names, `prepared` among them (default: all)"
    )
    parser.add_argument("--markdown", type=pathlib.Path, help="write header and table")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    facts = harness.header(harness.copy_bandwidth())
    facts["pair_unit"] = harness.dspark_ext.build_info()["cpu"]["pair_unit"]
    line = ", ".join(f"{key}: {value}" for key, value in facts.items())
    print(line, flush=True)
    chosen = [name.strip() for name in options.contenders.split(",") if name.strip()]
    known = [make.name for make in CONTENDERS]
    if chosen and (Ours.name not in chosen or not set(chosen) <= set(known)):
        parser.error(f"--contenders: expected {Ours.name} and others of {known}, got {chosen}")
    layers = options.layer or LAYERS
    rows = [row for layer in layers for row in measure(layer, chosen, options.repeats)]
    print(f"{markdown(rows)}\n\n{limits(rows)}")
    if options.markdown:
        title = (
            "Expert layers on a CPU beside peers, bfloat16: medians of processor time, runs in "
            "turns (`python bench/compare/moe_cpu.py`).\n\nGB/s: the weights of touched experts, "
            "read once. `times X`: the time of X over that of `prepared`."
        )
        explained = (
            "What the machine allows. `read`: the weights of touched experts at the speed of a "
            "plain sum of\nmemory in huge pages; `multiply`: the products at that of a matrix in "
            "the cache. Both took turns\nwith the runs. `% of both`: each over the time of the "
            "contender. `most times X`: the time of X\nover the longer of both, what a kernel "
            "without any loss would reach."
        )
        tables = f"{markdown(rows)}\n\n{explained}\n\n{limits(rows)}"
        options.markdown.write_text(f"{title}\n\n{line}\n\n{tables}\n")


if __name__ == "__main__":
    main()
