"""Any model's passes from graphs: the tokens of passes that are not, for requests that come and go;
and what a graph cannot hold is found, before it is captured."""

import re

import pytest
import torch
from random_models import VOCAB, served_model
from replayed_graphs import ReplayedCapture

from dspark_ext._recording import CaptureError
from dspark_ext.engine import (
    Bounds,
    CausalLMTarget,
    DSparkEngine,
    NGramDrafter,
    SamplingParams,
    SpeculativeConfig,
    TargetBatch,
    graphs,
)
from dspark_ext.engine.capture_check import target_obstacle

TAPS = [2, 0]
PARAMS = [
    SamplingParams(temperature=0.0, max_new_tokens=24),
    SamplingParams(temperature=0.9, seed=4, max_new_tokens=7),
    SamplingParams(temperature=0.7, seed=5, top_k=20, max_new_tokens=12),
    SamplingParams(temperature=0.0, max_new_tokens=9),
]


@pytest.fixture(autouse=True)
def short_lengths(monkeypatch):
    """Passes are captured for 8, 16, 32 and 40 keys."""
    monkeypatch.setattr(graphs, "SHORTEST", 8)


def make_target(name="llama", kind=CausalLMTarget, **cache):
    return kind(served_model(name), TAPS, max_requests=3, max_len=40, **cache)


def prompt(number: int) -> list[int]:
    """It repeats itself, so that n-grams find drafts."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(VOCAB, (3 + number,), generator=generator).tolist() * 2


def tokens(engine) -> list[list[int]]:
    """Of requests that join one after the other, one of them given up."""
    handles = []
    for number in range(6):
        params = PARAMS[number % len(PARAMS)]
        handles.append(engine.submit(prompt(number), params, speculative=number != 2))
        engine.step()
    engine.step()
    handles[3].cancel()
    while engine.has_work:
        engine.step()
    return [handle.output.token_ids for handle in handles]


def engine_of(target) -> DSparkEngine:
    drafter = NGramDrafter.for_target(target, block_size=3, min_ngram=1)
    return DSparkEngine(target, drafter, SpeculativeConfig(prefill_chunk=8))


SLOW = pytest.mark.slow
MODELS = [
    pytest.param("llama", {}, id="llama, dense"),
    pytest.param("mistral, window of 5", {"block_size": 4}, id="mistral, blocks of 4"),
    pytest.param("deepseek_v3, latent attention", {}, id="deepseek_v3, dense"),
    pytest.param("llama", {"block_size": 5, "num_blocks": 20}, id="llama, blocks", marks=SLOW),
    pytest.param("mistral, window of 5", {}, id="mistral, dense", marks=SLOW),
    pytest.param("gemma3, windows of 6", {}, id="gemma3, dense", marks=SLOW),
    pytest.param("gemma4, shared keys", {"block_size": 5}, id="gemma4, blocks", marks=SLOW),
    pytest.param("gpt_oss, sinks, windows of 6", {}, id="gpt_oss, dense", marks=SLOW),
    pytest.param("deepseek_v3, latent attention", {"block_size": 4}, id="v3, blocks", marks=SLOW),
    pytest.param("gpt2", {"block_size": 16, "num_blocks": 9}, id="gpt2, blocks", marks=SLOW),
]


@pytest.mark.parametrize(("name", "cache"), MODELS)
def test_an_engine_on_graphs_emits_the_same(name, cache):
    target = make_target(name, **cache)
    assert target.capturable, target.capture_obstacle
    engine = engine_of(target)
    wanted = tokens(engine)
    captured = engine_of(target)
    captured.use_graphs(ReplayedCapture, drafts=False)
    assert tokens(captured) == wanted
    runners = captured.target_graphs.runners
    assert captured.target_graphs.lengths == [8, 16, 32, 40] and set(runners) == {16, 32, 40}
    sizes = {size for runner in runners.values() for size in runner.captured}
    assert len(sizes) >= 3 and sizes <= set(captured.target_graphs.sizes)
    capture = runners[32].capture
    assert capture.replays > capture.captures > 0
    stats = captured.stats
    assert stats.acceptance.accepted > 0  # drafts were verified in these passes


def test_a_pass_in_fixed_shapes_gives_what_any_pass_gives():
    """Of rows in any order, of more requests than rows of one, and beyond what is looked at."""
    target = make_target("qwen3, windows of 6", block_size=4)
    ids = torch.tensor(prompt(5))
    index = torch.arange(12)
    for slot in (2, 0):
        target.reserve(slot, 20)
        target.forward(TargetBatch(ids[:12], index, torch.full_like(index, slot), index))
    rows = [(12, 2), (9, 0), (13, 2), (10, 0), (14, 2)]  # position, slot
    columns = ids[[12, 3, 13, 5, 14]], *torch.tensor(rows).t()
    wanted = target.forward(TargetBatch(*columns, torch.arange(5)))
    target.refill()
    for length in (15, 16, 40):
        batch = TargetBatch(*columns, torch.arange(5), Bounds(length, 4))
        found = target.forward_fixed(batch)
        torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.features, wanted.features, rtol=1e-4, atol=1e-4)


class Reads(CausalLMTarget):
    """The host looks how long the pass is."""

    def forward_fixed(self, batch):
        length = int(batch.positions.max()) + 1
        batch = TargetBatch(*columns_of(batch), Bounds(length, batch.bounds.width))
        return super().forward_fixed(batch)


class Counts(CausalLMTarget):
    """The host knows, and a graph keeps what it knew."""

    length = 4

    def forward_fixed(self, batch):
        self.length = min(self.length + 1, batch.bounds.length)
        batch = TargetBatch(*columns_of(batch), Bounds(self.length, batch.bounds.width))
        return super().forward_fixed(batch)


class Grows(CausalLMTarget):
    """Keys are another tensor after every pass."""

    def forward_fixed(self, batch):
        output = super().forward_fixed(batch)
        self.store.keys = {layer: keys.clone() for layer, keys in self.store.keys.items()}
        return output


class Chooses(CausalLMTarget):
    """By a mask."""

    def forward_fixed(self, batch):
        output = super().forward_fixed(batch)
        output.features[batch.positions > 3] += 0
        return output


class ForgetsBlocks(CausalLMTarget):
    """The block table stays as it was at first."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        super().refill()

    def refill(self):
        pass


