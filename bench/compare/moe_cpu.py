"""Expert layers on a CPU beside vLLM's and torch's: bfloat16, in one process, in turns.

python bench/compare/moe_cpu.py [--threads 1] [--repeats 9] [--markdown FILE]

`rows` and `prepared` are `moe.fused_moe` with weights as they are and after `prepare_weights`.
Peers: vLLM's `cpu_fused_moe` on weights that its own function packed, torch's `grouped_mm` and its
loop over experts. One that is missing is named. Results are compared before anything is timed.
"""

import argparse
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F

from dspark_ext import moe

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import harness  # noqa: E402

TOKENS = (5, 40, 160, 640)
# experts, slots, width, inner width
LAYERS = ((128, 3, 2048, 768), (16, 3, 5120, 2304))
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


# ---- measuring ----------------------------------------------------------------------------------


def normal_weights(experts: int, rows: int, columns: int) -> torch.Tensor:
    weights = torch.empty(experts, rows, columns, dtype=torch.bfloat16)
    return weights.normal_(0, columns**-0.5)


def inputs_of(tokens: int, experts: int, k: int, width: int) -> tuple:
    ids = torch.rand(tokens, experts).argsort(1)[:, :k].int().contiguous()
    return torch.randn(tokens, width).bfloat16(), ids, torch.rand(tokens, k)


def contenders_of(w13, w2) -> list:
    found = []
    for make in CONTENDERS:
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


def measure(layer: tuple, repeats: int) -> list[dict]:
    """A row for each number of tokens: milliseconds of processor time, medians."""
    experts, k, width, inner = layer
    w13 = normal_weights(experts, 2 * inner, width)
    w2 = normal_weights(experts, width, inner)
    contenders = contenders_of(w13, w2)
    rows = []
    for tokens in TOKENS:
        check(contenders, inputs_of(tokens, experts, k, width))
        seconds = {contender.name: [] for contender in contenders}
        for _ in range(repeats):
            inputs = inputs_of(tokens, experts, k, width)
            for contender in contenders:
                start = time.process_time()
                contender(*inputs)
                seconds[contender.name].append(time.process_time() - start)
        name = f"T={tokens} E={experts} k={k} d={width} N={inner}"
        medians = {name: statistics.median(each) * 1e3 for name, each in seconds.items()}
        touched = experts * (1 - (1 - k / experts) ** tokens)
        gigabytes = touched * 3 * width * inner * 2 / 1e9
        rows.append({"case": name, "gb": gigabytes, "ms": medians})
        print(name, {name: round(ms, 2) for name, ms in medians.items()}, flush=True)
    return rows


def markdown(rows: list[dict]) -> str:
    names = [make.name for make in CONTENDERS if any(make.name in row["ms"] for row in rows)]
    peers = names[2:]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's choice)")
    parser.add_argument("--repeats", type=int, default=9, help="timed runs of each case")
    parser.add_argument("--markdown", type=pathlib.Path, help="write header and table")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    facts = harness.header(harness.copy_bandwidth())
    facts["pair_unit"] = harness.dspark_ext.build_info()["cpu"]["pair_unit"]
    line = ", ".join(f"{key}: {value}" for key, value in facts.items())
    print(line, flush=True)
    rows = [row for layer in LAYERS for row in measure(layer, options.repeats)]
    print(markdown(rows))
    if options.markdown:
        title = (
            "Expert layers on a CPU beside peers, bfloat16: medians of processor time, runs in "
            "turns (`python bench/compare/moe_cpu.py`).\n\nGB/s: the weights of touched experts, "
            "read once. `times X`: the time of X over that of `prepared`."
        )
        options.markdown.write_text(f"{title}\n\n{line}\n\n{markdown(rows)}\n")


if __name__ == "__main__":
    main()
