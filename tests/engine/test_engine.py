"""Streaming, statistics and what the engine refuses."""

import pytest
import torch

from dspark_ext.engine import DSparkEngine, SamplingParams, SpeculativeConfig, profile_step

PARAMS = SamplingParams(temperature=0.8, seed=3, max_new_tokens=20)


@pytest.mark.parametrize("speculative", [True, False], ids=["speculative", "plain"])
def test_streaming_equals_generate(serve, prompts, speculative):
    engine = serve(max_requests=2)
    stream = engine.stream(prompts, PARAMS, speculative=speculative)
    tokens, accepted, finished = ([[] for _ in prompts] for _ in range(3))
    for event in stream:
        tokens[event.request] += event.token_ids
        accepted[event.request] += event.accepted
        finished[event.request].append(event.finish_reason)
        assert sum(event.accepted) == min(event.num_accepted, len(event.token_ids))
        assert len(event.confidences) >= event.num_accepted
    outputs = engine.generate(prompts, PARAMS, speculative=speculative).outputs
    assert tokens == [output.token_ids for output in outputs]
    assert accepted == [output.accepted for output in outputs]
    for reasons in finished:
        assert reasons[:-1] == [None] * (len(reasons) - 1) and reasons[-1] == "length"


def test_streams_taken_in_turns_do_not_meet(serve, prompts):
    engine = serve(max_requests=2)
    expected = [
        engine.generate(prompts[:1], PARAMS, speculative=speculative).outputs[0].token_ids
        for speculative in (True, False)
    ]
    streams = [engine.stream(prompts[:1], PARAMS, speculative=flag) for flag in (True, False)]
    pending = [iter(stream) for stream in streams]
    while pending:
        pending = [events for events in pending if next(events, None) is not None]
    assert [stream.outputs[0].token_ids for stream in streams] == expected


def test_a_closed_stream_frees_its_slots(serve, prompts):
    engine = serve(max_requests=2)
    stream = engine.stream(prompts[:2], PARAMS)
    next(iter(stream))
    with pytest.raises(RuntimeError, match="other streams hold all cache slots"):
        engine.generate(prompts[:1], PARAMS)
    stream.close()
    assert stream.stats.acceptance.steps == stream.stats.passes == 2
    assert stream.outputs == [None, None]
    engine.generate(prompts, PARAMS)


def test_statistics_add_up(serve, prompts):
    stats_of = {}
    for speculative in (True, False):
        generation = serve(max_requests=2).generate(prompts, PARAMS, speculative=speculative)
        stats, outputs = generation.stats, generation.outputs
        stats_of[speculative] = stats
        acceptance = stats.acceptance
        assert stats.emitted == sum(len(output.token_ids) for output in outputs)
        assert stats.passes == sum(output.passes for output in outputs) == acceptance.steps
        assert acceptance.steps_per_request.tolist() == [output.passes for output in outputs]
        assert stats.prefill_rows == sum(len(prompt) - 1 for prompt in prompts)
        assert stats.verified_rows == acceptance.drafted + stats.passes
        assert acceptance.histogram.sum() == stats.passes
        # every pass emits its accepted drafts and one more token, the end of a request aside
        assert 0 <= stats.passes + acceptance.accepted - stats.emitted <= 5 * len(prompts)
        assert stats.seconds >= stats.draft_seconds + stats.target_seconds + stats.sample_seconds
        assert stats.other_seconds >= 0 and stats.tokens_per_second > 0
        for output in outputs:
            assert 0 < output.first_token_seconds <= output.seconds <= stats.seconds
            assert output.tokens_per_pass == len(output.token_ids) / output.passes
    assert stats_of[False].tokens_per_pass == 1 and stats_of[False].acceptance.drafted == 0
    assert stats_of[True].steps < stats_of[False].steps


def test_no_prompts(serve):
    generation = serve().generate([], PARAMS)
    assert generation.outputs == [] and generation.stats.emitted == 0