def columns_of(batch):
    return batch.input_ids, batch.positions, batch.slots, batch.logit_rows


OBSTACLES = {
    Reads: r"the host reads a tensor \(__int__\), at test_captured_targets.py",
    Counts: "is given 6, with other values 7",
    Grows: "reads a tensor that is another one in every pass",
    Chooses: "index.Tensor by a mask: how many are chosen depends on values, at test_capt",
}


@pytest.mark.parametrize("kind", OBSTACLES, ids=lambda kind: kind.__name__)
def test_the_check_finds_what_a_graph_cannot_hold(kind):
    target = make_target(kind=kind)
    assert not target.capturable
    assert re.search(OBSTACLES[kind], target.capture_obstacle), target.capture_obstacle


@pytest.mark.parametrize("kind", [*OBSTACLES, ForgetsBlocks], ids=lambda kind: kind.__name__)
def test_replayed_graphs_fail_where_a_gpus_would(kind, caplog):
    wanted = tokens(engine_of(make_target(block_size=4)))
    engine = engine_of(make_target(kind=kind, block_size=4))
    engine.use_graphs(ReplayedCapture, drafts=False)
    found = tokens(engine)
    failures = [each.failure for each in engine.target_graphs.runners.values()]
    if kind in (Reads, Chooses):
        assert all(isinstance(failure, CaptureError) for failure in failures)
        assert found == wanted and "could not be captured as a graph" in caplog.text
    else:
        assert found != wanted and failures == [None] * len(failures)


def test_the_check_asks_forward_where_there_is_no_other():
    class Plain:
        max_requests, max_len = 2, 8

        def forward(self, batch):
            return batch.input_ids.tolist()

    assert "reads a tensor (tolist)" in target_obstacle(Plain())


def test_the_table_of_blocks_follows_the_pool_in_place():
    target = make_target(block_size=16, num_blocks=5)
    target.refill()
    table = target.store.table
    assert table.tolist() == [[5, 5, 5]] * 4
    target.reserve(1, 20)
    target.refill()
    assert target.store.table is table and table.tolist()[1] == [0, 1, 5]
    target.release(1)
    target.refill()
    assert table.tolist() == [[5, 5, 5]] * 4
