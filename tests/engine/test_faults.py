"""What a caller gets wrong, and a target that computes no distribution: an error that says so, for
the request alone that it concerns."""

import dataclasses
import math

import numpy
import pytest
import torch
from table_models import TableDrafter, TableTarget, table

from dspark_ext.engine import (
    DSparkEngine,
    SamplingParams,
    SpeculativeConfig,
    measure_speedup,
)

LOGITS = table([[1, 6, 2, 1], [2, 1, 5, 2], [1, 2, 2, 5], [5, 2, 1, 2]])
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=6)


class Breaks(TableTarget):
    """Rows behind token 3 are what `row` says."""

    row = math.nan

    def forward(self, batch):
        output = super().forward(batch)
        output.logits[batch.input_ids[batch.logit_rows] == 3] = self.row
        return output


def make_engine(target=TableTarget, **config) -> DSparkEngine:
    drafter = TableDrafter(LOGITS, torch.full((4,), 0.9))
    return DSparkEngine(target(LOGITS), drafter, SpeculativeConfig(**config))


@pytest.mark.parametrize("row", [math.nan, -math.inf])
@pytest.mark.parametrize("speculative", [True, False])
def test_a_row_without_a_distribution_ends_its_request(row, speculative, monkeypatch, caplog):
    """0 leads to 1, 2, 3 and then to nothing; a request that never says 3 does not notice."""
    monkeypatch.setattr(Breaks, "row", row)
    engine, sound = make_engine(Breaks), make_engine()
    apart = dataclasses.replace(GREEDY, max_new_tokens=2)
    prompts, params = [[0], [0]], [GREEDY, apart]
    stream = engine.stream(prompts, params, speculative=speculative)
    events = [event for event in stream if event.request == 0]
    broken, other = stream.outputs
    assert broken.finish_reason == "error" and broken.token_ids in ([], [1, 2, 3])
    assert events[-1].finish_reason == "error" and not events[-1].token_ids
    assert "hold " in caplog.text and "request 0" in caplog.text
    expected = sound.generate(prompts[1:], apart, speculative=speculative).outputs[0]
    assert other.token_ids == expected.token_ids and other.finish_reason == "length"
    assert engine.slots.available == 4
    assert math.isnan(broken.stats.token_latency_median) or broken.token_ids


def test_nothing_is_measured_on_requests_that_fail():
    with pytest.raises(RuntimeError, match="prompt 0: ended with an error .speculative="):
        measure_speedup(make_engine(Breaks), [[0]], GREEDY)


def test_the_greedy_rule_leaves_the_law_of_plain_requests():
    """They have no drafts, so every rule draws them from the target's law."""
    params = [SamplingParams(seed=seed, max_new_tokens=8) for seed in range(6)]
    drawn = [
        [
            output.token_ids
            for output in engine.generate([[0]] * 6, params, speculative=False).outputs
        ]
        for engine in (make_engine(rejection_sample_method="greedy"), make_engine())
    ]
    assert drawn[0] == drawn[1] and len(set(map(tuple, drawn[0]))) > 1


def test_a_top_k_beyond_every_vocabulary_is_off():
    engine = make_engine()
    params = SamplingParams(seed=1, max_new_tokens=8)
    expected = engine.generate([[0]], params).outputs[0].token_ids
    for top_k in (4, 2**31, 2**70):
        chosen = dataclasses.replace(params, top_k=top_k)
        assert engine.generate([[0]], chosen).outputs[0].token_ids == expected


@pytest.mark.parametrize(
    "convert", [numpy.array, torch.tensor, tuple, lambda ids: [*map(numpy.int32, ids)]]
)
def test_token_ids_of_any_library(convert):
    engine = make_engine()
    expected = engine.generate([[0, 2]], GREEDY).outputs[0].token_ids
    assert engine.generate([convert([0, 2])], GREEDY).outputs[0].token_ids == expected


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("Once upon", "prompts: expected a list of prompts, got a str"),
        ([0, 1], "prompt 0: expected a text or token ids, got 0"),
        ([None], "prompt 0: expected a text or token ids, got None"),
        ([[[0, 1]]], r"prompt 0: expected token ids in \[0, 4\), got \[0, 1\]"),
        ([{"prompt": "x"}], "prompt 0: expected token ids in .*, got 'prompt'"),
    ],
)
def test_what_is_no_list_of_prompts_is_named(prompts, message):
    with pytest.raises(ValueError, match=message):
        make_engine().generate(prompts, GREEDY)


@pytest.mark.parametrize("params", [[{"temperature": 0}], ["temperature"], {"temperature": 0}])
def test_what_is_no_sampling_params_is_named(params):
    with pytest.raises(ValueError, match="params 0: expected SamplingParams, got .*from_dict"):
        make_engine().generate([[0]], params)
    with pytest.raises(ValueError, match="expected SamplingParams"):
        make_engine().submit([0], params)


def test_one_stop_token_is_as_good_as_a_list():
    assert SamplingParams(stop_token_ids=3) == SamplingParams(stop_token_ids=[3])
    assert SamplingParams(stop_token_ids=None) == SamplingParams()
    for name in ("stop", "stop_token_ids"):
        with pytest.raises(ValueError, match=f"{name}: expected .*, got 1.5"):
            SamplingParams(**{name: 1.5})
    with pytest.raises(ValueError, match="temperature: expected a number >= 0, at most 3.4e.38"):
        SamplingParams(temperature=1e39)
