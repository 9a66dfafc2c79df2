"""Fingerprints of results of operators, family by family; as a script, prints them for the
instruction set of its process."""

import hashlib
import json
import pathlib
import sys

import torch

from dspark_ext import _C, draft, linear, moe, verify
from dspark_ext.attention import attention

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import expert_sweep  # noqa: E402
import router_sweep  # noqa: E402


def digest(*tensors):
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def schedules(generator):
    confidence = torch.rand(40, 7, generator=generator)
    table = 1 + torch.rand(200, generator=generator, dtype=torch.float64).cumsum(0) / 40
    for arguments in (
        {"cost": table},
        {"mode": "threshold", "threshold": 0.5, "max_rows": 100},
        {"mode": "fixed"},
        {"mode": "budget", "budget": 130},
        {"mode": "lagged", "cost": table, "lagged_confidence": confidence.flip(0)},
        {"mode": "uniform", "cost": table},
    ):
        yield from verify.schedule(confidence, **arguments)


def drafts(generator):
    for dtype, vocab in [(torch.float32, 5000), (torch.bfloat16, 777)]:
        output = draft.markov_sample(
            (torch.randn(9, 4, vocab, generator=generator) * 2).to(dtype),
            torch.randint(0, vocab, (9,), generator=generator),
            torch.randn(vocab, 37, generator=generator).to(dtype),
            torch.randn(vocab, 37, generator=generator).to(dtype),
            temperature=torch.linspace(0, 1.5, 9),
            seeds=torch.arange(9),
            positions=torch.arange(9) * 7,
            exact=True,
        )
        yield from output[:3]
        yield from output.statistics
        hidden = torch.randn(9, 4, 301, generator=generator).to(dtype)
        weight = torch.randn(338, generator=generator) / 9
        heat = torch.tensor([0.5, 1.0, 1.5, 2.0])
        yield draft.confidence(hidden, output.prev_embed, weight, 0.1, heat)


def draft_heads(generator):
    for kind, rows, columns in (("gated", 37, 301 + 37), ("rnn", 3 * 37, 301 + 2 * 37)):
        for dtype, batch in ((torch.bfloat16, 7), (torch.float16, 2), (torch.float32, 11)):
            output = draft.markov_sample(
                (torch.randn(batch, 3, 4500, generator=generator) * 2).to(dtype),
                torch.randint(0, 4500, (batch,), generator=generator),
                torch.randn(4500, 37, generator=generator).to(dtype),
                torch.randn(4500, 37, generator=generator).to(dtype),
                head=kind,
                hidden=torch.randn(batch, 3, 301, generator=generator).to(dtype),
                head_weight=(torch.randn(rows, columns, generator=generator) / 9).to(dtype),
                head_bias=torch.randn(rows, generator=generator).to(dtype),
                temperature=torch.linspace(0, 1.5, batch),
                seeds=torch.arange(batch),
                positions=5,
                exact=True,
            )
            yield from output[:3]
            yield from output.statistics


def routes(generator):
    for experts in router_sweep.EXPERTS:
        for seed in range(12 if experts < 1000 else 3):
            yield from torch.ops.dspark_ext.route(*router_sweep.case(seed, experts, 13))
        tokens = torch.randn(40, experts, generator=generator) * 4
        for scoring in router_sweep.SCORINGS:
            yield from moe.route(tokens, min(experts, 6), scoring=scoring)


def experts(generator):
    for kind in expert_sweep.KINDS:
        for width in (6, 64, 122):
            weights = expert_sweep.make_weights(kind, (5, 38, width), width)
            plan = expert_sweep.make_plan(23, 3, 5, width)
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                x = expert_sweep.make_rows(23, width, dtype)
                yield moe.grouped_gemm(x, weights.weight, plan, **weights.options(), exact=True)
                gated = {"activation": "swiglu", "limit": 1.0, **weights.options()}
                yield moe.grouped_gemm(x, weights.weight, plan, exact=True, **gated)
    gates = torch.randn(60, 258, generator=generator) * 9
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield moe.swiglu(gates.to(dtype), 10.0)
        yield moe.swiglu(gates.to(dtype), interleaved=True)


def linears(generator):
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.randn(77, 211, generator=generator).to(dtype)
        packed = linear.pack_linear(weight)
        for rows in (1, 6, 23, 60):
            x = torch.randn(rows, 211, generator=generator)
            yield linear.linear(x, packed, torch.randn(77, generator=generator), 77)
            yield linear.linear(x.to(torch.bfloat16), packed, None, 77)
    tiny = torch.randn(40, 64, generator=generator) * torch.exp2(-110 - torch.arange(64.0) / 2)
    packed = linear.pack_linear(tiny.to(torch.bfloat16))
    yield linear.linear(torch.ones(3, 64, dtype=torch.bfloat16), packed, None, 40)


def attentions(generator):
    for dtype, size in [(torch.float32, 64), (torch.bfloat16, 64), (torch.float32, 40)]:
        keys, values = torch.randn(2, 3, 150, 3, size, generator=generator).to(dtype)
        ends = torch.randint(1, 150, (17,), generator=generator).int()
        query = torch.randn(17, 9, size, generator=generator)
        slots = (torch.arange(17) // 6).int()
        yield attention(query, keys, values, slots, ends // 3, ends, 0.125)


FAMILIES = {
    "verify": schedules,
    "draft": drafts,
    "draft_heads": draft_heads,
    "router": routes,
    "experts": experts,
    "linear": linears,
    "attention": attentions,
}


def digests():
    found = {}
    for index, (family, results) in enumerate(FAMILIES.items()):
        found[family] = digest(*results(torch.Generator().manual_seed(index)))
    return found


if __name__ == "__main__":
    print(json.dumps({"isa": _C.cpu_isa(), "digests": digests()}))
