"""Routing, dispatch to experts and back, against torch's ways, CPU or GPU.

python bench/bench_dispatch.py [--only T=640] [--threads 1] [--json bench/results/dispatch.json]
python bench/bench_dispatch.py --grow T,E     time over tokens and experts

The baseline is what eager mixture-of-experts layers do: take the best scores, sort the ids,
gather the rows, count by histogram; then weight the rows, bring them into slot order and sum.
Peers' dispatch operators are measured where they are installed and have a CPU form; where not, the
reason is printed.
"""

import importlib

import harness
import moe_layers
import torch
import torch.nn.functional as F
from growth import Growth

from dspark_ext import moe

# tokens, experts, slots, width
SHAPES = (
    (5, 128, 3, 5120),
    (128, 128, 3, 5120),
    (640, 128, 3, 5120),
    (640, 256, 8, 7168),
    (4096, 256, 8, 2048),
)
# module to import, operator, arguments behind the three outputs
PEERS = {
    "vllm": ("vllm._custom_ops", "_moe_C::moe_align_block_size", ()),
    "sgl_kernel": ("sgl_kernel", "sgl_kernel::moe_align_block_size", ("cumsum", True)),
}
BLOCK = 64
QUICK = (4, 8, 2, 16)


# ---- the argsort way ----------------------------------------------------------------------------


def torch_plan(ids: torch.Tensor, experts: int):
    by_expert = ids.flatten().argsort(stable=True)
    counts = torch.histc(ids.flatten().float(), bins=experts, min=0, max=experts - 1)
    inverse = torch.empty_like(by_expert)
    inverse[by_expert] = torch.arange(by_expert.numel(), device=ids.device)
    return by_expert, inverse, counts.long().cumsum(0)


