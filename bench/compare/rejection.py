"""Rejection sampling beside peers.

python bench/compare/rejection.py [--threads 1] [--device cuda] [--markdown FILE] [--json FILE]

fp32 logits of a peaked law, K = 5 drafts per request, temperature 0.8. Peers that take the
drafter's probabilities get them made beforehand; ours reads its logits. Before anything is timed,
every contender serves thousands of requests of one small law: the numbers it emits and its first
tokens must follow the same law as ours.
"""

import itertools
import pathlib
import sys
import types

import torch
from laws import SMALL_BATCH, SMALL_VOCAB, assert_likely
from turns import Contender, Work, main

from dspark_ext import sampling

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import eager_sampling  # noqa: E402

NUM_DRAFTS = 5
TEMPERATURE = 0.8
SHAPES = ((1, 129280), (8, 129280), (32, 49152), (32, 129280))


# ---- inputs and checks --------------------------------------------------------------------------


def block_inputs(device: str, batch: int, vocab: int) -> tuple:
    """target [B, K + 1, V], draft [B, K, V], its probabilities, drafts [B, K] drawn from them."""
    target = torch.randn(batch, NUM_DRAFTS + 1, vocab, device=device).mul_(3.0)
    draft = target[:, :NUM_DRAFTS] + 0.7 * torch.randn(batch, NUM_DRAFTS, vocab, device=device)
    probs = draft.div(TEMPERATURE).softmax(-1)
    drafts = torch.multinomial(probs.flatten(0, 1), 1).view(batch, NUM_DRAFTS)
    return target, draft, probs, drafts


def small_block_inputs(device: str) -> tuple:
    """Requests of one law, so that what they emit can be counted."""
    target, draft, probs, _ = block_inputs(device, 1, SMALL_VOCAB)
    wide = [each.expand(SMALL_BATCH, -1, -1).contiguous() for each in (target, draft, probs)]
    drafts = torch.multinomial(wide[2].flatten(0, 1), 1).view(SMALL_BATCH, NUM_DRAFTS)
    return *wide, drafts


def same_law(expected: torch.Tensor, got: torch.Tensor) -> None:
    """Two samples of blocks: numbers emitted, and first tokens by number."""

    def cells(blocks):
        emitted = (blocks >= 0).sum(1)
        return (
            (emitted * SMALL_VOCAB + blocks[:, 0])
            .long()
            .bincount(minlength=(NUM_DRAFTS + 2) * SMALL_VOCAB)
        )

    first, second = cells(expected).double(), cells(got).double()
    both = first + second
    used = both > 0
    statistic = ((first - second)[used] ** 2 / both[used]).sum()
    assert_likely(statistic, used, "another law than ours")


def emitted_blocks(result) -> torch.Tensor:
    return result.token_ids if isinstance(result, sampling.RejectionOutput) else result


# ---- rejection sampling -------------------------------------------------------------------------


def ours(method: str):
    def make():
        seeds = itertools.count()

        def call(target, draft, probs, drafts):
            batch, rows, vocab = target.shape
            start = next(seeds) * batch
            return emitted_blocks(
                sampling.rejection_sample(
                    target.view(batch * rows, vocab),
                    drafts,
                    draft,
                    query_start_loc=starts_of(target),
                    method=method,
                    temperature=TEMPERATURE,
                    seeds=torch.arange(start, start + batch, device=target.device),
                    positions=17,
                )
            )

        return call

    return make


def starts_of(target) -> torch.Tensor:
    batch, rows, _ = target.shape
    return torch.arange(batch + 1, device=target.device, dtype=torch.int32) * rows


def eager(method: str):
    def call(target, draft, probs, drafts):
        uniforms = torch.rand(drafts.shape[0], NUM_DRAFTS + 1, device=target.device)
        return eager_sampling.rejection_sample(
            target, drafts, draft, uniforms, method=method, temperature=TEMPERATURE
        )

    return lambda: call


def transformers_rule():
    """The rule of assisted generation, which takes one request."""
    from transformers.generation.utils import _speculative_sampling

    def call(target, draft, probs, drafts):
        blocks = target.new_full((len(drafts), NUM_DRAFTS + 1), -1, dtype=torch.long)
        for row in range(len(drafts)):
            found, _ = _speculative_sampling(
                drafts[row : row + 1],
                draft[row : row + 1] / TEMPERATURE,
                NUM_DRAFTS,
                target[row : row + 1] / TEMPERATURE,
            )
            blocks[row, : found.shape[1]] = found[0]
        return blocks

    return call


def flashspec():
    """Its sampler with the assembly kernel for residuals; takes log-probabilities of both laws."""
    from flashspec.sampling import rejection

    if rejection.active_residual_backend() != "asm":
        raise ImportError("flashspec-asm-kernel is not installed")

    def call(target, draft, probs, drafts):
        law = (target / TEMPERATURE).log_softmax(-1)
        bonus = torch.multinomial(law[:, NUM_DRAFTS].exp(), 1)
        tokens, emitted, _ = rejection.rejection_sample(
            drafts, probs.log(), law[:, :NUM_DRAFTS], drafts, NUM_DRAFTS
        )
        return torch.cat([tokens, torch.where(emitted[:, None] == NUM_DRAFTS, bonus, -1)], 1)

    return call


