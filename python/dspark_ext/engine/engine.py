"""The engine: a target, a drafter and how to use them. The loop itself is in `generation`."""

import statistics
import time
from collections.abc import Sequence

import torch

from .. import verify
from .cache import SlotAllocator
from .config import SamplingParams, SpeculativeConfig
from .drafter import DraftBatch, Drafter
from .generation import Generation
from .request import Prompt, make_requests
from .target import Target, TargetBatch


class DSparkEngine:
    """Serve `target`, with drafts of `drafter`, without changing its output law.

    drafter    None = plain decoding only
    tokenizer  for text prompts and text outputs: anything with encode(str) -> ids and decode(ids)

    Greedy requests emit the same tokens as plain decoding if the target is row-invariant. Sampled
    ones follow the target's filtered law exactly, and with the schedules "fixed" and "threshold"
    their tokens depend on nothing but prompt, parameters and seed. The schedule "early_stop" weighs
    the requests of a batch against each other, so there the tokens (not their law) depend on the
    company.

    Several streams of one engine may be taken in turns; they share its cache slots. Not for several
    threads.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        config: SpeculativeConfig | None = None,
        tokenizer=None,
    ) -> None:
        self.target, self.drafter, self.tokenizer = target, drafter, tokenizer
        self.config = config or SpeculativeConfig()
        self.slots = SlotAllocator(target.max_requests, (target, drafter))
        self.num_drafts = 0 if drafter is None else _num_drafts(self.config, drafter)
        if drafter is not None:
            _check_pair(target, drafter)
        self.cost_table = self.config.cost_table
        if self.config.schedule == "early_stop" and self.cost_table is None:
            self.cost_table = profile_step(target, drafter, self.num_drafts)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculative: bool = True,
    ) -> Generation:
        """Run all prompts to their ends. Returns the finished `Generation`.

        prompts      token ids (lists or tensors) or texts; more than cache slots are queued
        params       one for all, or one each; default `SamplingParams()`
        speculative  False = plain decoding, by the same code with no drafts
        """
        generation = self.stream(prompts, params, speculative=speculative)
        for _ in generation:
            pass
        return generation

    def stream(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculative: bool = True,
    ) -> Generation:
        """As `generate`, but the returned `Generation` runs as its events are taken from it."""
        if speculative and self.drafter is None:
            raise ValueError("dspark_ext.engine: speculative: expected False without a drafter")
        requests = make_requests(
            prompts,
            SamplingParams() if params is None else params,
            tokenizer=self.tokenizer,
            vocab_size=self.target.vocab_size,
            max_len=self.target.max_len,
            engine_seed=self.config.seed,
        )
        return Generation(self, requests, speculative)


def profile_step(
    target: Target, drafter: Drafter | None, num_drafts: int, max_requests: int | None = None
) -> verify.CostTable:
    """Measure what a step costs: the target pass by its number of rows, up to verified blocks of
    `max_requests` requests (default: all slots), and the drafter by the number of requests.
    Overwrites their caches."""
    slots = target.max_requests if max_requests is None else max_requests
    most = slots * (num_drafts + 1)
    counts = [count for count in (*range(1, 9), 16, 32, 64, 128, 256) if count < most]

    def run_target(rows: int) -> None:
        index = torch.arange(rows)
        positions = (index // slots).clamp(max=target.max_len - 1)
        target.forward(TargetBatch(torch.zeros_like(index), positions, index % slots, index))

    passes = verify.profile_cost_table(run_target, [*counts, most], warmup=1)
    if drafter is None:
        return passes
    requests = [count for count in (1, 2, 4, 8, 16, 32, 64) if count < slots] + [slots]
    return verify.CostTable(
        passes.rows,
        passes.sample_seconds,
        request_rows=requests,
        request_seconds=[_draft_seconds(drafter, count, num_drafts) for count in requests],
    )


def _draft_seconds(drafter: Drafter, count: int, num_drafts: int, repeats: int = 5) -> float:
    """Median time to take in one token of each of `count` requests and to draft for all of them."""
    slots, zeros = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    batch = DraftBatch(zeros, zeros + 1, slots, torch.ones(count), slots)
    features = torch.zeros(count, drafter.num_features)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        drafter.append(features, zeros, slots, zeros)
        drafter.draft(batch, num_drafts, "probabilistic")
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _num_drafts(config: SpeculativeConfig, drafter: Drafter) -> int:
    wanted = config.num_speculative_tokens
    if wanted is not None and wanted > drafter.block_size:
        raise ValueError(
            "dspark_ext.engine: num_speculative_tokens: expected at most the drafter's block of "
            f"{drafter.block_size}, got {wanted}"
        )
    return drafter.block_size if wanted is None else wanted


def _check_pair(target: Target, drafter: Drafter) -> None:
    names = ["max_requests", "max_len"]
    if drafter.num_features:
        names.append("num_features")
    for name in names:
        if getattr(target, name) != getattr(drafter, name):
            raise ValueError(
                f"dspark_ext.engine: drafter: expected the target's {name} "
                f"{getattr(target, name)}, got {getattr(drafter, name)}"
            )