def torch_permute(x: torch.Tensor, by_expert: torch.Tensor, k: int) -> torch.Tensor:
    return x[by_expert // k]


def torch_combine(y: torch.Tensor, inverse: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    rows = y[inverse].view(*weights.shape, -1) * weights.unsqueeze(-1)  # float32: as weights
    return rows.sum(1).to(y.dtype)


def torch_route(logits: torch.Tensor, bias: torch.Tensor, k: int) -> tuple:
    scores = F.softplus(logits.float()).sqrt()
    ids = (scores + bias).topk(k).indices
    weights = scores.gather(1, ids)
    return ids, weights / (weights.sum(1, keepdim=True) + 1e-20) * 1.5


# ---- cases --------------------------------------------------------------------------------------


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(f"bench_moe: {what} is wrong")


def close(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    expect(torch.allclose(got.float(), want.float(), rtol=2e-2, atol=2e-2), what)


def route_case(shape: tuple) -> harness.Case:
    tokens, experts, k, _ = shape

    def run(logits, bias):
        return moe.route(logits, k, scoring="sqrtsoftplus", bias=bias, scale=1.5)

    def check(inputs: tuple) -> None:
        close(run(*inputs)[1], torch_route(*inputs, k)[1], "route")

    floor = 4 * tokens * experts + 4 * experts + 8 * tokens * k  # logits, bias; ids, weights
    return harness.Case(
        name=f"route T={tokens} E={experts} k={k}",
        make_inputs=lambda: (torch.randn(tokens, experts), 0.1 * torch.randn(experts)),
        run=run,
        baseline=lambda logits, bias: torch_route(logits, bias, k),
        baseline_name="torch topk",
        check=check,
        floor_bytes=floor,
        moved_bytes=floor,
        devices=harness.ANYWHERE,
    )


def plan_case(shape: tuple) -> harness.Case:
    tokens, experts, k, _ = shape

    def check(inputs: tuple) -> None:
        plan = moe.plan(*inputs, experts)
        by_expert, inverse, ends = torch_plan(*inputs, experts)
        expect(torch.equal(plan.sorted, by_expert), "sorted")
        expect(torch.equal(plan.inverse.flatten(), inverse), "inverse")
        expect(torch.equal(plan.offsets[1:], ends), "offsets")

    slots = tokens * k
    floor = 4 * slots + 16 * slots + 16 * experts  # ids; sorted, inverse, counts, offsets
    return harness.Case(
        name=f"plan T={tokens} E={experts} k={k}",
        make_inputs=lambda: (moe_layers.make_ids(tokens, experts, k),),
        run=lambda ids: moe.plan(ids, experts),
        baseline=lambda ids: torch_plan(ids, experts),
        baseline_name="torch argsort",
        check=check,
        floor_bytes=floor,
        moved_bytes=floor + 4 * slots,  # the ids twice
        devices=harness.ANYWHERE,
    )


def rows_inputs(shape: tuple) -> tuple:
    tokens, experts, k, width = shape
    plan = moe.plan(moe_layers.make_ids(tokens, experts, k), experts)
    x = torch.randn(tokens, width).bfloat16()
    y = torch.randn(tokens * k, width).bfloat16()
    return x, y, torch.rand(tokens, k), plan, plan.inverse.flatten()


def permute_case(shape: tuple) -> harness.Case:
    tokens, experts, k, width = shape

    def baseline(x, y, weights, plan, inverse):
        return torch_permute(x, plan.sorted, k)

    def check(inputs: tuple) -> None:
        x, *_, plan, _ = inputs
        expect(torch.equal(moe.permute(x, plan), baseline(*inputs)), "permute")

    floor = 2 * width * tokens * (1 + k)
    return harness.Case(
        name=f"permute T={tokens} E={experts} k={k} d={width}",
        make_inputs=lambda: rows_inputs(shape),
        run=lambda x, y, weights, plan, inverse: moe.permute(x, plan),
        baseline=baseline,
        baseline_name="torch gather",
        check=check,
        floor_bytes=floor,
        moved_bytes=floor,
        devices=harness.ANYWHERE,
    )


def combine_case(shape: tuple) -> harness.Case:
    tokens, experts, k, width = shape

    def baseline(x, y, weights, plan, inverse):
        return torch_combine(y, inverse, weights)

    def check(inputs: tuple) -> None:
        x, y, weights, plan, _ = inputs
        close(moe.combine(y, plan, weights), baseline(*inputs), "combine")

    floor = 2 * width * tokens * (1 + k)
    return harness.Case(
        name=f"combine T={tokens} E={experts} k={k} d={width}",
        make_inputs=lambda: rows_inputs(shape),
        run=lambda x, y, weights, plan, inverse: moe.combine(y, plan, weights),
        baseline=baseline,
        baseline_name="torch gather, sum",
        check=check,
        floor_bytes=floor,
        moved_bytes=floor,
        devices=harness.ANYWHERE,
    )


# ---- peers --------------------------------------------------------------------------------------


def peer_operator(name: str):
    """The peer's operator, or the reason why it cannot be measured."""
    module, operator, _ = PEERS[name]
    try:
        importlib.import_module(module)
    except ImportError as error:
        return None, f"not importable ({error})"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CPU"):
        return None, f"{operator} has no CPU form"
    namespace, function = operator.split("::")
    return getattr(getattr(torch.ops, namespace), function), ""


def peer_case(name: str, operator, shape: tuple) -> harness.Case:
    """moe_align_block_size: slots by expert in blocks of 64 rows, the rest filled with T * k."""
    tokens, experts, k, _ = shape
    room = moe.plan_capacity(tokens, k, experts, BLOCK, BLOCK)

    def baseline(ids):
        blocks = torch.empty(room.rows, dtype=torch.int32), torch.empty(room.tiles).int()
        extra = [torch.empty(experts + 2).int() if x == "cumsum" else x for x in PEERS[name][2]]
        operator(ids, experts, BLOCK, *blocks, torch.empty(1).int(), *extra)
        return blocks

    def check(inputs: tuple) -> None:
        plan = moe.plan(*inputs, experts, alignment=BLOCK)
        total = int(plan.total)
        expect(torch.equal(baseline(*inputs)[0][:total].long(), plan.sorted[:total]), name)

    slots = tokens * k
    floor = 4 * slots + 8 * room.rows + 8 * slots
    return harness.Case(
        name=f"plan, blocks of {BLOCK}, T={tokens} E={experts} k={k}",
        make_inputs=lambda: (moe_layers.make_ids(tokens, experts, k),),
        run=lambda ids: moe.plan(ids, experts, alignment=BLOCK, tile_rows=BLOCK),
        baseline=baseline,
        baseline_name=name,
        check=check,
        floor_bytes=floor,
        moved_bytes=floor + 4 * slots,
    )


PARTS = {
    "route": route_case,
    "plan": plan_case,
    "permute": permute_case,
    "combine": combine_case,
}


def make_cases(quick: bool = False) -> list[harness.Case]:
    shapes = (QUICK,) if quick else SHAPES
    cases = [make(shape) for shape in shapes for make in PARTS.values()]
    for name in () if quick else PEERS:
        operator, reason = peer_operator(name)
        if operator is None:
            print(f"skipped: {name}: {reason}", flush=True)
        else:
            cases += [peer_case(name, operator, shape) for shape in SHAPES]
    return cases


GROWTHS = {
    "T": [
        Growth(
            f"{name} E=128 k=3 d=1024",
            (64, 128, 256, 512, 1024, 2048, 4096),
            lambda value, make=make: make((value, 128, 3, 1024)),
        )
        for name, make in PARTS.items()
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
    ],
}


if __name__ == "__main__":
    torch.manual_seed(0)
    harness.main(__doc__.partition("\n")[0], make_cases, GROWTHS)