def vllm_classic():
    """The sampler of vLLM's classic runner: compiled operators on a CPU, Triton on a GPU."""
    from vllm.platforms import current_platform

    if current_platform.device_type == "cpu":
        current_platform.register_triton_kernel_overrides()
    from vllm.v1.sample import rejection_sampler

    def call(target, draft, probs, drafts):
        batch = len(drafts)
        metadata = types.SimpleNamespace(
            all_greedy=False,
            all_random=True,
            temperature=torch.full((batch,), TEMPERATURE, device=target.device),
            generators={},
        )
        bonus = vllm_draw(target[:, NUM_DRAFTS] / TEMPERATURE)
        return rejection_sampler.rejection_sample(
            drafts.flatten(),
            [NUM_DRAFTS] * batch,
            NUM_DRAFTS,
            torch.arange(1, batch + 1, dtype=torch.int32, device=target.device) * NUM_DRAFTS,
            probs.flatten(0, 1),
            (target[:, :NUM_DRAFTS] / TEMPERATURE).flatten(0, 1),
            bonus[:, None],
            metadata,
        ).long()

    return call


def vllm_draw(logits: torch.Tensor) -> torch.Tensor:
    """A token per row as vLLM's sampler draws it."""
    if logits.device.type == "cpu":
        import vllm._C  # noqa: F401

        seeds = torch.randint(0, 2**31, (len(logits),))
        return torch.ops._C.fused_gumbel_argmax(logits, seeds)
    probs = logits.softmax(-1)
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(-1)


def as_vllm_v2(function, block: bool):
    """Calls what has the arguments of the V2 runner's `rejection_sample`."""
    seeds = itertools.count()

    def call(target, draft, probs, drafts):
        batch, rows, vocab = target.shape
        device = target.device
        start, slots = next(seeds) * batch, torch.arange(batch, device=device, dtype=torch.int32)
        anchors = drafts.new_zeros(batch, 1)
        tokens, emitted = function(
            (target / TEMPERATURE).view(batch * rows, vocab),
            draft,
            torch.cat([anchors, drafts], 1).flatten(),
            starts_of(target),
            torch.arange(17, 17 + rows, device=device).repeat(batch),
            slots,
            slots.repeat_interleave(rows),
            torch.arange(rows, device=device, dtype=torch.int32).repeat(batch),
            torch.full((batch,), TEMPERATURE, device=device),
            torch.arange(start, start + batch, device=device),
            NUM_DRAFTS,
            use_block_verification=block,
        )
        places = torch.arange(rows, device=device)
        return torch.where(places < emitted[:, None], tokens, -1)

    return call


def vllm_v2(block: bool):
    def make():
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

        return as_vllm_v2(rejection_sample, block)

    return make


def as_sglang(function):
    """Calls what has the arguments of SGLang's chain kernel (token rule)."""

    def call(target, draft, probs, drafts):
        batch, rows, _ = target.shape
        device = target.device
        integers = {"dtype": torch.int32, "device": device}
        predicts = torch.full((batch * rows,), -1, **integers)
        accept_index = torch.full((batch, rows), -1, **integers)
        accepted = torch.zeros(batch, **integers)
        index = torch.arange(batch * rows, device=device).view(batch, rows)
        function(
            predicts,
            accept_index,
            accepted,
            torch.cat([drafts.new_zeros(batch, 1), drafts], 1),
            index,
            None,
            None,
            torch.rand(batch, NUM_DRAFTS, device=device),
            torch.rand(batch, device=device),
            target.div(TEMPERATURE).softmax(-1),
            probs,
        )
        tokens = predicts[accept_index.clamp(min=0).long()].long()
        return tokens.masked_fill(torch.arange(rows, device=device) > accepted[:, None], -1)

    return call


def sglang_chain():
    from sglang.kernels.ops.speculative import reject_sampling

    return as_sglang(reject_sampling.chain_speculative_sampling_triton)


def as_flashinfer(function):
    """Calls what has the arguments of FlashInfer's chain sampler (token rule)."""

    def call(target, draft, probs, drafts):
        tokens, *_ = function(probs, drafts.int(), target.div(TEMPERATURE).softmax(-1))
        return tokens.long()

    return call


def flashinfer_chain():
    from flashinfer.sampling import chain_speculative_sampling

    return as_flashinfer(chain_speculative_sampling)


def works() -> list[Work]:
    token = [
        Contender("dspark_ext", ours("token"), ours=True),
        Contender("eager torch", eager("token")),
        Contender("transformers", transformers_rule),
        Contender("vllm classic", vllm_classic),
        Contender("flashspec", flashspec),
        Contender("vllm V2 Triton", vllm_v2(False), gpu=True),
        Contender("sglang Triton", sglang_chain, gpu=True),
        Contender("flashinfer", flashinfer_chain, gpu=True),
    ]
    block = [
        Contender("dspark_ext", ours("block"), ours=True),
        Contender("eager torch", eager("block")),
        Contender("vllm V2 Triton", vllm_v2(True), gpu=True),
    ]
    return [
        Work(
            f"rejection, {rule} rule, B={batch} V={vocab}",
            lambda device, b=batch, v=vocab: block_inputs(device, b, v),
            contenders,
            same_law,
            check_inputs=small_block_inputs,
        )
        for rule, contenders in (("token", token), ("block", block))
        for batch, vocab in SHAPES
    ]


if __name__ == "__main__":
    main(__doc__, works)
