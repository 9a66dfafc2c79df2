"""linear against torch's own and against prepacked oneDNN, shapes of SmolLM2-135M, on a CPU.

python bench/bench_linear.py [--only out=1536] [--threads 1] [--json bench/results/linear.json]
python bench/bench_linear.py --grow M       time over the rows

Weights come from memory as they do while decoding: an input set is a weight and the rows for it.
`fp32 rows` are float32 rows against a bfloat16 weight; torch has no such product, so it is measured
beside torch's in bfloat16.
"""

import harness
import torch
from growth import Growth
from torch.nn import functional as F

from dspark_ext.linear import linear, pack_linear

# (in_features, out_features) of q/o, k/v, gate and up, down, output head
SHAPES = ((576, 576), (576, 192), (576, 1536), (1536, 576), (576, 49152))
ROWS = (1, 6, 32)
BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
# label -> (dtype of the weight, dtype of the rows, unit that does the products)
KINDS = {
    "bf16": (BFLOAT16, BFLOAT16, "bf16"),
    "bf16, fp32 rows,": (BFLOAT16, FLOAT32, "fp32"),
    "fp32": (FLOAT32, FLOAT32, "fp32"),
}


def pack_onednn(weight: torch.Tensor) -> torch.Tensor:
    """As torch.compile does (private operators of torch)."""
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def onednn(x, packed, weight):
    return torch.ops.mkldnn._linear_pointwise(x.to(weight.dtype), weight, None, "none", [], "")


def functional(x, packed, weight):
    return F.linear(x.to(weight.dtype), weight)


# name -> (function, what becomes of the weight first)
PEERS = {"F.linear": (functional, lambda w: w), "oneDNN packed": (onednn, pack_onednn)}


def linear_case(shape: tuple, rows: int, kind: str, peer: str = "F.linear") -> harness.Case:
    in_features, out_features = shape
    weight_dtype, row_dtype, unit = KINDS[kind]
    baseline, prepare = PEERS[peer]

    def make_inputs():
        weight = (torch.randn(out_features, in_features) / in_features**0.5).to(weight_dtype)
        return torch.randn(rows, in_features).to(row_dtype), pack_linear(weight), prepare(weight)

    def run(x, packed, weight):
        return linear(x, packed, None, out_features)

    def check(inputs: tuple) -> None:
        weight = (torch.randn(out_features, in_features) / in_features**0.5).to(weight_dtype)
        x = inputs[0]
        error = run(x, pack_linear(weight), None).double() - x.double() @ weight.double().T
        if not error.abs().max() < 1e-4:
            raise AssertionError(f"linear {shape} {kind}: error {error.abs().max():.1e}")

    weight_bytes = in_features * out_features * weight_dtype.itemsize
    row_bytes = rows * (in_features * row_dtype.itemsize + 4 * out_features)
    return harness.Case(
        name=f"linear {kind} in={in_features} out={out_features} M={rows} beside {peer}",
        op=f"linear {unit}",
        make_inputs=make_inputs,
        run=run,
        baseline=baseline,
        baseline_name=peer,
        check=check,
        floor_bytes=weight_bytes + row_bytes,
        moved_bytes=weight_bytes + row_bytes,
    )


def make_cases(quick: bool = False) -> list[harness.Case]:
    shapes, rows = (((32, 48),), (2,)) if quick else (SHAPES, ROWS)
    return [
        linear_case(shape, count, kind, peer)
        for shape in shapes
        for kind in KINDS
        for count in rows
        for peer in PEERS
    ]


GROWTHS = {
    "M": [
        Growth(
            f"linear {kind} in=576 out=1536",
            (1, 2, 4, 6, 8, 16, 32, 64, 96),
            lambda value, k=kind: linear_case((576, 1536), value, k),
        )
        for kind in KINDS
    ]
}


if __name__ == "__main__":
    torch.manual_seed(0)
    harness.main(__doc__.partition("\n")[0], make_cases, GROWTHS)
