"""Runs of the engine for bench_generation.py: ways to serve, in turns, step by step.

All ways serve the same prompts over one target and one drafter, each in cache slots of its own. The
way that has used the least processor time so far takes the next step, so that all meet the same
disturbances; times are those of its steps alone.
"""

import collections
import dataclasses
import statistics
import time

import generation_profile
from generation_pairs import Pair

from dspark_ext import engine
from dspark_ext.engine.cache import SlotAllocator
from dspark_ext.verify import CostTable

# How drafts are made and verified; None = plain decoding.
WAYS: dict[str, dict | None] = {
    "plain": None,
    "fixed 2": {"schedule": "fixed", "num_speculative_tokens": 2},
    "quality": {"preset": "quality"},
    "low_latency": {"preset": "low_latency"},
    "high_throughput": {"preset": "high_throughput"},
}
WHOLE_PROMPTS = 1 << 20  # rows of prompts in a pass
COUNTERS = ("steps", "plain_steps", "passes", "emitted", "verified_rows", "prefill_rows")


@dataclasses.dataclass
class Step:
    """wall, processor seconds; requests it decoded for, tokens emitted, prompt rows in it."""

    wall: float
    processor: float
    decoded: int
    emitted: int
    prefill_rows: int


class Lane:
    """One way at one load: `concurrency` requests in flight until `requests` are done."""

    def __init__(self, name: str, served: engine.DSparkEngine, requests: list, concurrency: int):
        self.name, self.served = name, served
        self.waiting = collections.deque(requests)
        self.concurrency = concurrency
        self.in_flight = 0
        self.now = 0.0  # seconds of the clock that counts
        self.steps: list[Step] = []
        self.phases = generation_profile.PhaseClock()
        self.outputs: dict[int, list[int]] = {}
        self.latencies: list[float] = []
        self.first: list[float] = []
        self._entered: dict[int, tuple[int, float]] = {}
        self._last: dict[int, float] = {}
        self._before = self._counters()
        self._fill()

    @property
    def finished(self) -> bool:
        return not (self.waiting or self.in_flight)

    def step(self, clock: str) -> None:
        before = self.served.stats.prefill_rows
        wall, processor = time.perf_counter(), time.process_time()
        events = self.served.step()
        processor = time.process_time() - processor
        wall = time.perf_counter() - wall
        rows = self.served.stats.prefill_rows - before
        emitted = sum(len(event.token_ids) for event in events)
        self.steps.append(Step(wall, processor, len(events), emitted, rows))
        self.now += wall if clock == "wall" else processor
        for event in events:
            self._take(event)
        self._fill()

    def _take(self, event) -> None:
        index, entered = self._entered[event.request]
        last = self._last.get(event.request)
        count = len(event.token_ids)
        if last is None:
            self.first.append(self.now - entered)
        else:
            self.latencies += [(self.now - last) / count] * count
        self._last[event.request] = self.now
        self.outputs.setdefault(index, []).extend(event.token_ids)
        self.in_flight -= event.finish_reason is not None

    def _fill(self) -> None:
        while self.waiting and self.in_flight < self.concurrency:
            index, prompt, params = self.waiting.popleft()
            speculative = WAYS[self.name] is not None
            handle = self.served.submit(prompt, params, speculative=speculative)
            self._entered[handle.id] = index, self.now
            self.in_flight += 1

    def _counters(self) -> dict[str, float]:
        return {name: getattr(self.served.stats, name) for name in COUNTERS}

    def counted(self) -> dict[str, float]:
        """What the engine counted since the lane began."""
        return {name: value - self._before[name] for name, value in self._counters().items()}


