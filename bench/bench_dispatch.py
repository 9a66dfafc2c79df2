"""route, plan, permute, combine and fused_moe over tokens and experts, CPU or GPU.

python bench/bench_dispatch.py --grow T,E [--json bench/results/dispatch.json]

The cases and their baselines are those of bench_moe.py, which measures them at set sizes beside the
expert layers on a CPU; this file has their growth, and runs them on a GPU.
"""

import dataclasses

import bench_moe
import harness
import moe_layers
import timing
import torch
from growth import Growth


def anywhere(make):
    """The same case, on a GPU, too."""
    return lambda shape: dataclasses.replace(make(shape), devices=harness.ANYWHERE)


PARTS = {
    "route": anywhere(bench_moe.route_case),
    "plan": anywhere(bench_moe.plan_case),
    "permute": anywhere(bench_moe.permute_case),
    "combine": anywhere(bench_moe.combine_case),
}
QUICK = (4, 8, 2, 16)  # tokens, experts, slots, width


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
    shapes = (QUICK,) if quick else bench_moe.SHAPES
    cases = [make(shape) for shape in shapes for make in PARTS.values()]
    layer, tokens = ((4, 2, 64, 64), (3,)) if quick else (moe_layers.DRAFTER, moe_layers.TOKENS)
    return cases + [
        gpu_layer_case(count, format, layer) for format in moe_layers.FORMATS for count in tokens
    ]


def layer_case(tokens: int, experts: int) -> harness.Case:
    """An expert layer, its weights larger than the cache."""
    return moe_layers.layer_case(tokens, (experts, 3, 1024, 512), "bf16", "prepared")


GROWTHS = {
    "T": [
        Growth(
            f"{name} E=128 k=3 d=1024",
            (64, 128, 256, 512, 1024, 2048, 4096),
            lambda value, make=make: make((value, 128, 3, 1024)),
        )
        for name, make in PARTS.items()
    ]
    + [
        Growth(
            "fused_moe bf16 prepared E=32 k=3 d=1024 N=512",
            (16, 32, 64, 128, 256, 512, 1024),
            lambda value: layer_case(value, 32),
        )
    ],
    "E": [
        Growth(
            f"{name} T=640 k=3",
            (32, 64, 128, 256, 512, 1024),
            lambda value, make=make: make((640, value, 3, 16)),
            quick_values=(8, 16),
        )
        for name, make in PARTS.items()
        if name in ("route", "plan")
    ]
    + [
        Growth(
            "fused_moe bf16 prepared T=640 k=3 d=1024 N=512",
            (32, 64, 96, 128),
            lambda value: layer_case(640, value),
        )
    ],
}


if __name__ == "__main__":
    torch.manual_seed(0)
    harness.main(__doc__.partition("\n")[0], make_cases, GROWTHS)
