"""The engine for minutes: requests of all kinds join and leave, by every method; slots, blocks of
the cache, objects and memory are afterwards what they were."""

import collections
import ctypes
import gc
import mmap
import os
import pathlib
import time

import pytest
import torch
from random_models import served_model
from test_mixed_requests import CONFIDENCE, DRAFTER, TARGET, TableDrafter, TableTarget, Workload

from dspark_ext.engine import (
    CausalLMTarget,
    DSparkEngine,
    NGramDrafter,
    SamplingParams,
    SpeculativeConfig,
)
from dspark_ext.verify import CostTable

SLOTS = 6
SECONDS = float(os.environ.get("DSPARK_SOAK_SECONDS", 120))
MOST_GROWTH = 32 << 20  # resident bytes from the first third to the end
MOST_OBJECTS = 300  # more of what the collector sees, caches of other libraries included
COSTS = CostTable(
    [1, 4, 16, 64], [1.0, 1.1, 1.6, 4.0], request_rows=[1, 8], request_seconds=[0.1, 0.3]
)
CONFIGS = {
    "fixed": {},
    "token rule": {"rejection_sample_method": "token"},
    "greedy drafts": {"draft_sample_method": "greedy"},
    "threshold, two blocks": {
        "schedule": "threshold", "confidence_threshold": 0.5, "blocks_per_step": 2,
    },
    "early stop": {"schedule": "early_stop", "cost_table": COSTS},
    "budget": {"schedule": "budget", "verify_budget": 9},
    "lagged": {"schedule": "lagged", "cost_table": COSTS},
    "uniform": {"schedule": "uniform", "cost_table": COSTS},
    "gate": {"draft_gate": True, "cost_table": COSTS},
    "switched off by acceptance": {"min_acceptance": 0.9, "probe_interval": 5},
    "lengths by batch size": {
        "num_speculative_tokens_per_batch_size": ((1, 2, 3), (3, 4, 1), (5, 6, 0)),
    },
    "synthetic": {
        "rejection_sample_method": "synthetic", "allow_lossy": True,
        "synthetic_acceptance_length": 2.0,
    },
}  # fmt: skip


def resident() -> int:
    ctypes.CDLL(None).malloc_trim(0)
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def kinds_of_objects() -> collections.Counter:
    gc.collect()
    return collections.Counter(type(item).__name__ for item in gc.get_objects())


def engines(serve):
    """One of every configuration, whose requests cost little; pools of blocks to look at."""
    for name, config in CONFIGS.items():
        yield name, serve(max_requests=SLOTS, **config)
    yield "plain", serve(max_requests=SLOTS)
    model = served_model("llama")
    target = CausalLMTarget(model, max_requests=SLOTS, max_len=60, block_size=4, num_blocks=40)
    config = SpeculativeConfig(method="ngram", num_speculative_tokens=4)
    yield "pages, lookup", DSparkEngine(target, NGramDrafter.for_target(target), config)


class Clerk:
    """Work for an engine, turn after turn, with its books."""

    def __init__(self, name: str, engine: DSparkEngine) -> None:
        self.name, self.engine = name, engine
        self.turn = self.requests = 0
        pool = getattr(engine.target, "pool", None)
        self.pool = pool if hasattr(pool, "available") else None
        self.free = None if self.pool is None else self.pool.available

    def work(self) -> None:
        work = Workload(12, seed=1000 * self.turn)
        work.speculative = [self.name != "plain" and flag for flag in work.speculative]
        vocab = self.engine.target.vocab_size
        if vocab < 256:
            work.prompts = [[1 + i % (vocab - 3) for i in ids[:9]] for ids in work.prompts]
            work.params = [
                SamplingParams(temperature=p.temperature, seed=p.seed, max_new_tokens=12)
                for p in work.params
            ]
        if "synthetic" in self.name:
            work.params = [SamplingParams(seed=n, max_new_tokens=9) for n in range(12)]
        handles = work.run(self.engine, most_steps=4000)
        self.turn += 1
        self.requests += len(handles)
        self.check()

    def check(self) -> None:
        engine = self.engine
        assert engine.slots.available == SLOTS, self.name
        assert not engine._handles and not engine.has_work, self.name
        assert self.pool is None or self.pool.available == self.free, self.name
        stats = engine.stats
        assert stats.finished + stats.cancelled == self.requests, self.name


def forget_latencies(clerks) -> None:
    """Of which an engine keeps as many as it says."""
    for clerk in clerks:
        clerk.engine.stats.token_seconds.clear()
        clerk.engine.stats.first_token_seconds.clear()


@pytest.mark.slow
def test_soak(serve):
    clerks = [Clerk(*pair) for pair in engines(serve)]
    assert len(clerks) == len(CONFIGS) + 2
    begin = time.monotonic()
    before = None
    while (elapsed := time.monotonic() - begin) < SECONDS or before is None:
        for clerk in clerks:
            clerk.work()
        if before is None and elapsed > SECONDS / 3:
            forget_latencies(clerks)
            before = kinds_of_objects(), resident()
    forget_latencies(clerks)
    objects, memory = kinds_of_objects(), resident()
    more = objects - before[0]
    assert sum(more.values()) < MOST_OBJECTS, more.most_common(8)
    assert memory - before[1] < MOST_GROWTH, f"grew by {memory - before[1]} bytes"
    turns, requests = clerks[0].turn, sum(clerk.requests for clerk in clerks)
    print(
        f"{requests} requests in {turns} turns of {len(clerks)} engines, "
        f"{sum(more.values())} objects and {memory - before[1]} bytes more"
    )


def test_a_turn_of_every_configuration_without_a_model():
    """The books, on engines that cost nothing."""
    for name, config in CONFIGS.items():
        sizes = {"max_requests": SLOTS, "max_len": 48}
        drafter = TableDrafter(DRAFTER, CONFIDENCE, 3, **sizes)
        engine = DSparkEngine(TableTarget(TARGET, **sizes), drafter, SpeculativeConfig(**config))
        Clerk(name, engine).work()
        assert engine.stats.emitted > 0
        assert torch.isfinite(torch.tensor(engine.stats.tokens_per_pass))
