"""One rank of test_moe_expert_parallel.py: python expert_parallel_worker.py RANK SIZE FOLDER

Runs every case and writes to FOLDER which of them failed, and how. Each rank knows the inputs of
all, so each computes the single-process result itself.
"""

from __future__ import annotations

import json
import pathlib
import sys
import traceback
from typing import NamedTuple

import torch
import torch.distributed as dist

from dspark_ext import moe


class Case(NamedTuple):
    experts_per_rank: list[int]
    tokens: list[int]  # of each rank
    k: int = 3
    width: int = 24
    dtype: torch.dtype = torch.bfloat16
    ids_dtype: torch.dtype = torch.int32
    kind: str = "random"


def cases(size: int) -> dict[str, Case]:
    def spread(*values):
        return [values[r % len(values)] for r in range(size)]

    even, some = spread(4), spread(5, 9, 2)
    return {
        "even": Case(even, some),
        "float32": Case(even, some, dtype=torch.float32, ids_dtype=torch.int64),
        "float16": Case(even, some, dtype=torch.float16, width=7),
        "uneven experts": Case(spread(1, 6, 3, 2), some),
        "a rank without experts": Case(spread(5, 0), some),
        "a rank without tokens": Case(even, spread(0, 7)),
        "one token in all": Case(even, [0] * (size - 1) + [1]),
        "no tokens at all": Case(even, spread(0)),
        "one expert gets all": Case(even, some, kind="one"),
        "only the last rank": Case(even, some, kind="last"),
        "only at home": Case(even, some, kind="home"),
        "repeated ids": Case(even, some, k=6, kind="repeated"),
        "nowhere": Case(even, some, kind="nowhere"),
        "some ids nowhere": Case(even, some, kind="invalid"),
        "one slot": Case(even, some, k=1),
        "many slots": Case(spread(8), some, k=8, width=40),
        "many tokens": Case(spread(64), spread(257, 100), k=8),
    }


class Inputs(NamedTuple):
    x: list[torch.Tensor]
    ids: list[torch.Tensor]
    weights: list[torch.Tensor]
    shared: list[torch.Tensor]
    matrices: torch.Tensor  # [E, d, d]


def make_ids(case: Case, rank: int, generator) -> torch.Tensor:
    experts, shape = sum(case.experts_per_rank), (case.tokens[rank], case.k)
    first = [sum(case.experts_per_rank[:r]) for r in range(len(case.experts_per_rank))]
    ids = torch.randint(0, experts, shape, generator=generator)
    if case.kind == "one":
        ids = torch.full(shape, experts // 2)
    elif case.kind == "last":
        ids = first[-1] + ids % case.experts_per_rank[-1]
    elif case.kind == "home":
        ids = first[rank] + ids % case.experts_per_rank[rank]
    elif case.kind == "repeated":
        ids = ids % 2 * (experts - 1)
    elif case.kind == "nowhere":
        ids = torch.full(shape, -1)
    elif case.kind == "invalid":
        lots = torch.rand(shape, generator=generator)
        wrong = torch.where(lots < 0.2, -1, experts)
        ids = torch.where(lots < 0.4, wrong, ids)
    return ids.to(case.ids_dtype)


def make_inputs(case: Case) -> Inputs:
    generator = torch.Generator().manual_seed(len(case.tokens))

    def rows(count):
        return torch.randn(count, case.width, generator=generator).to(case.dtype)

    experts = sum(case.experts_per_rank)
    return Inputs(
        [rows(n) for n in case.tokens],
        [make_ids(case, rank, generator) for rank in range(len(case.tokens))],
        [torch.rand(n, case.k, generator=generator) for n in case.tokens],
        [rows(n) for n in case.tokens],
        torch.randn(experts, case.width, case.width, generator=generator) / case.width**0.5,
    )


def experts_of(matrices: torch.Tensor):
    """Experts that work on each row by itself, so that a row does not depend on the others."""

    def run(x, plan):
        y = moe.permute(x, plan)
        offsets, counts = plan.offsets.tolist(), plan.counts.tolist()
        for e, matrix in enumerate(matrices):
            for row in range(offsets[e], offsets[e] + counts[e]):
                y[row] = torch.tanh((y[row].float()[:, None] * matrix).sum(0)).to(y.dtype)
        return y

    return run


def single_process(inputs: Inputs) -> torch.Tensor:
    x, ids = torch.cat(inputs.x), torch.cat(inputs.ids)
    plan = moe.plan(ids, len(inputs.matrices))
    y = experts_of(inputs.matrices)(x, plan)
    return moe.combine(y, plan, torch.cat(inputs.weights), shared=torch.cat(inputs.shared))


def check_equal(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape, (got.shape, want.shape)
    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)), (got, want)


def parallel_for(case: Case, **options) -> moe.ExpertParallel:
    experts = sum(case.experts_per_rank)
    return moe.ExpertParallel(None, experts, experts_per_rank=case.experts_per_rank, **options)


