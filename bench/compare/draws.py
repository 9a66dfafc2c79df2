"""Plain draws beside peers: by temperature, filtered, and the argmax.

python bench/compare/draws.py [--threads 1] [--device cuda] [--markdown FILE] [--json FILE]

fp32 logits, temperature 0.8. Before anything is timed, every contender draws thousands of tokens
from one small law, which they must follow.
"""

import itertools

import rejection
import torch
from laws import SMALL_BATCH, SMALL_VOCAB, assert_likely
from rejection import TEMPERATURE, eager_sampling
from turns import Contender, Work, main

from dspark_ext import sampling

SHAPES = ((1, 129280), (32, 49152))
FILTERS = {"top_k": 50, "top_p": 0.95}


def our_draw(temperature: float, **filters):
    def make():
        seeds = itertools.count()

        def call(logits):
            start = next(seeds) * len(logits)
            seed = torch.arange(start, start + len(logits), device=logits.device)
            return sampling.sample(
                logits, temperature=temperature, seeds=seed, positions=17, **filters
            ).ids.long()

        return call

    return make


def torch_multinomial():
    return lambda logits: torch.multinomial(logits.div(TEMPERATURE).softmax(-1), 1)[:, 0]


def torch_exponential():
    def call(logits):
        probs = logits.div(TEMPERATURE).softmax(-1)
        return probs.div_(torch.empty_like(probs).exponential_()).argmax(-1)

    return call


def vllm_plain_draw():
    def call(logits):
        return rejection.vllm_draw(logits / TEMPERATURE)

    import vllm._C  # noqa: F401

    return call


def vllm_greedy():
    import vllm._C  # noqa: F401

    return torch.ops._C.greedy_argmax


def columns(logits):
    count = {"dtype": torch.int32, "device": logits.device}
    return (
        torch.full((len(logits),), FILTERS["top_k"], **count),
        torch.full((len(logits),), FILTERS["top_p"], device=logits.device),
    )


def torch_filtered():
    def call(logits):
        top_k, top_p = columns(logits)
        top_k = top_k.clamp(max=logits.shape[1]).long()
        probs = eager_sampling.filtered_probs(logits[:, None], TEMPERATURE, top_k, top_p)[:, 0]
        return torch.multinomial(probs, 1)[:, 0]

    return call


def vllm_filtered():
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    def call(logits):
        top_k, top_p = columns(logits)
        return rejection.vllm_draw(
            apply_top_k_top_p(logits / TEMPERATURE, top_k.clamp(max=logits.shape[1]), top_p)
        )

    return call


def flashinfer_draw():
    from flashinfer.sampling import sampling_from_logits

    return lambda logits: sampling_from_logits(logits / TEMPERATURE).long()


def flashinfer_filtered():
    from flashinfer.sampling import top_k_top_p_sampling_from_logits

    def call(logits):
        return top_k_top_p_sampling_from_logits(logits / TEMPERATURE, *columns(logits)).long()

    return call


def follows(law_of):
    """A check of SMALL_BATCH tokens against the law of one row."""

    def check(expected, got) -> None:
        logits = small_logits("cpu")[:1]
        law = law_of(logits)[0].double() * len(got)
        counts = got.cpu().bincount(minlength=SMALL_VOCAB).double()
        assert counts[law == 0].sum() == 0, "a token outside the filters"
        used = law > 0
        statistic = ((counts - law)[used] ** 2 / law[used]).sum()
        assert_likely(statistic, used, "another law")

    return check


def small_logits(device: str) -> torch.Tensor:
    row = torch.linspace(-2, 2, SMALL_VOCAB).sin().mul_(3.0)
    return row.expand(SMALL_BATCH, -1).contiguous().to(device)


def equal(expected, got) -> None:
    assert torch.equal(expected, got), "other tokens"


def works() -> list[Work]:
    kinds = {
        "draw": (
            [
                Contender("dspark_ext", our_draw(TEMPERATURE), ours=True),
                Contender("torch multinomial", torch_multinomial),
                Contender("torch exponential", torch_exponential),
                Contender("vllm fused_gumbel_argmax", vllm_plain_draw),
                Contender("flashinfer", flashinfer_draw, gpu=True),
            ],
            follows(lambda logits: logits.div(TEMPERATURE).softmax(-1)),
        ),
        "draw, top-k 50, top-p 0.95": (
            [
                Contender("dspark_ext", our_draw(TEMPERATURE, **FILTERS), ours=True),
                Contender("torch sort", torch_filtered),
                Contender("vllm apply_top_k_top_p", vllm_filtered),
                Contender("flashinfer", flashinfer_filtered, gpu=True),
            ],
            follows(
                lambda logits: eager_sampling.filtered_probs(
                    logits[:, None], TEMPERATURE, None, torch.tensor([FILTERS["top_p"]])
                )[:, 0]
            ),
        ),
        "argmax": (
            [
                Contender("dspark_ext", our_draw(0.0), ours=True),
                Contender("torch argmax", lambda: lambda logits: logits.argmax(-1)),
                Contender("vllm greedy_argmax", vllm_greedy),
            ],
            equal,
        ),
    }
    return [
        Work(
            f"{kind}, N={rows} V={vocab}",
            lambda device, n=rows, v=vocab: (torch.randn(n, v, device=device).mul_(3.0),),
            contenders,
            check,
            check_inputs=lambda device: (small_logits(device),),
        )
        for kind, (contenders, check) in kinds.items()
        for rows, vocab in SHAPES
    ]


if __name__ == "__main__":
    main(__doc__, works)