class Runs:
    """Engines of all ways over one pair, for up to `most` requests at once."""

    def __init__(self, pair: Pair, most: int, tokens: int, clock: str) -> None:
        self.pair, self.most, self.tokens, self.clock = pair, most, tokens, clock
        self._alone: dict[tuple[float, int], list[int]] = {}  # tokens of "quality"
        self.cost_table = self._profile()
        slots = SlotAllocator(pair.target.max_requests, (pair.target, pair.drafter))
        self.engines = {}
        for name, settings in WAYS.items():
            config = engine.SpeculativeConfig.from_dict(settings or {})
            if config.needs_cost_table:
                config = dataclasses.replace(config, cost_table=self.cost_table)
            self.engines[name] = engine.DSparkEngine(pair.target, pair.drafter, config)
            self.engines[name].slots = slots

    def _profile(self) -> CostTable:
        return engine.profile_step(
            self.pair.target, self.pair.drafter, self.pair.drafter.block_size, self.most
        )

    def lanes(self, temperature: float, concurrency: int, requests: int, tokens: int) -> list[Lane]:
        """Request number i has the same prompt and seed in every lane and at every load."""
        prompts = self.pair.prompts
        asked = [
            (
                index,
                prompts[index % len(prompts)],
                engine.SamplingParams(temperature=temperature, seed=index, max_new_tokens=tokens),
            )
            for index in range(requests)
        ]
        return [Lane(name, self.engines[name], asked, concurrency) for name in WAYS]

    # -- whole generations

    def generate(self, temperature: float, concurrency: int) -> list[dict]:
        """A row per way. AssertionError if text differs that must not."""
        requests = max(8, concurrency)
        lanes = self.lanes(temperature, concurrency, requests, self.tokens)
        open_lanes = [*lanes]
        while open_lanes:
            lane = min(open_lanes, key=lambda lane: lane.now)
            with generation_profile.phases_of(self.pair, lane.phases):
                lane.step(self.clock)
            open_lanes = [lane for lane in open_lanes if not lane.finished]
        for lane in lanes[1:] if temperature == 0 else ():
            check_equal(lane, lanes[0].outputs, "plain decoding")
        own = next(lane for lane in lanes if lane.name == "quality")
        for index, tokens in own.outputs.items():
            self._alone.setdefault((temperature, index), tokens)
        alone = {index: self._alone[temperature, index] for index in own.outputs}
        check_equal(own, alone, "what it got at another load")
        return [self._row(lane, temperature, lanes[0]) for lane in lanes]

    def _row(self, lane: Lane, temperature: float, plain: Lane) -> dict:
        counted = lane.counted()
        wall, processor = (sum(getattr(s, kind) for s in lane.steps) for kind in CLOCKS)
        seconds = lane.now
        deciles = statistics.quantiles(lane.latencies, n=10, method="inclusive")
        phases = {name: value / processor for name, value in lane.phases.seconds.items()}
        return {
            "kind": "generation",
            "temperature": temperature,
            "concurrency": lane.concurrency,
            "way": lane.name,
            "requests": len(lane.outputs),
            "tokens": counted["emitted"],
            "wall_seconds": wall,
            "processor_seconds": processor,
            "tokens_per_second": counted["emitted"] / seconds,
            "times_plain": counted["emitted"] / seconds / (plain.counted()["emitted"] / plain.now),
            "latency_p50_ms": 1e3 * statistics.median(lane.latencies),
            "latency_p90_ms": 1e3 * deciles[-1],
            "first_token_p50_ms": 1e3 * statistics.median(lane.first),
            "tokens_per_pass": counted["emitted"] / counted["passes"],
            "drafts_per_pass": counted["verified_rows"] / counted["passes"] - 1,
            "drafting_share": 1 - counted["plain_steps"] / counted["steps"],
            "phases": {**phases, "other": 1 - sum(phases.values())},
        }

    # -- single steps

    def steps(
        self, temperature: float, concurrency: int, count: int, profiled: tuple = ()
    ) -> list[dict]:
        """A row per way: `count` steps in which `concurrency` requests decode and no prompt enters;
        for ways of `profiled` also what its time went into, from as many further steps."""
        lanes = self.lanes(temperature, concurrency, concurrency, tokens_of(count))
        for lane in lanes:
            config = lane.served.config
            lane.served.config = dataclasses.replace(config, prefill_chunk=WHOLE_PROMPTS)
            while len(lane.outputs) < concurrency:
                lane.step(self.clock)
            lane.served.config = config
            lane.steps.clear()
        for _ in range(count):
            for lane in lanes:
                lane.step(self.clock)
        rows = []
        for lane in lanes:
            full = [step for step in lane.steps if step.decoded == concurrency]
            times = [1e3 * getattr(step, self.clock) for step in full]
            deciles = statistics.quantiles(times, n=10, method="inclusive")
            row = {
                "kind": "step",
                "temperature": temperature,
                "concurrency": concurrency,
                "way": lane.name,
                "steps": len(full),
                "step_ms": statistics.median(times),
                "step_p10_ms": deciles[0],
                "step_p90_ms": deciles[-1],
                "emitted_per_step": sum(step.emitted for step in full) / len(full),
            }
            if lane.name in profiled:
                row["parts"] = generation_profile.parts_of_steps(
                    lambda lane=lane: lane.step(self.clock), count
                )
                row["profiled_steps"] = count
            rows.append(row)
            for request in list(lane._entered):
                lane.served.cancel(request)
        return rows


CLOCKS = ("wall", "processor")


def tokens_of(steps: int) -> int:
    """What is asked of requests for so many timed and so many profiled steps: few accept more."""
    return 3 * (2 * steps + 4)


def check_equal(lane: Lane, expected: dict[int, list[int]], what: str) -> None:
    for index, tokens in expected.items():
        if lane.outputs[index] != tokens:
            raise AssertionError(
                f"bench_generation: {lane.name}, {lane.concurrency} at once: the tokens of "
                f"request {index} differ from {what}"
            )
