"""route, plan, permute, combine and fused_moe over tokens and experts, CPU or GPU.

python bench/bench_dispatch.py --grow T,E [--json bench/results/dispatch.json]

The cases and their baselines are those of bench_moe.py, which measures them at set sizes beside the
expert layers on a CPU; this file has their growth, and runs them on a GPU.
"""

import dataclasses

import bench_moe
import harness
import moe_layers
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


def make_cases(quick: bool = False) -> list[harness.Case]:
    shapes = (QUICK,) if quick else bench_moe.SHAPES
    return [make(shape) for shape in shapes for make in PARTS.values()]


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
