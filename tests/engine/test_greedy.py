"""Greedy speculative decoding emits the tokens of plain decoding, whatever the batch."""

import dataclasses

import pytest

from dspark_ext.engine import SamplingParams
from dspark_ext.verify import CostTable

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=48)


def tokens(generation):
    return [output.token_ids for output in generation.outputs]


@pytest.fixture(scope="module")
def plain(serve, prompts):
    """Plain greedy tokens, one prompt at a time, by weight dtype."""
    found = {}

    def get(dtype):
        if dtype not in found:
            engine = serve(dtype, max_requests=1)
            found[dtype] = [
                tokens(engine.generate([prompt], GREEDY, speculative=False))[0]
                for prompt in prompts
            ]
        return found[dtype]

    return get


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"prefill_chunk": 1},
        {"prefill_chunk": 5},
        {"rejection_sample_method": "token"},
        {"draft_sample_method": "greedy"},
        {"num_speculative_tokens": 2},
        {"schedule": "threshold", "confidence_threshold": 0.6},
        {"schedule": "threshold", "confidence_threshold": (0.2, 0.4, 0.6, 0.7, 0.8)},
        {"schedule": "early_stop", "cost_table": CostTable([1, 24], [1.0, 4.0])},
        {"schedule": "lagged", "cost_table": CostTable([1, 24], [1.0, 4.0])},
        {"schedule": "uniform", "cost_table": CostTable([1, 24], [1.0, 4.0])},
        {"schedule": "budget", "verify_budget": 9},
        {"num_speculative_tokens": 2, "blocks_per_step": 3, "continue_threshold": 0.3},
        {"min_acceptance": 0.3, "acceptance_window": 8, "probe_interval": 3},
    ],
    ids=lambda config: (
        ",".join(f"{k}={v}" for k, v in config.items() if k != "cost_table") or "default"
    ),
)
def test_speculative_equals_plain(serve, prompts, plain, dtype, config):
    generation = serve(dtype, max_requests=3, **config).generate(prompts, GREEDY)
    assert tokens(generation) == plain(dtype)
    assert generation.stats.tokens_per_pass > 1.2


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_plain_does_not_depend_on_the_batch(serve, prompts, plain, dtype):
    engine = serve(dtype, max_requests=4)
    assert tokens(engine.generate(prompts, GREEDY, speculative=False)) == plain(dtype)
    assert tokens(engine.generate(prompts[::-1], GREEDY))[::-1] == plain(dtype)


def test_sampled_neighbours_do_not_disturb(serve, prompts, plain):
    sampled = SamplingParams(temperature=1.3, top_p=0.9, max_new_tokens=30)
    params = [GREEDY if index % 2 == 0 else sampled for index in range(len(prompts))]
    generation = serve(max_requests=3).generate(prompts, params)
    assert tokens(generation)[::2] == plain("fp32")[::2]


def test_stop_token_ends_the_output(serve, prompts, plain):
    engine = serve(max_requests=3)
    for index, expected in enumerate(plain("fp32")):
        stop = expected[7]
        params = dataclasses.replace(GREEDY, stop_token_ids=(stop,))
        output = engine.generate([prompts[index]], params).outputs[0]
        assert output.token_ids == expected[: expected.index(stop) + 1]
        assert output.finish_reason == "stop"
        assert len(output.accepted) == len(output.token_ids)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7])
def test_max_new_tokens_is_exact(serve, prompts, plain, count):
    params = dataclasses.replace(GREEDY, max_new_tokens=count)
    generation = serve(max_requests=3).generate(prompts, params)
    assert tokens(generation) == [expected[:count] for expected in plain("fp32")]
    assert {output.finish_reason for output in generation.outputs} == {"length"}


def test_the_context_ends_a_request(serve, prompts, plain):
    longest = max(len(prompt) for prompt in prompts)
    engine = serve(max_requests=3, max_len=longest + 1)
    generation = engine.generate(prompts, GREEDY)
    room = [longest + 1 - len(prompt) for prompt in prompts]
    expected = [line[:left] for line, left in zip(plain("fp32"), room)]
    assert tokens(generation) == expected
    assert [output.finish_reason for output in generation.outputs] == ["length"] * len(prompts)


def test_a_prompt_of_one_token(serve):
    engine = serve(max_requests=3)
    prompt = [ord("d")]
    drafted = engine.generate([prompt], GREEDY)
    assert tokens(drafted) == tokens(engine.generate([prompt], GREEDY, speculative=False))


def test_text_prompts_and_outputs(serve):
    output = serve().generate(["import os\n"], GREEDY).outputs[0]
    assert output.prompt_token_ids == list(b"import os\n")
    assert output.text == bytes(output.token_ids).decode(errors="replace")