def run_case(case: Case, mode: str, rank: int) -> None:
    inputs = make_inputs(case)
    begin = sum(case.tokens[:rank])
    want = single_process(inputs)[begin : begin + case.tokens[rank]]
    room = {"exact": {}, "fixed": {"max_tokens": max(case.tokens) + 2}}[mode]
    ep = parallel_for(case, **room)
    own = inputs.matrices[ep.first_expert :][: ep.num_local_experts]
    mine = (inputs.x[rank], inputs.ids[rank], inputs.weights[rank])
    for _ in range(2):
        got = ep(*mine, experts_of(own), shared=inputs.shared[rank], alignment=4)
        check_equal(got, want)


def run_layer(case: Case, rank: int) -> None:
    """The layer's own experts: the bits of one process that has all of them."""
    inputs = make_inputs(case)
    generator = torch.Generator().manual_seed(8)
    shape = sum(case.experts_per_rank), 2 * case.width, case.width
    w13 = (torch.randn(shape, generator=generator) / case.width**0.5).to(case.dtype)
    w2 = w13[:, : case.width].transpose(1, 2).contiguous()
    begin = sum(case.tokens[:rank])
    want = moe.fused_moe(
        torch.cat(inputs.x), w13, w2, torch.cat(inputs.ids), torch.cat(inputs.weights),
        swiglu_limit=1.0, residual=torch.cat(inputs.shared),
    )[begin : begin + case.tokens[rank]]  # fmt: skip
    ep = parallel_for(case)
    own = slice(ep.first_expert, ep.first_expert + ep.num_local_experts)
    local = moe.ExpertWeights(w13[own], w2[own])

    def experts(x, plan):
        return moe.apply_experts(x, local, plan, swiglu_limit=1.0)

    mine = (inputs.x[rank], inputs.ids[rank], inputs.weights[rank])
    check_equal(ep(*mine, experts, residual=inputs.shared[rank], tile_rows=16), want)


def check_dispatch(case: Case, rank: int) -> None:
    """Each token comes once for each rank it goes to, in order, with the ids of that rank."""
    inputs = make_inputs(case)
    ep = parallel_for(case)
    wide = torch.cat([inputs.x[rank], inputs.x[rank]], 1)
    sent = ep.dispatch(wide[:, : case.width], inputs.ids[rank])
    local = [ids.long() - ep.first_expert for ids in inputs.ids]
    local = [torch.where((i >= 0) & (i < ep.num_local_experts), i, -1) for i in local]
    comes = [(i >= 0).any(1) for i in local]
    check_equal(sent.x.contiguous(), torch.cat([x[c] for x, c in zip(inputs.x, comes)]))
    check_equal(sent.ids.contiguous(), torch.cat([i[c] for i, c in zip(local, comes)]).int())
    assert not sent.overflow
    codes = torch.randint(0, 255, (case.tokens[rank], 5)).to(torch.uint8)
    assert ep.dispatch(codes.view(torch.float8_e4m3fn), inputs.ids[rank]).x.shape[1] == 5


def check_overflow(case: Case, rank: int) -> None:
    """Results that do not fit make their tokens NaN; all others are as ever."""
    inputs = make_inputs(case)
    begin = sum(case.tokens[:rank])
    want = single_process(inputs)[begin : begin + case.tokens[rank]]
    ep = parallel_for(case, max_tokens=max(case.tokens), max_rows=4)
    own = inputs.matrices[ep.first_expert :][: ep.num_local_experts]
    sent = ep.dispatch(inputs.x[rank], inputs.ids[rank])
    plan = ep.plan(sent)
    y = experts_of(own)(sent.x, plan)
    got = ep.combine(y, plan, sent, inputs.weights[rank], shared=inputs.shared[rank])
    counts = torch.zeros(ep.size, dtype=torch.int64)
    lost = torch.zeros(case.tokens[rank], dtype=torch.bool)
    bounds = torch.tensor(case.experts_per_rank).cumsum(0)
    for token, row in enumerate(inputs.ids[rank].tolist()):
        for e in row:
            r = int(torch.searchsorted(bounds, e, right=True))
            counts[r] += 1
            lost[token] |= bool(counts[r] > 4)
    assert bool(sent.overflow) == bool(lost.any())
    assert got[lost].isnan().all()
    check_equal(got[~lost], want[~lost])


def main(rank: int, size: int, folder: pathlib.Path) -> None:
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    found = {}

    def attempt(name, function, *arguments):
        try:
            function(*arguments)
            found[name] = None
        except Exception:
            found[name] = traceback.format_exc()
            raise

    try:
        for name, case in cases(size).items():
            for mode in ("exact", "fixed"):
                attempt(f"{mode}: {name}", run_case, case, mode, rank)
            attempt(f"layer: {name}", run_layer, case, rank)
        attempt("dispatch", check_dispatch, cases(size)["some ids nowhere"], rank)
        attempt("overflow", check_overflow, cases(size)["even"], rank)
        dist.barrier()
    finally:
        (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]))
