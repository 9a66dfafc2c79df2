"""The engine: a target, a drafter and how to use them. The loop itself is in `generation`."""

from collections.abc import Sequence

import torch

from .. import verify
from .cache import SlotAllocator
from .config import SamplingParams, SpeculativeConfig
from .drafter import Drafter
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
        self.slots = SlotAllocator(target.max_requests)
        self.num_drafts = 0 if drafter is None else _num_drafts(self.config, drafter)
        if drafter is not None:
            _check_pair(target, drafter)
        self.cost_table = self.config.cost_table
        if self.config.schedule == "early_stop" and self.cost_table is None:
            self.cost_table = profile_target(target, self.num_drafts)

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


def profile_target(target: Target, num_drafts: int) -> verify.CostTable:
    """Seconds of a target pass by number of rows, up to a full batch of verified blocks.

    Overwrites the target's caches."""
    most = target.max_requests * (num_drafts + 1)
    counts = [n for n in (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192) if n < most]

    def step(rows: int) -> None:
        index = torch.arange(rows)
        slots, positions = index % target.max_requests, index // target.max_requests
        positions = positions.clamp(max=target.max_len - 1)
        target.forward(TargetBatch(torch.zeros_like(index), positions, slots, index))

    return verify.profile_cost_table(step, [*counts, most])


def _num_drafts(config: SpeculativeConfig, drafter: Drafter) -> int:
    wanted = config.num_speculative_tokens
    if wanted is not None and wanted > drafter.block_size:
        raise ValueError(
            "dspark_ext.engine: num_speculative_tokens: expected at most the drafter's block of "
            f"{drafter.block_size}, got {wanted}"
        )
    return drafter.block_size if wanted is None else wanted


def _check_pair(target: Target, drafter: Drafter) -> None:
    for name in ("num_features", "max_requests", "max_len"):
        if getattr(target, name) != getattr(drafter, name):
            raise ValueError(
                f"dspark_ext.engine: drafter: expected the target's {name} "
                f"{getattr(target, name)}, got {getattr(drafter, name)}"
            )
