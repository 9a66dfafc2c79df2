"""What the demo measures beside the races: a batch under the scheduler, and the law of a token."""

import dataclasses

import torch
from rich.console import Console

from .. import sampling
from ..engine import DraftBatch, Generation, SamplingParams, StepEvent, TargetBatch
from .loading import BATCH, Served
from .prompts import HELD_OUT

LAW_PROMPT = "Today we"
ALL_DRAFTS = "DSpark, all drafts"


@dataclasses.dataclass
class BatchRun:
    """A finished batch; `events` by the temperature of their requests."""

    generation: Generation
    events: dict[float, list[StepEvent]]


def run_batches(
    console: Console, served: Served, size: int, max_new_tokens: int
) -> dict[str, BatchRun]:
    """The same `size` held-out requests, half of them greedy, under three ways of verifying. The
    way that has used less time of the engine moves next, as in a race."""
    prompts = [served.chat(question) for _, question in HELD_OUT[:size]]
    params = [
        served.params(0.0 if index % 2 else 0.8, max_new_tokens, seed=index)
        for index in range(size)
    ]
    everything = served.engine()
    scheduled = served.engine(schedule="early_stop", cost_table=served.cost_table)
    scheduled.slots = everything.slots  # one set of caches
    streams = {
        "plain": everything.stream(prompts, params, speculative=False),
        ALL_DRAFTS: everything.stream(prompts, params),
        "DSpark, early_stop": scheduled.stream(prompts, params),
    }
    runs = {name: BatchRun(stream, {0.0: [], 0.8: []}) for name, stream in streams.items()}
    pending = {name: iter(stream) for name, stream in streams.items()}
    with console.status(f"{size} requests, three ways"):
        while pending:
            name = min(pending, key=lambda name: streams[name].stats.seconds)
            event = next(pending[name], None)
            if event is None:
                del pending[name]
            else:
                runs[name].events[params[event.request].temperature].append(event)
    return runs


@dataclasses.dataclass
class LawCheck:
    """p-values of Pearson's chi-square of `runs` first tokens against the target's exact law.

    verified  tokens that verification let out
    drafted   the drafter's own proposals: the negative control, whose p has to vanish
    """

    runs: int
    cells: int
    verified: float
    drafted: float


def first_token_law(console: Console, served: Served, runs: int) -> LawCheck:
    """Draw the first token after a short prompt `runs` times, each with its own seed."""
    prompt = served.tokenizer.encode(LAW_PROMPT)
    engine = served.engine()
    verified, drafted = [], []
    with console.status(f"Drawing {runs} first tokens after {LAW_PROMPT!r}"):
        for start in range(0, runs, BATCH):
            seeds = range(start, min(start + BATCH, runs))
            params = [
                SamplingParams(temperature=1.0, seed=seed, max_new_tokens=served.drafter.block_size)
                for seed in seeds
            ]
            stream = engine.stream([prompt] * len(params), params)
            first: dict[int, int] = {}
            for event in stream:
                first.setdefault(event.request, event.token_ids[0])
                if len(first) == len(params):
                    break
            stream.close()
            verified += first.values()
            drafted += _drafted_tokens(served, prompt, list(seeds))
        law = _target_law(served, prompt)
    (p_verified, cells), (p_drafted, _) = (
        chi_square(torch.tensor(tokens), law) for tokens in (verified, drafted)
    )
    return LawCheck(runs, cells, p_verified, p_drafted)


def _target_law(served: Served, prompt: list[int]) -> torch.Tensor:
    """Exact law [V] of the next token, which also leaves the prompt's features with the drafter."""
    index = torch.arange(len(prompt))
    slots = torch.zeros_like(index)
    output = served.target.forward(TargetBatch(torch.tensor(prompt), index, slots, index[-1:]))
    return sampling.target_probs(output.logits, temperature=1.0)[0].double()


def _drafted_tokens(served: Served, prompt: list[int], seeds: list[int]) -> list[int]:
    """x_1 as proposed for each seed, unverified; the context is what the slots still hold."""
    count = len(seeds)
    batch = DraftBatch(
        torch.full((count,), prompt[-1]),
        torch.full((count,), len(prompt) - 1),
        torch.arange(count),
        torch.ones(count),
        torch.tensor(seeds),
    )
    return served.drafter.draft(batch, 1, "probabilistic").token_ids[:, 0].tolist()


def chi_square(tokens: torch.Tensor, law: torch.Tensor) -> tuple[float, int]:
    """(p, cells) of Pearson's statistic; tokens that expect fewer than 5 share one cell."""
    expected = law * len(tokens)
    counts = torch.bincount(tokens, minlength=len(law)).double()
    own = expected >= 5
    expected = torch.cat([expected[own], expected[~own].sum()[None]])
    counts = torch.cat([counts[own], counts[~own].sum()[None]])
    statistic = ((counts - expected) ** 2 / expected).sum()
    degrees = torch.tensor(len(counts) - 1.0, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees / 2, statistic / 2)), len(counts)
