"""rejection_sample against eager torch and against transformers' assisted generation, on the CPU.

python bench/bench_sampling.py [--only B=32] [--json bench/results/sampling.jsonl]
"""

import itertools

import eager_sampling
import harness
import torch

from dspark_ext.sampling import rejection_sample

VOCAB = 129280
NUM_DRAFTS = 5


def make_inputs(batch: int, dtype: torch.dtype, seed: int) -> tuple:
    """Logits of a peaked target, a drafter close to it, drafts sampled from the drafter."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(batch, NUM_DRAFTS + 1, VOCAB, generator=generator).mul_(3.0)
    noise = torch.randn(batch, NUM_DRAFTS, VOCAB, generator=generator)
    draft = target[:, :NUM_DRAFTS].add(noise, alpha=0.7)
    probs = draft.div(0.8).softmax(-1).flatten(0, 1)
    drafts = torch.multinomial(probs, 1, generator=generator).view(batch, NUM_DRAFTS)
    uniforms = torch.rand(batch, NUM_DRAFTS + 1, generator=generator, dtype=torch.float64)
    return target.to(dtype), drafts, draft.to(dtype), uniforms


def filters_of(name: str, batch: int) -> dict:
    if name == "unfiltered":
        return {}
    return {"top_k": torch.full((batch,), 50), "top_p": torch.full((batch,), 0.95)}


def operator(method: str, filters: dict, *, use_uniforms: bool = False):
    def run(target, drafts, draft_logits, uniforms):
        batch, rows, vocab = target.shape
        return rejection_sample(
            target.view(batch * rows, vocab),
            drafts,
            draft_logits,
            query_start_loc=torch.arange(batch + 1, dtype=torch.int32) * rows,
            method=method,
            temperature=0.8,
            seeds=torch.arange(batch),
            positions=torch.full((batch,), 17),
            uniforms=uniforms if use_uniforms else None,
            **filters,
        )

    return run


def eager(method: str, filters: dict, **options):
    def run(target, drafts, draft_logits, uniforms):
        return eager_sampling.rejection_sample(
            target,
            drafts,
            draft_logits,
            uniforms,
            method=method,
            temperature=0.8,
            **filters,
            **options,
        )

    return run


def check(method: str, filters: dict):
    """Same tokens as the eager rule evaluated in float64 with the same uniforms (two requests)."""

    def compare(inputs: tuple) -> None:
        few = tuple(x[:2] for x in inputs)
        few_filters = {name: value[:2] for name, value in filters.items()}
        got = operator(method, few_filters, use_uniforms=True)(*few).token_ids
        expected = eager(method, few_filters, dtype=torch.float64)(*few)
        if not torch.equal(got, expected):
            raise AssertionError(f"rejection_sample {method}: expected {expected}, got {got}")

    return compare


def floor_bytes(method: str, batch: int, element: int) -> int:
    """Each row's statistics need one read of it: B (K+1) target rows and B K draft rows."""
    return batch * (2 * NUM_DRAFTS + 1) * VOCAB * element


def moved_bytes(method: str, batch: int, element: int) -> int:
    """Beside the floor: residual masses of K-1 row pairs (block), and one pair to draw from."""
    pairs = NUM_DRAFTS if method == "block" else 1
    return floor_bytes(method, batch, element) + batch * 2 * pairs * VOCAB * element


def transformers_case() -> list[harness.Case]:
    """The rule that transformers' assisted generation runs (token level, one request)."""
    try:
        from transformers.generation.utils import _speculative_sampling
    except ImportError:
        print("transformers' _speculative_sampling: not importable here, skipped")
        return []

    def peer(target, drafts, draft_logits, uniforms):
        return _speculative_sampling(drafts, draft_logits / 0.8, NUM_DRAFTS, target / 0.8)

    seeds = itertools.count(100)
    return [
        harness.Case(
            name="token fp32 B=1 unfiltered (peer)",
            make_inputs=lambda: make_inputs(1, torch.float32, next(seeds)),
            run=operator("token", {}),
            baseline=peer,
            baseline_name="transformers",
            check=check("token", {}),
            floor_bytes=floor_bytes("token", 1, 4),
            moved_bytes=moved_bytes("token", 1, 4),
        )
    ]


def cases() -> list[harness.Case]:
    result = []
    plain = itertools.product(["block", "token"], [1, 32], ["fp32", "bf16"], ["unfiltered"])
    filtered = itertools.product(["block"], [1, 32], ["fp32"], ["k=50,p=.95"])
    for method, batch, dtype_name, filter_name in [*plain, *filtered]:
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype_name]
        filters = filters_of(filter_name, batch)
        seeds = itertools.count()
        result.append(
            harness.Case(
                name=f"{method} {dtype_name} B={batch} {filter_name}",
                make_inputs=lambda b=batch, d=dtype, s=seeds: make_inputs(b, d, next(s)),
                run=operator(method, filters),
                baseline=eager(method, filters),
                baseline_name="eager torch",
                check=check(method, filters),
                floor_bytes=floor_bytes(method, batch, dtype.itemsize),
                moved_bytes=moved_bytes(method, batch, dtype.itemsize),
            )
        )
    return result + transformers_case()


if __name__ == "__main__":
    harness.main(__doc__.partition("\n")[0], cases)
