"""What the server answers: the engine's tokens, in OpenAI's forms."""

import json
import math

import pytest
from http_clients import wait_until

from dspark_ext.demo import tiny
from dspark_ext.engine import SamplingParams

PROMPT = tiny.PROMPTS[0]


@pytest.fixture(scope="module")
def alone(make_engine):
    """alone(prompt, **params) -> RequestOutput of an engine that nobody else uses"""
    engine = make_engine()

    def run(prompt, **params):
        return engine.generate([prompt], SamplingParams(**params)).outputs[0]

    return run


def test_greedy_completion(server, alone):
    expected = alone(PROMPT, temperature=0.0, max_new_tokens=20)
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 20, "temperature": 0}
    status, answer = server.post("/v1/completions", body)
    (choice,) = answer["choices"]
    assert status == 200 and answer["object"] == "text_completion" and answer["model"] == "tiny"
    assert choice["text"] == expected.text and choice["finish_reason"] == "length"
    usage = answer["usage"]
    details = usage["completion_tokens_details"]
    assert usage["prompt_tokens"] == len(PROMPT) and usage["completion_tokens"] == 20
    assert details["accepted_prediction_tokens"] == sum(expected.accepted) > 0
    assert details["rejected_prediction_tokens"] >= 0


def test_a_seed_gives_the_tokens_of_the_engine_alone(server, alone):
    params = {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 11}
    expected = alone(PROMPT, **params, max_new_tokens=24)
    body = {"prompt": PROMPT, "max_tokens": 24, **params}
    streamed = server.stream("/v1/completions", body)
    text = "".join(event["choices"][0]["text"] for event in streamed)
    assert server.post("/v1/completions", body)[1]["choices"][0]["text"] == expected.text == text
    assert streamed[-1]["choices"][0]["finish_reason"] == "length"
    assert all(event["choices"][0]["finish_reason"] is None for event in streamed[:-1])


def test_choices_of_several_prompts(server, alone):
    prompts = [tiny.encode(text) for text in tiny.PROMPTS[:2]]
    body = {"prompt": prompts, "n": 2, "seed": 5, "temperature": 1.0, "max_tokens": 12}
    expected = [
        alone(prompt, temperature=1.0, seed=seed, max_new_tokens=12).text
        for prompt in prompts
        for seed in (5, 6)
    ]
    _, answer = server.post("/v1/completions", body)
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    texts = [""] * 4
    for event in server.stream("/v1/completions", body):
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == expected


def test_chat(server, alone):
    messages = [
        {"role": "system", "content": "short"},
        {"role": "user", "content": [{"type": "text", "text": "import "}]},
    ]
    expected = alone("# system: short\n# user: import \n", temperature=0.0, max_new_tokens=15).text
    body = {"messages": messages, "temperature": 0, "max_completion_tokens": 15}
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 200 and answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": expected}
    *events, usage = server.stream(
        "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}
    )
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == expected
    assert usage["choices"] == [] and usage["usage"] == answer["usage"]
    assert {event["id"] for event in events} == {usage["id"]}


def test_a_chat_without_a_limit_fills_the_context(server):
    body = {"messages": [{"role": "user", "content": "x" * 100}], "temperature": 0}
    _, answer = server.post("/v1/chat/completions", body)
    assert answer["usage"]["total_tokens"] == server.service.model.engine.target.max_len


def test_stop_strings_end_the_text_before_them(server, alone):
    whole = alone(PROMPT, temperature=0.0, max_new_tokens=40).text
    stop = whole[10:13]
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "stop": ["@@never", stop]}
    _, answer = server.post("/v1/completions", body)
    assert answer["choices"][0]["text"] == whole[: whole.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    events = server.stream("/v1/completions", body)
    assert "".join(e["choices"][0]["text"] for e in events) == whole[: whole.index(stop)]


def test_log_probabilities(server, alone):
    expected = alone(PROMPT, temperature=0.7, seed=3, max_new_tokens=10, logprobs=2)
    common = {"temperature": 0.7, "seed": 3, "max_tokens": 10}
    body = {"prompt": PROMPT, "logprobs": 2, **common}
    found = server.post("/v1/completions", body)[1]["choices"][0]["logprobs"]
    assert found["tokens"] == [tiny.decode([token]) for token in expected.token_ids]
    for value, tops, reference in zip(
        found["token_logprobs"], found["top_logprobs"], expected.logprobs
    ):
        assert value == pytest.approx(reference.logprob) and 1 <= len(tops) <= 2
        assert max(tops.values()) >= value
    assert found["text_offset"] == list(range(10))
    streamed = server.stream("/v1/completions", body)
    pieces = [e["choices"][0]["logprobs"] for e in streamed]
    assert sum((each["text_offset"] for each in pieces), []) == found["text_offset"]

    body = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 3}
    entries = server.post("/v1/chat/completions", {**body, **common})[1]["choices"][0]["logprobs"]
    assert len(entries["content"]) == 10
    for entry in entries["content"]:
        assert entry["token"].encode() == bytes(entry["bytes"]) and entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) <= 3
        assert sum(math.exp(each["logprob"]) for each in entry["top_logprobs"]) <= 1 + 1e-5


