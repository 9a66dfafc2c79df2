"""Choosing experts, and bringing rows to them and back, beside peers.

python bench/compare/routing.py [--threads 1] [--device cuda] [--markdown FILE] [--json FILE]

Routers: softmax with the k best, DeepSeek-V3 (sigmoid, biased, groups), DeepSeek-V4
(sqrt(softplus), biased). Results are compared as one row of weights by expert, so the order of
equal slots does not matter. Dispatch: sort by expert, gather rows, weight and add them up again, in
bfloat16; the rows are handed back as they are, so that all of the time is dispatch.
"""

import torch
import torch.nn.functional as F
from turns import Contender, Work, close, main

from dspark_ext import moe

# tokens, experts, slots
ROUTERS = ((6, 128, 3), (96, 256, 6), (640, 256, 8))
GROUPS, TOPK_GROUPS = 8, 4
SCALE = 1.5
# tokens, experts, slots, width
LAYERS = ((6, 128, 3, 2048), (96, 128, 3, 2048), (640, 256, 8, 7168))


# ---- routers ------------------------------------------------------------------------------------


def our_route(k: int, **options):
    return lambda: (
        lambda logits, bias: moe.route(
            logits, k, bias=bias if options["scoring"] != "softmax" else None, **options
        )
    )


def torch_softmax(k: int):
    def call(logits, bias):
        weights, ids = logits.softmax(-1).topk(k)
        return ids, weights / weights.sum(-1, keepdim=True)

    return lambda: call


def torch_v4(k: int):
    def call(logits, bias):
        scores = F.softplus(logits).sqrt()
        ids = (scores + bias).topk(k).indices
        weights = scores.gather(1, ids)
        return ids, weights / weights.sum(1, keepdim=True) * SCALE

    return lambda: call


def torch_v3(k: int):
    def call(logits, bias):
        scores = logits.sigmoid()
        biased = scores + bias
        grouped = biased.view(len(logits), GROUPS, -1)
        best = grouped.topk(2, -1).values.sum(-1).topk(TOPK_GROUPS).indices
        mask = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, False)
        ids = grouped.masked_fill(mask[..., None], -torch.inf).flatten(1).topk(k).indices
        weights = scores.gather(1, ids)
        return ids, weights / weights.sum(1, keepdim=True) * SCALE

    return lambda: call


def vllm_softmax(k: int):
    def make():
        import vllm._custom_ops as ops

        def call(logits, bias):
            weights = torch.empty(len(logits), k, device=logits.device)
            ids, index = (
                torch.empty(len(logits), k, dtype=torch.int32, device=logits.device)
                for _ in range(2)
            )
            ops.topk_softmax(weights, ids, index, logits, True)
            return ids, weights

        return call

    return make


def vllm_softmax_cpu(k: int):
    def make():
        from vllm.model_executor.layers.fused_moe.router.cpu_router import _softmax_topk

        def call(logits, bias):
            weights, ids = _softmax_topk(logits, k, True)
            return ids, weights

        return call

    return make


def vllm_v3(k: int):
    def make():
        from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import grouped_topk

        def call(logits, bias):
            weights, ids = grouped_topk(
                logits, logits, k, True, GROUPS, TOPK_GROUPS, "sigmoid", SCALE, bias
            )
            return ids, weights

        return call

    return make


def vllm_v4(k: int):
    def make():
        from vllm._custom_ops import biased_topk_cpu

        def call(logits, bias):
            weights, ids = biased_topk_cpu(
                logits, logits, bias, k, True, "sqrtsoftplus", 0, SCALE, True
            )
            return ids, weights

        return call

    return make


def sglang_softmax(k: int):
    def make():
        from sgl_kernel import topk_softmax

        def call(logits, bias):
            weights = torch.empty(len(logits), k, device=logits.device)
            ids = torch.empty(len(logits), k, dtype=torch.int32, device=logits.device)
            topk_softmax(weights, ids, logits, True)
            return ids, weights

        return call

    return make


def sglang_v3(k: int):
    def make():
        from sgl_kernel import moe_fused_gate

        def call(logits, bias):
            weights, ids = moe_fused_gate(logits, bias, GROUPS, TOPK_GROUPS, k, 0, SCALE, True)
            return ids, weights

        return call

    return make


