"""Expert layers, against torch's ways, CPU or GPU.

python bench/bench_moe.py [--only T=640] [--threads 1] [--json bench/results/moe.json]
python bench/bench_moe.py --grow T,E     time over tokens and experts

Layers are those of moe_layers.py; routing and dispatch alone are measured by bench_dispatch.py.
"""

import dataclasses

import harness
import moe_layers
import timing
import torch
from growth import Growth


def gpu_layer_case(tokens: int, format: str, layer: tuple = moe_layers.DRAFTER) -> harness.Case:
    """A whole layer on a GPU, weights as checkpoints have them; checked on the CPU."""
    base = moe_layers.layer_case(tokens, layer, format, "rows")

    def run(x, ids, weights, rows):
        return moe_layers.run_layer(x, ids, weights, rows, exact=False)

    def check(inputs: tuple) -> None:
        want = moe_layers.torch_layer(*timing.over_tensors(torch.Tensor.cpu, inputs)).float()
        got = run(*inputs).float().cpu()
        if not (got - want).norm() < 2e-2 * want.norm():
            raise AssertionError(f"fused_moe {format}: other results than torch's loop")

    return dataclasses.replace(
        base,
        make_inputs=lambda: base.make_inputs()[:4],
        run=run,
        baseline=None,
        baseline_name="-",
        check=check,
        devices=("cuda",),
    )


def make_cases(quick: bool = False) -> list[harness.Case]:
    layer, tokens = ((4, 2, 64, 64), (3,)) if quick else (moe_layers.DRAFTER, moe_layers.TOKENS)
    on_gpu = [
        gpu_layer_case(count, format, layer) for format in moe_layers.FORMATS for count in tokens
    ]
    return on_gpu if quick else [*moe_layers.make_cases(), *on_gpu]


def growing_layer(tokens: int, experts: int) -> harness.Case:
    """Weights larger than the cache."""
    return moe_layers.layer_case(tokens, (experts, 3, 1024, 512), "bf16", "prepared")


GROWTHS = {
    "T": [
        Growth(
            "fused_moe bf16 prepared E=32 k=3 d=1024 N=512",
            (16, 32, 64, 128, 256, 512, 1024),
            lambda value: growing_layer(value, 32),
        )
    ],
    "E": [
        Growth(
            "fused_moe bf16 prepared T=640 k=3 d=1024 N=512",
            (32, 64, 96, 128),
            lambda value: growing_layer(640, value),
        )
    ],
}


if __name__ == "__main__":
    torch.manual_seed(0)
    harness.main(__doc__.partition("\n")[0], make_cases, GROWTHS)
