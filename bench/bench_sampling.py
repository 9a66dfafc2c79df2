"""rejection_sample, sample and target_probs against eager torch, CPU or GPU.

python bench/bench_sampling.py [--only B=32] [--json bench/results/sampling.json]
python bench/bench_sampling.py --device cuda     on a GPU alone
python bench/bench_sampling.py --grow B,K,V      time over the batch, the drafts, the vocabulary

Beside other packages: compare/rejection.py.
"""

import dataclasses
import functools
import itertools

import counts
import eager_sampling
import harness
import torch
from growth import Growth

from dspark_ext import sampling
from dspark_ext.sampling import rejection_sample

VOCAB = 129280
NUM_DRAFTS = 5
POOL = 16
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def make_inputs(
    batch: int, dtype: torch.dtype, seed: int, vocab: int = VOCAB, drafts: int = NUM_DRAFTS
) -> tuple:
    """Logits of a peaked target, a drafter close to it, drafts sampled from the drafter."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(batch, drafts + 1, vocab, generator=generator).mul_(3.0)
    noise = torch.randn(batch, drafts, vocab, generator=generator)
    draft = target[:, :drafts].add(noise, alpha=0.7)
    probs = draft.div(0.8).softmax(-1).flatten(0, 1)
    ids = torch.multinomial(probs, 1, generator=generator).view(batch, drafts)
    uniforms = torch.rand(batch, drafts + 1, generator=generator, dtype=torch.float64)
    fixed = {
        "query_start_loc": torch.arange(batch + 1, dtype=torch.int32) * (drafts + 1),
        "temperature": torch.full((batch,), 0.8),
        "seeds": torch.arange(batch),
        "positions": torch.full((batch,), 17),
    }
    return target.to(dtype), ids, draft.to(dtype), uniforms, fixed


def filters_of(name: str, batch: int) -> dict:
    if name == "unfiltered":
        return {}
    return {"top_k": torch.full((batch,), 50), "top_p": torch.full((batch,), 0.95)}


def with_filters(inputs: tuple, filters: str) -> tuple:
    return (*inputs[:4], {**inputs[4], **filters_of(filters, len(inputs[0]))})


def operator(method: str, *, use_uniforms: bool = False):
    def run(target, drafts, draft_logits, uniforms, fixed):
        return rejection_sample(
            target.view(-1, target.shape[-1]),
            drafts,
            draft_logits,
            method=method,
            uniforms=uniforms if use_uniforms else None,
            **fixed,
        )

    return run


def eager(method: str, **options):
    def run(target, drafts, draft_logits, uniforms, fixed):
        filters = {key: fixed[key] for key in ("top_k", "top_p") if key in fixed}
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


def check(method: str):
    """Same tokens as the eager rule evaluated in float64 with the same uniforms (two requests)."""

    def compare(inputs: tuple) -> None:
        fixed = inputs[4]
        few = tuple(x[:2] for x in inputs[:4])
        rows = len(few[0])
        few_fixed = {k: v[: rows + (k == "query_start_loc")] for k, v in fixed.items()}
        got = operator(method, use_uniforms=True)(*few, few_fixed).token_ids
        expected = eager(method, dtype=torch.float64)(*few, few_fixed)
        if not torch.equal(got, expected):
            raise AssertionError(f"rejection_sample {method}: expected {expected}, got {got}")

    return compare


def floor_bytes(method: str, batch: int, drafts: int, vocab: int, element: int) -> int:
    """The rows whose statistics the rule needs, once."""
    return int(batch * counts.judged_rows(method, drafts) * vocab * element)


def moved_bytes(method: str, batch: int, drafts: int, vocab: int, element: int) -> int:
    """Residual masses and the rows of the final draw besides. Kernels of a GPU read all rows for
    the token rule, too."""
    return int(batch * counts.rejection_rows(method, drafts) * vocab * element)


def rejection_case(
    method: str,
    batch: int,
    dtype: str = "fp32",
    filters: str = "unfiltered",
    drafts: int = NUM_DRAFTS,
    vocab: int = VOCAB,
) -> harness.Case:
    seeds, element = itertools.count(), DTYPES[dtype].itemsize
    return harness.Case(
        name=f"rejection_sample {method} {dtype} B={batch} K={drafts} V={vocab} {filters}",
        op=f"rejection_sample {method}",
        make_inputs=lambda: with_filters(
            make_inputs(batch, DTYPES[dtype], next(seeds), vocab, drafts), filters
        ),
        run=operator(method),
        baseline=eager(method),
        baseline_name="eager torch",
        check=check(method),
        floor_bytes=floor_bytes(method, batch, drafts, vocab, element),
        moved_bytes=moved_bytes(method, batch, drafts, vocab, element),
        devices=harness.ANYWHERE,
    )


def rows_case(name: str, rows: int, vocab: int = VOCAB) -> harness.Case:
    """`sample` or `target_probs`, float32, unfiltered."""
    out_bytes = 4 * vocab if name == "target_probs" else 12

    def run(logits, fixed):
        if name == "sample":
            return sampling.sample(logits, **fixed)
        return sampling.target_probs(logits, temperature=fixed["temperature"])

    def baseline(logits, fixed):
        probs = logits.div(fixed["temperature"][:, None]).softmax(-1)
        return torch.multinomial(probs, 1) if name == "sample" else probs

    def inputs() -> tuple:
        index = torch.arange(rows)
        fixed = {"temperature": torch.full((rows,), 0.8), "seeds": index, "positions": index}
        return torch.randn(rows, vocab).mul_(3.0), fixed

    def compare(given: tuple) -> None:
        logits, fixed = given
        want = logits.double().div(0.8).softmax(-1)
        if name == "target_probs":
            torch.testing.assert_close(run(*given).double(), want, atol=1e-6, rtol=1e-5)
        else:
            out = run(*given)
            exact = want.gather(1, out.ids[:, None]).log()[:, 0]
            torch.testing.assert_close(out.logprobs.double(), exact, atol=1e-4, rtol=1e-5)

    size = rows * (4 * vocab + out_bytes)
    return harness.Case(
        name=f"{name} fp32 N={rows} V={vocab}",
        make_inputs=inputs,
        run=run,
        baseline=baseline,
        baseline_name="eager torch",
        check=compare,
        floor_bytes=size,
        moved_bytes=size + (rows * 4 * vocab if name == "target_probs" else 0),
        devices=harness.ANYWHERE,
    )


def make_cases(quick: bool = False) -> list[harness.Case]:
    batches, size = ((2,), {"vocab": 300}) if quick else ((1, 32), {})
    plain = itertools.product(("block", "token"), batches, DTYPES, ("unfiltered",))
    filtered = itertools.product(("block",), batches, ("fp32",), ("k=50,p=.95",))
    cases = [rejection_case(*chosen, **size) for chosen in (*plain, *filtered)]
    rows = itertools.product(("sample", "target_probs"), batches)
    return [*cases, *(rows_case(name, batch, **size) for name, batch in rows)]


@functools.lru_cache(maxsize=1)
def pool() -> tuple:
    """Requests of which batches of every size are made, so that all have the same work."""
    return make_inputs(POOL, torch.float32, 1)


def batch_case(method: str, batch: int) -> harness.Case:
    """rejection_sample of requests of the pool: all of them in turns, or several times over."""
    turn = itertools.count()

    def inputs() -> tuple:
        index = (next(turn) * batch + torch.arange(batch)) % POOL
        target, ids, draft, uniforms, fixed = pool()
        fixed = {name: value[:1].expand(batch).clone() for name, value in fixed.items()}
        fixed["query_start_loc"] = torch.arange(batch + 1, dtype=torch.int32) * (NUM_DRAFTS + 1)
        fixed["seeds"] = index
        return target[index], ids[index], draft[index], uniforms[index], fixed

    return dataclasses.replace(rejection_case(method, batch), make_inputs=inputs)


GROWTHS = {
    "B": [
        Growth(
            f"rejection_sample {method} fp32 K=5 V=129280",
            (1, 2, 4, 8, 16, 32, 64),
            lambda value, m=method: batch_case(m, value),
        )
        for method in ("block", "token")
    ],
    "K": [
        Growth(
            f"rejection_sample {method} fp32 B=32 V=129280",
            (1, 2, 3, 5, 8, 12, 16),
            lambda value, m=method: rejection_case(m, 32, drafts=value),
        )
        for method in ("block", "token")
    ],
    "V": [
        Growth(
            f"rejection_sample {method} fp32 B=32 K=5",
            (16160, 32320, 64640, 96960, 129280, 193920, 258560),
            lambda value, m=method: rejection_case(m, 32, vocab=value),
            quick_values=(300, 600),
        )
        for method in ("block", "token")
    ],
}


if __name__ == "__main__":
    torch.manual_seed(0)
    harness.main(__doc__.partition("\n")[0], make_cases, GROWTHS)