def router_inputs(device: str, tokens: int, experts: int) -> tuple:
    logits = torch.randn(tokens, experts, device=device)
    return logits, 0.1 * torch.randn(experts, device=device)


def same_weights(experts: int):
    near = close(1e-5)

    def dense(result):
        ids, weights = result[0], result[1]
        row = torch.zeros(len(ids), experts, device=weights.device)
        return row.scatter_(1, ids.long(), weights.float())

    def check(expected, got) -> None:
        near(dense(expected), dense(got))

    return check


def router_works() -> list[Work]:
    found = []
    for tokens, experts, k in ROUTERS:
        kinds = {
            "softmax": [
                Contender("dspark_ext", our_route(k, scoring="softmax"), ours=True),
                Contender("torch", torch_softmax(k)),
                Contender("vllm CPU router", vllm_softmax_cpu(k)),
                Contender("vllm topk_softmax", vllm_softmax(k), gpu=True),
                Contender("sgl_kernel topk_softmax", sglang_softmax(k), gpu=True),
            ],
            "sigmoid, groups": [
                Contender(
                    "dspark_ext",
                    our_route(
                        k,
                        scoring="sigmoid",
                        num_groups=GROUPS,
                        topk_groups=TOPK_GROUPS,
                        scale=SCALE,
                    ),
                    ours=True,
                ),
                Contender("torch", torch_v3(k)),
                Contender("vllm grouped_topk", vllm_v3(k)),
                Contender("sgl_kernel moe_fused_gate", sglang_v3(k), gpu=True),
            ],
            "sqrtsoftplus": [
                Contender(
                    "dspark_ext", our_route(k, scoring="sqrtsoftplus", scale=SCALE), ours=True
                ),
                Contender("torch", torch_v4(k)),
                Contender("vllm biased_topk_cpu", vllm_v4(k)),
            ],
        }
        found += [
            Work(
                f"route, {kind}, T={tokens} E={experts} k={k}",
                lambda device, t=tokens, e=experts: router_inputs(device, t, e),
                contenders,
                same_weights(experts),
            )
            for kind, contenders in kinds.items()
        ]
    return sorted(found, key=lambda work: work.name.partition(", T=")[0])


# ---- dispatch -----------------------------------------------------------------------------------


def our_dispatch(experts: int):
    def call(x, ids, weights):
        plan = moe.plan(ids, experts)
        return moe.combine(moe.permute(x, plan), plan, weights)

    return lambda: call


def torch_dispatch(experts: int):
    def call(x, ids, weights):
        order = ids.flatten().argsort(stable=True)
        torch.bincount(ids.flatten(), minlength=experts).cumsum(0)  # what a GEMM has to know
        rows = x[order // ids.shape[1]]
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=x.device)
        slots = rows[inverse].view(*ids.shape, -1)
        return (slots * weights[..., None]).sum(1).to(x.dtype)

    return lambda: call


def vllm_dispatch(experts: int):
    def make():
        from vllm.model_executor.layers.fused_moe import moe_permute_unpermute as vllm_moe

        def call(x, ids, weights):
            rows, _, first, inverse, _ = vllm_moe.moe_permute(x, None, ids, experts)
            out = torch.empty_like(x)
            vllm_moe.moe_unpermute(out, rows, weights, inverse, first)
            return out

        return call

    return make


def dispatch_works() -> list[Work]:
    return [
        Work(
            f"dispatch and back, T={tokens} E={experts} k={k} d={width}",
            lambda device, t=tokens, e=experts, s=k, d=width: (
                torch.randn(t, d, device=device).bfloat16(),
                torch.rand(t, e, device=device).argsort(1)[:, :s].int().contiguous(),
                torch.rand(t, s, device=device),
            ),
            [
                Contender("dspark_ext", our_dispatch(experts), ours=True),
                Contender("torch argsort", torch_dispatch(experts)),
                Contender("vllm moe_permute", vllm_dispatch(experts), gpu=True),
            ],
            close(1e-2),
        )
        for tokens, experts, k, width in LAYERS
    ]


def works() -> list[Work]:
    return router_works() + dispatch_works()


if __name__ == "__main__":
    main(__doc__, works)
