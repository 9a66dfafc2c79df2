"""Cost tables measured with progress and kept in a file; the measured speed-up."""

import json
import warnings

import pytest

from dspark_ext.engine import (
    DSparkEngine,
    SamplingParams,
    SpeculativeConfig,
    cached_profile,
    measure_speedup,
    profile_step,
)
from dspark_ext.engine import costs as costs_module

pytestmark = pytest.mark.filterwarnings("ignore:.*the table is flat")


def test_progress_counts_to_its_end(serve):
    engine = serve(max_requests=2)
    seen = []
    table = profile_step(engine.target, engine.drafter, 2, progress=lambda *step: seen.append(step))
    assert table.rows == [1, 2, 3, 4, 5, 6] and table.request_rows == [1, 2]
    total = (6 + 2) * 6
    assert [step[:2] for step in seen] == [(done, total) for done in range(1, total + 1)]
    assert seen[0][2] == "target pass of 1 rows" and seen[-1][2] == "drafts for 2 requests"


def test_an_engine_reports_progress(serve):
    engine = serve(max_requests=1)
    seen = []
    config = SpeculativeConfig(schedule="early_stop")
    DSparkEngine(engine.target, engine.drafter, config, progress=lambda *step: seen.append(step[0]))
    assert seen == list(range(1, len(seen) + 1)) and seen


def test_tables_are_kept_by_target_drafter_and_machine(serve, tmp_path, monkeypatch):
    path = tmp_path / "tables" / "costs.json"
    measured = []

    def profile(*args, **kwargs):
        measured.append(args)
        return profile_step(*args, **kwargs)

    monkeypatch.setattr(costs_module, "profile_step", profile)
    one, two = serve(max_requests=1), serve(max_requests=2)
    first = cached_profile(path, one.target, one.drafter, 2)
    again = cached_profile(path, one.target, one.drafter, 2)
    assert len(measured) == 1 and again.to_dict() == first.to_dict()
    cached_profile(path, one.target, one.drafter, 3)
    cached_profile(path, two.target, two.drafter, 2)
    cached_profile(path, one.target, None, 2)
    monkeypatch.setattr(costs_module, "machine", lambda device: {"processor": "another"})
    cached_profile(path, one.target, one.drafter, 2)
    assert len(measured) == 5
    content = json.loads(path.read_text())
    assert len(content["tables"]) == 5 and content["version"] == 1
    assert [entry.name for entry in path.parent.iterdir()] == ["costs.json"]
    config = {"schedule": "lagged", "cost_table_cache": str(path)}
    engine = DSparkEngine(one.target, one.drafter, SpeculativeConfig(**config))
    assert len(measured) == 6 and engine.cost_table is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no file of cost tables"),
        ("[]", "is no file of cost tables"),
        ('{"rows": [1], "seconds": [1]}', "is no file of cost tables"),
        (
            '{"format": "dspark_ext.engine.cost_tables", "version": 9, "tables": {}}',
            "has another format",
        ),
        (
            '{"format": "dspark_ext.engine.cost_tables", "version": 1, "tables": []}',
            "is no file of cost tables",
        ),
    ],
)
def test_another_file_is_named_and_kept(serve, tmp_path, text, message):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"cost_table_cache: .*costs.json {message}"):
        cached_profile(path, serve().target, None, 0)
    assert path.read_text() == text


def test_speedup_runs_both_ways_in_turns(serve, prompts, monkeypatch):
    engine = serve(max_requests=2)
    ways = []
    generate = DSparkEngine.generate

    def watched(self, *args, speculative=True, **kwargs):
        ways.append(speculative)
        return generate(self, *args, speculative=speculative, **kwargs)

    monkeypatch.setattr(DSparkEngine, "generate", watched)
    greedy = SamplingParams(temperature=0.0, max_new_tokens=12)
    report = measure_speedup(engine, prompts[:2], greedy, rounds=3)
    assert ways == [True, False, False, True, True, False, False, True]
    assert report.identical is True and not report.lossy and len(report.rounds) == 3
    ratios = sorted(drafted / plain for plain, drafted in report.rounds)
    assert report.ratio == pytest.approx(ratios[1]) and report.tokens_per_pass > 1
    assert json.loads(json.dumps(report.to_dict()))["ratio"] == report.ratio
    sampled = SamplingParams(temperature=0.9, max_new_tokens=4)
    mixed = measure_speedup(engine, prompts[:2], [sampled, greedy], rounds=1, warmup=False)
    assert mixed.identical is True
    assert measure_speedup(engine, prompts[:1], sampled, rounds=1).identical is None


def test_speedup_sees_a_target_that_is_not_row_invariant(serve, prompts, monkeypatch):
    """Negative control of `identical`."""
    engine = serve(max_requests=1)
    forward = engine.target.forward

    def biased(batch):
        output = forward(batch)
        if len(batch.logit_rows) > 1:
            output.logits[:, 7] = 99.0
        return output

    with monkeypatch.context() as patch:
        patch.setattr(engine.target, "forward", biased)
        greedy = SamplingParams(temperature=0.0, max_new_tokens=12)
        report = measure_speedup(engine, prompts[:1], greedy, rounds=1, warmup=False)
    assert report.identical is False


def test_speedup_needs_prompts(serve):
    with pytest.raises(ValueError, match="prompts: expected at least one"):
        measure_speedup(serve(), [])
    with pytest.raises(ValueError, match="rounds: expected >= 1, got 0"):
        measure_speedup(serve(), [[1]], rounds=0)


def test_statistics_are_json(serve, prompts):
    params = SamplingParams(temperature=0.5, max_new_tokens=9, logprobs=1, stop=("zz",))
    stream = serve(max_requests=2).stream(prompts[:2], params)
    events = list(stream)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = [
            stream.stats.to_dict(),
            *(output.to_dict() for output in stream.outputs),
            *(event.to_dict() for event in events),
        ]
        json.loads(json.dumps(values, allow_nan=False))
    stats = values[0]
    assert stats["acceptance"]["histogram"] == stream.stats.acceptance.histogram.tolist()
    assert stats["drafted"] == stats["trimmed_rows"] + stats["verified_rows"] - stats["passes"]
    assert 0 < stats["drafting_share"] < 1
    assert stats["token_latency_median"] <= stats["token_latency_p90"]
    assert stats["first_token_median"] > 0
    for output in stream.outputs:
        own = output.stats
        assert own.emitted == len(output.token_ids) and own.passes == output.passes
        mine = [event for event in events if event.request == stream.outputs.index(output)]
        assert own.accepted == sum(event.num_accepted for event in mine)
        assert own.verified == sum(len(event.confidences) for event in mine)
        assert own.token_latency_median <= own.token_latency_p90
    total = [sum(column) for column in zip(*(o.stats.accepted_by_position for o in stream.outputs))]
    assert total == stats["acceptance"]["accepted_by_position"][: len(total)]
