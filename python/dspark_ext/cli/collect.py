"""What a run did, gathered from its events: verified blocks, and numbers per request and in all."""

from __future__ import annotations

import dataclasses
import math

import torch


@dataclasses.dataclass
class Block:
    """A verified block: conditional confidences of the drafts that were verified, how many of them
    were accepted."""

    confidences: list[float]
    accepted: int


@dataclasses.dataclass
class RequestCount:
    """`first` is the tokens of its first pass."""

    tokens: int = 0
    passes: int = 0
    verified: int = 0
    accepted: int = 0
    first: int = 0
    finish_reason: str | None = None


class Collector:
    """Takes in events; blocks without drafts count as passes only."""

    def __init__(self, num_requests: int, num_drafts: int) -> None:
        self.num_drafts = num_drafts
        self.requests = [RequestCount() for _ in range(num_requests)]
        self.blocks: list[list[Block]] = [[] for _ in range(num_requests)]

    def add(self, event) -> None:
        count = self.requests[event.request]
        count.first = count.first or len(event.token_ids)
        count.tokens += len(event.token_ids)
        count.passes += 1
        count.verified += len(event.confidences)
        count.accepted += event.num_accepted
        count.finish_reason = event.finish_reason
        if event.confidences:
            self.blocks[event.request].append(Block(event.confidences, event.num_accepted))

    def all_blocks(self) -> list[Block]:
        return [block for blocks in self.blocks for block in blocks]

    def total(self) -> RequestCount:
        names = ("tokens", "passes", "verified", "accepted")
        return RequestCount(*(sum(getattr(r, name) for r in self.requests) for name in names))

    def verified_by_position(self) -> list[int]:
        lengths = [len(block.confidences) for block in self.all_blocks()]
        return [sum(k < length for length in lengths) for k in range(self.num_drafts)]

    def accepted_by_position(self) -> list[int]:
        counts = [block.accepted for block in self.all_blocks()]
        return [sum(k < count for count in counts) for k in range(self.num_drafts)]

    def verify_lengths(self) -> list[int]:
        """Passes by the number of drafts verified, 0 .. num_drafts."""
        counts = [0] * (self.num_drafts + 1)
        for block in self.all_blocks():
            counts[len(block.confidences)] += 1
        counts[0] += self.total().passes - sum(counts)
        return counts


@dataclasses.dataclass
class Samples:
    """Blocks as tensors for `calibration`: confidence logits fp32 [N, K] (0 where not verified),
    accepted and verify_lens int64 [N]."""

    conf_logits: torch.Tensor
    accepted: torch.Tensor
    verify_lens: torch.Tensor


def samples(blocks: list[Block], num_drafts: int) -> Samples:
    confidence = torch.full((len(blocks), num_drafts), 0.5)
    for row, block in enumerate(blocks):
        confidence[row, : len(block.confidences)] = torch.tensor(block.confidences)
    accepted = torch.tensor([block.accepted for block in blocks], dtype=torch.int64)
    lengths = torch.tensor([len(block.confidences) for block in blocks], dtype=torch.int64)
    return Samples(torch.logit(confidence, eps=1e-7), accepted, lengths)


def ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def report(generation, prompts: list[str]) -> dict:
    """The JSON report of a finished run: `RequestStats` of each request, `GenerationStats` of all.
    Rates without anything to count are null."""
    requests = [
        {"prompt": label, "finish_reason": output.finish_reason, **output.stats.to_dict()}
        for label, output in zip(prompts, generation.outputs, strict=True)
    ]
    return {"requests": requests, "total": generation.stats.to_dict()}