def test_names_of_tokens_that_are_no_text(server):
    """Of those that are named alike the most probable one is shown; their bytes are not made up."""
    parts = [0xC3, 0xE2]
    body = {"temperature": 1, "max_tokens": 3, "allowed_token_ids": parts, "seed": 1}
    _, answer = server.post("/v1/completions", {**body, "prompt": "a", "logprobs": 2})
    found = answer["choices"][0]["logprobs"]
    assert found["tokens"] == ["\ufffd"] * 3
    for tops in found["top_logprobs"]:
        assert list(tops) == ["\ufffd"] and math.log(0.5) <= tops["\ufffd"] <= 0
    chat = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 2}
    _, answer = server.post("/v1/chat/completions", {**body, **chat})
    for entry in answer["choices"][0]["logprobs"]["content"]:
        assert [entry["bytes"], *(each["bytes"] for each in entry["top_logprobs"])] == [None] * 3


def test_rules_of_a_request_reach_the_engine(server, alone):
    rules = {"presence_penalty": 0.5, "frequency_penalty": 0.7, "repetition_penalty": 1.2}
    lists = {"allowed_token_ids": [*range(97, 123), 32], "logit_bias": {101: -3.0, 32: 2.5}}
    expected = alone(PROMPT, seed=4, max_new_tokens=20, **rules, **lists)
    body = {"prompt": PROMPT, "seed": 4, "max_tokens": 20, **rules, **lists}
    _, answer = server.post("/v1/completions", body)
    assert answer["choices"][0]["text"] == expected.text
    _, bare = server.post("/v1/completions", {"prompt": PROMPT, "seed": 4, "max_tokens": 20})
    assert bare["choices"][0]["text"] != expected.text


def test_end_tokens_end_an_answer(start, alone):
    whole = alone(PROMPT, temperature=0.0, max_new_tokens=40).token_ids
    end = whole[12]
    with start(stop_ids=(end,)) as server:
        body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0}
        _, answer = server.post("/v1/completions", body)
        other = next(token for token in whole if whole.index(token) > whole.index(end))
        for changes, last in (
            ({"ignore_eos": True}, 39),
            ({"ignore_eos": True, "stop_token_ids": [other]}, whole.index(other)),
            ({"stop_token_ids": [whole[2]]}, whole.index(whole[2])),
        ):
            _, changed = server.post("/v1/completions", {**body, **changes})
            assert changed["usage"]["completion_tokens"] == last + 1
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == whole.index(end) + 1


def test_models_health_and_metrics(server):
    status, _, body = server.request("GET", "/v1/models")
    (entry,) = json.loads(body)["data"]
    assert status == 200 and entry["id"] == "tiny" and entry["max_model_len"] == 160
    assert json.loads(server.request("GET", "/v1/models/tiny")[2]) == entry
    assert json.loads(server.request("GET", "/health")[2])["status"] == "ok"
    before = server.metric("dspark_ext:generated_tokens_total")
    server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 30, "temperature": 0})
    assert server.metric("dspark_ext:generated_tokens_total") == before + 30
    assert server.metric("dspark_ext:first_token_seconds_count") > 0
    assert server.metric("dspark_ext:in_flight") == 0
    assert server.metric('dspark_ext:http_answers_total{path="/v1/completions",status="200"}') > 0


def test_acceptance_counters_reach_the_metrics(start):
    with start() as server:
        server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 60, "temperature": 0})
        name = "vllm:spec_decode_num_accepted_tokens_total"
        wait_until(lambda: server.metric(name) > 0)
        assert server.metric(name) <= server.metric("vllm:spec_decode_num_draft_tokens_total")


def test_lossy_answers_are_marked(start, make_engine):
    engine = make_engine(
        rejection_sample_method="synthetic", synthetic_acceptance_length=3.0, allow_lossy=True
    )
    with start(engine) as server:
        body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 1.0}
        assert server.post("/v1/completions", body)[1]["dspark_ext"] == {"lossy": True}
        events = server.stream("/v1/completions", body)
        assert all(event["dspark_ext"] == {"lossy": True} for event in events)
