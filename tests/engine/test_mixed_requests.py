"""Many requests of all kinds that come and go: nothing leaks, none is stuck, and each gets the
tokens of its run alone."""

import gc
import random
import threading
import time
import tracemalloc
import weakref

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from table_models import TableDrafter, TableTarget, table

from dspark_ext.demo import tiny
from dspark_ext.engine import DSparkEngine, SamplingParams, SpeculativeConfig

SLOTS = 6


def random_params(rng: random.Random, index: int) -> SamplingParams:
    longest = rng.choice([1, 2, 7, 20, 45])
    return SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.5, 1.0, 1.5]),
        top_k=rng.choice([0, 0, 5, 40]),
        top_p=rng.choice([1.0, 1.0, 0.9, 0.5]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        seed=1000 + index,
        max_new_tokens=longest,
        min_new_tokens=rng.choice([0, 0, 1, longest // 2]),
        stop_token_ids=tuple(rng.sample(range(256), rng.choice([0, 0, 3, 20]))),
        stop=tuple(rng.sample(["e", "th", "\n", "self", "  ", "zzz"], rng.choice([0, 0, 1, 3]))),
        logprobs=rng.choice([None, None, 0, 2]),
    )


def random_prompt(rng: random.Random) -> list[int]:
    text = rng.choice(tiny.PROMPTS) * rng.choice([1, 1, 3])
    start = rng.randrange(len(text))
    return tiny.encode(text[start : start + rng.choice([1, 4, 30, 90])])


class Workload:
    """Requests with random times of arrival and of cancellation, by steps of the engine."""

    def __init__(self, count: int, seed: int) -> None:
        rng = random.Random(seed)
        self.prompts = [random_prompt(rng) for _ in range(count)]
        self.params = [random_params(rng, index) for index in range(count)]
        self.speculative = [rng.random() < 0.85 for _ in range(count)]
        self.priority = [rng.choice([0, 0, 0, 1, -1]) for _ in range(count)]
        self.arrival = sorted(rng.randrange(count * 3) for _ in range(count))
        self.patience = [rng.choice([None, None, None, 0, 3, 12]) for _ in range(count)]

    def run(self, engine: DSparkEngine, most_steps: int):
        """Returns the handles. Checks events against outputs as they come."""
        handles, tokens, given_up = [], {}, set()
        for step in range(most_steps):
            while len(handles) < len(self.prompts) and self.arrival[len(handles)] <= step:
                at = len(handles)
                handle = engine.submit(
                    self.prompts[at],
                    self.params[at],
                    priority=self.priority[at],
                    speculative=self.speculative[at],
                )
                handles.append(handle)
                tokens[handle.id] = []
            for at, handle in enumerate(handles):
                patience = self.patience[at]
                if patience is not None and step == self.arrival[at] + patience:
                    if handle.cancel():
                        given_up.add(handle.id)
            for event in engine.step():
                assert event.request not in given_up
                tokens[event.request] += event.token_ids
            if len(handles) == len(self.prompts) and not engine.has_work:
                break
        else:
            raise AssertionError(f"stuck after {most_steps} steps")
        for handle in handles:
            cancelled = handle.id in given_up
            assert (handle.output.finish_reason == "cancelled") == cancelled
            assert handle.output.token_ids == tokens[handle.id]
        return handles


def check_against_runs_alone(serve, count, seed, **config):
    engine = serve(max_requests=SLOTS, **config)
    work = Workload(count, seed)
    handles = work.run(engine, most_steps=80 * count)
    assert engine.slots.available == SLOTS and not engine._handles
    alone = serve(max_requests=1, prefill_chunk=7, **config)
    cancelled = 0
    for at, handle in enumerate(handles):
        expected = alone.generate(
            [work.prompts[at]], work.params[at], speculative=work.speculative[at]
        ).outputs[0]
        output = handle.output
        if output.finish_reason == "cancelled":
            cancelled += 1
            count = len(output.token_ids)
            assert output.token_ids == expected.token_ids[:count]
            assert expected.text.startswith(output.text)
            continue
        assert output.token_ids == expected.token_ids
        assert (output.text, output.finish_reason) == (expected.text, expected.finish_reason)
        assert output.logprobs == expected.logprobs
    stats = engine.stats
    assert stats.finished == len(handles) - cancelled and stats.cancelled == cancelled > 0
    assert stats.emitted == sum(len(handle.token_ids) for handle in handles)
    alive = [weakref.ref(handle) for handle in handles]
    alive += [weakref.ref(handle.request) for handle in handles]
    del handles, handle
    gc.collect()
    assert not any(each() for each in alive)


@pytest.mark.parametrize(
    "config",
    [{}, {"schedule": "threshold", "confidence_threshold": 0.5, "blocks_per_step": 2}],
    ids=["fixed", "threshold, two blocks"],
)
def test_a_hundred_requests(serve, config):
    check_against_runs_alone(serve, 100, seed=4, **config)


@pytest.mark.slow
def test_a_thousand_requests(serve):
    check_against_runs_alone(serve, 1000, seed=5)


# -- with models that cost nothing

TARGET = table([[6, 2, 1, 2], [1, 5, 3, 1], [2, 1, 4, 2], [3, 1, 1, 1]])
DRAFTER = table([[3, 3, 2, 1], [4, 2, 2, 1], [1, 3, 3, 1], [1, 1, 1, 1]])
CONFIDENCE = torch.tensor([0.9, 0.4, 0.7, 0.2])


def table_engine(slots, **config):
    sizes = {"max_requests": slots, "max_len": 24}
    return DSparkEngine(
        TableTarget(TARGET, **sizes),
        TableDrafter(DRAFTER, CONFIDENCE, 3, **sizes),
        SpeculativeConfig(prefill_chunk=5, **config),
    )


def test_memory_does_not_grow():
    engine = table_engine(4)

    def serve_some():
        handles = [
            engine.submit([1] * (1 + n % 9), SamplingParams(max_new_tokens=1 + n % 13, seed=n))
            for n in range(60)
        ]
        for handle in handles[::7]:
            handle.cancel()
        for _ in engine.events():
            pass
        engine.stats.token_seconds.clear()
        engine.stats.first_token_seconds.clear()
        engine.target.rows.clear()

    tracemalloc.start()
    try:
        for _ in range(6):  # until free lists and caches have what they keep
            serve_some()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(4):
            serve_some()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 10_000, f"240 requests left {grown} bytes behind"


def test_submitting_and_cancelling_from_many_threads():
    """One thread steps; four submit, cancel at any time, and compare with runs alone."""
    engine, per_thread, most = table_engine(3), 60, 30
    stop = threading.Event()
    failures = []

    def run_steps():
        while not stop.is_set() or engine.has_work:
            engine.step()

    def use(number):
        rng = random.Random(number)
        try:
            for turn in range(per_thread):
                seed = number * per_thread + turn
                params = SamplingParams(seed=seed, max_new_tokens=rng.randrange(1, most))
                handle = engine.submit([1 + seed % 3], params)
                given_up = rng.random() < 0.4 and handle.cancel()
                while not handle.finished or handle.output is None:
                    time.sleep(0)
                    if not given_up and rng.random() < 0.01:
                        given_up = handle.cancel()
                assert (handle.output.finish_reason == "cancelled") == given_up
                events = list(handle)
                assert not (given_up and events)
                found.append((seed, params, given_up, handle.output))
        except BaseException as error:
            failures.append(error)
            raise

    found = []
    stepper = threading.Thread(target=run_steps)
    users = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in (stepper, *users):
        thread.start()
    for thread in users:
        thread.join(timeout=120)
    stop.set()
    stepper.join(timeout=120)
    assert not failures and not stepper.is_alive() and len(found) == 4 * per_thread
    assert engine.slots.available == 3 and not engine._handles
    alone = table_engine(1)
    for seed, params, given_up, output in found:
        expected = alone.generate([[1 + seed % 3]], params).outputs[0].token_ids
        length = len(output.token_ids) if given_up else len(expected)
        assert output.token_ids == expected[:length]
    assert 20 < sum(given_up for _, _, given_up, _ in found) < 220


class Traffic(RuleBasedStateMachine):
    """Submitted requests and a stream in any interleaving, on three slots."""

    expected = {}  # tokens of a request alone, by its seed

    def __init__(self):
        super().__init__()
        self.engine = table_engine(3)
        self.handles, self.tokens, self.given_up = {}, {}, set()
        self.stream, self.taken = None, []

    def alone(self, seed):
        if seed not in self.expected:
            engine = table_engine(1)
            self.expected[seed] = engine.generate(*self.request(seed)).outputs[0].token_ids
        return self.expected[seed]

    @staticmethod
    def request(seed):
        params = SamplingParams(
            temperature=(0.0, 1.0)[seed % 2],
            seed=seed,
            max_new_tokens=1 + seed % 15,
            stop_token_ids=(3,) if seed % 3 == 0 else (),
        )
        return [[seed % 4] * (1 + seed % 8)], params

    def note(self, events):
        for event in events:
            assert event.request not in self.given_up
            self.tokens[event.request] += event.token_ids

    @rule(seed=st.integers(0, 60), priority=st.integers(0, 2))
    def submit(self, seed, priority):
        (prompt,), params = self.request(seed)
        handle = self.engine.submit(prompt, params, priority=priority)
        self.handles[handle.id] = handle, seed
        self.tokens[handle.id] = []

    @rule()
    def step(self):
        self.note(self.engine.step())

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def cancel(self, data):
        handle, _ = self.handles[data.draw(st.sampled_from(sorted(self.handles)))]
        if handle.cancel():
            self.given_up.add(handle.id)
            assert handle.finished and not handle.cancel()

    @precondition(lambda self: self.stream is None)
    @rule(seed=st.integers(0, 60))
    def start_stream(self, seed):
        prompts, params = self.request(seed)
        self.stream, self.taken = (self.engine.stream(prompts, params), seed), []

    @precondition(lambda self: self.stream is not None)
    @rule()
    def take_from_stream(self):
        stream, seed = self.stream
        if self.engine.slots.available == 0 and not self.taken:
            return  # it would wait for slots that submitted requests hold
        event = next(iter(stream), None)
        if event is None:
            assert self.taken == self.alone(seed) == stream.outputs[0].token_ids
            self.stream = None
        else:
            self.taken += event.token_ids

    @precondition(lambda self: self.stream is not None)
    @rule()
    def close_stream(self):
        self.stream[0].close()
        self.stream = None

    @invariant()
    def slots_are_held_by_what_runs(self):
        held = 3 - self.engine.slots.available - self.engine.num_running
        assert held == 0 or (self.stream is not None and held == 1)

    def teardown(self):
        if self.stream is not None:
            self.stream[0].close()
        for _ in range(40 * (1 + len(self.handles))):
            if not self.engine.has_work:
                break
            self.note(self.engine.step())
        assert not self.engine.has_work and self.engine.slots.available == 3
        for handle, seed in self.handles.values():
            expected = self.alone(seed)
            if handle.id in self.given_up:
                expected = expected[: len(self.tokens[handle.id])]
            assert self.tokens[handle.id] == handle.token_ids == expected


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