def test_an_engine_without_a_drafter(serve, prompts):
    target = serve().target
    engine = DSparkEngine(target)
    greedy = SamplingParams(temperature=0, max_new_tokens=8)
    assert len(engine.generate(prompts[:1], greedy, speculative=False).outputs[0].token_ids) == 8
    with pytest.raises(ValueError, match="expected False without a drafter"):
        engine.generate(prompts[:1], greedy)
    with pytest.raises(ValueError, match="prompt 0: text needs an engine with a tokenizer"):
        engine.generate(["text"], greedy, speculative=False)


@pytest.mark.filterwarnings("ignore:.*the table is flat")  # the tiny pair is mostly overhead
def test_cost_table_is_measured_for_early_stop(serve, prompts):
    engine = serve(max_requests=2, schedule="early_stop")
    table = engine.cost_table
    assert table.rows == [*range(1, 9), 12] and table.request_rows == [1, 2]
    assert (table.seconds > 0).all() and (table.request_seconds > 0).all()
    assert profile_step(engine.target, None, 0).rows == [1, 2]
    generation = engine.generate(prompts, PARAMS, speculative=False)
    assert generation.stats.emitted == 20 * len(prompts)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt 1: expected 1 to 159 tokens"),
        ([1] * 160, r"prompt 1: expected 1 to 159 tokens \(max_len 160\), got 160"),
        ([1, 256], r"prompt 1: expected token ids in \[0, 256\), got 256"),
        ([1, -1], r"prompt 1: expected token ids in \[0, 256\), got -1"),
        ([1, 2.5], "prompt 1: expected token ids"),
        (torch.tensor([1.0, 2.0]), "prompt 1: expected token ids"),
    ],
    ids=["empty", "too long", "id too high", "id negative", "no integer", "float tensor"],
)
def test_a_bad_prompt_is_named(serve, prompt, message):
    with pytest.raises(ValueError, match=message):
        serve().generate([[1, 2], prompt], PARAMS)


def test_a_bad_stop_token_is_named(serve):
    with pytest.raises(ValueError, match=r"stop_token_ids 0: expected token ids in \[0, 256\)"):
        serve().generate([[1]], SamplingParams(stop_token_ids=(999,)))


def test_params_must_match_the_prompts(serve):
    with pytest.raises(ValueError, match="params: expected one for all or 2, got 3"):
        serve().generate([[1], [2]], [PARAMS] * 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_speculative_token": 3}, "unknown name .*nearest: 'num_speculative_tokens'"),
        ({"shedule": "fixed"}, "unknown name 'shedule' .nearest: 'schedule'"),
        ({"schedule": "early-stop"}, "schedule: .*nearest: 'early_stop'"),
        ({"rejection_sample_method": "blok"}, "nearest: 'block'"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens: expected None or an integer"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens: expected None or an integer"),
        ({"confidence_threshold": 1.5}, r"confidence_threshold: expected a number in \[0, 1\]"),
        ({"confidence_threshold": "high"}, r"confidence_threshold: expected a number"),
        ({"prefill_chunk": 0}, "prefill_chunk: expected an integer >= 1, got 0"),
    ],
    ids=lambda value: str(value)[1:-1] if isinstance(value, dict) else "",
)
def test_a_bad_config_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        SpeculativeConfig.from_dict(values)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"seed": 2**63},
        {"max_new_tokens": 0},
    ],
    ids=lambda values: str(values)[1:-1],
)
def test_bad_sampling_params_are_named(values):
    with pytest.raises(ValueError, match=f"SamplingParams: {next(iter(values))}: expected"):
        SamplingParams(**values)
    with pytest.raises(ValueError, match="unknown name 'temprature' .nearest: 'temperature'"):
        SamplingParams.from_dict({"temprature": 1.0})


def test_more_drafts_than_the_block_are_refused(serve):
    with pytest.raises(ValueError, match="at most the drafter's block of 5, got 6"):
        serve(num_speculative_tokens=6)


def test_a_drafter_of_other_sizes_is_refused(serve):
    target, drafter = serve(max_requests=2).target, serve(max_requests=4).drafter
    with pytest.raises(ValueError, match="expected the target's max_requests 2, got 4"):
        DSparkEngine(target, drafter)
