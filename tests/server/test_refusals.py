"""What the server refuses, and how it says so: JSON with a reason, whatever was sent."""

import json
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COMPLETION = {"prompt": "import ", "max_tokens": 2, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "import "}], "max_tokens": 2}

WRONG = {
    "no prompt": ({"prompt": None}, "prompt", "expected a string, token ids"),
    "empty list": ({"prompt": []}, "prompt", "expected a string, token ids"),
    "mixed list": ({"prompt": ["a", 1]}, "prompt", "expected a string, token ids"),
    "empty text": ({"prompt": ""}, "prompt", "prompt: expected at least one token"),
    "an empty text": ({"prompt": ["a", ""]}, "prompt", "prompt[1]: expected at least one token"),
    "ids outside": (
        {"prompt": [[1], [256]]},
        "prompt",
        "prompt[1]: expected token ids in [0, 256)",
    ),
    "token outside": ({"prompt": [1, 256]}, "prompt", "expected token ids in [0, 256), got 256"),
    "long prompt": ({"prompt": "x" * 200}, "prompt", "the prompt has 200 tokens and max_tokens"),
    "too many tokens": ({"max_tokens": 154}, "prompt", "the context has 160 in all"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens", "expected at least 1, got 0"),
    "temperature": ({"temperature": -1}, "temperature", "expected 0 to 100, got -1"),
    "temperature type": ({"temperature": "hot"}, "temperature", 'expected a number, got "hot"'),
    "huge number": ({"temperature": 10**400}, "temperature", "expected a finite number"),
    "top_p": ({"top_p": 0}, "top_p", "expected a number in (0, 1]"),
    "min_p": ({"min_p": 2}, "min_p", "expected a number in [0, 1]"),
    "top_k": ({"top_k": 1.5}, "top_k", "expected an integer, got 1.5"),
    "seed": ({"seed": 2**63}, "seed", "expected "),
    "bool as integer": ({"n": True}, "n", "expected an integer, got true"),
    "n": ({"n": 65}, "n", "expected 1 to 64"),
    "n times prompts": ({"prompt": ["a"] * 9, "n": 8}, "n", "9 prompts times 8 exceeds 64"),
    "stop": ({"stop": [""]}, "stop", "none empty"),
    "many stops": ({"stop": ["a"] * 17}, "stop", "at most 16 strings"),
    "long stop": ({"stop": "a" * 257}, "stop", "at most 256 characters"),
    "min_tokens": ({"min_tokens": 3}, "min_tokens", "from 0 to max_tokens (2), got 3"),
    "logprobs": ({"logprobs": 21}, "logprobs", "expected 0 to 20"),
    "echo": ({"echo": True}, "echo", "not supported"),
    "penalty": ({"presence_penalty": 2.5}, "presence_penalty", "expected -2 to 2, got 2.5"),
    "repetition": ({"repetition_penalty": 0}, "repetition_penalty", "expected a number > 0"),
    "bias": ({"logit_bias": {"1": 500}}, "logit_bias.1", "a number from -100 to 100, got 500"),
    "bias of a word": ({"logit_bias": {"the": 5}}, "logit_bias.the", "a token id as the name"),
    "bias outside": ({"logit_bias": {"256": 5}}, "logit_bias", "expected token ids in [0, 256)"),
    "bias of a huge id": ({"logit_bias": {"9" * 5000: 5}}, "logit_bias." + "9" * 100, "token id"),
    "bias list": ({"logit_bias": [1]}, "logit_bias", "expected an object of token ids"),
    "no token allowed": ({"allowed_token_ids": []}, "allowed_token_ids", "not empty"),
    "stop tokens": ({"stop_token_ids": ["a"]}, "stop_token_ids", "expected a list of token ids"),
    "stop token outside": ({"stop_token_ids": [999]}, "stop_token_ids", "ids in [0, 256), got 999"),
    "best_of": ({"best_of": 2}, "best_of", "expected best_of = n"),
    "unknown field": ({"temprature": 1}, "temprature", "unknown field (nearest: temperature)"),
    "stream_options": ({"stream_options": {}}, "stream_options", "only read with stream"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("stream", [False, True])
def test_completions(server, case, stream):
    changes, param, message = WRONG[case]
    if stream and case == "stream_options":
        changes = {"stream_options": {"include_usag": True}}
        param, message = "include_usag", "nearest: include_usage"
    body = {**COMPLETION, **changes, **({"stream": True} if stream else {})}
    status, answer = server.post("/v1/completions", body)
    error = answer["error"]
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert message in error["message"]


WRONG_CHATS = {
    "no messages": ({"messages": []}, "messages", "expected a list of messages"),
    "no object": ({"messages": ["hi"]}, "messages[0]", "expected an object"),
    "role": ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role", "one of system"),
    "content": ({"messages": [{"role": "user"}]}, "messages[0].content", "expected a string"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content",
        "only parts of type text",
    ),
    "tool calls": (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]},
        "messages[0].tool_calls",
        "not supported",
    ),
    "template": (
        {"messages": [{"role": "system", "content": ""}]},
        "messages",
        "the last message has to be the user's",
    ),
    "too long": (
        {"messages": [{"role": "user", "content": "x" * 999}]},
        "messages",
        "the context has 160 in all",
    ),
    "tools": ({"tools": [{}]}, "tools", "tools are not supported"),
    "format": ({"response_format": {"type": "json_object"}}, "response_format", "only plain text"),
    "top_logprobs": ({"top_logprobs": 2}, "top_logprobs", "only read with logprobs"),
    "two limits": ({"max_completion_tokens": 3}, "max_tokens", "contradicts"),
}


@pytest.mark.parametrize("case", WRONG_CHATS)
def test_chats(server, case):
    changes, param, message = WRONG_CHATS[case]
    status, answer = server.post("/v1/chat/completions", {**CHAT, **changes})
    assert (status, answer["error"]["param"]) == (400, param)
    assert message in answer["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"3", b'{"prompt": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"a": 1}}'),
        *(b'{"prompt": "\\ud800"}', b'{"\\udfff": 1}', b'{"seed": ' + b"9" * 5000 + b"}"),
    ],
    ids=lambda body: repr(body[:12]),
)
def test_bodies_that_are_no_json_object(server, body):
    status, answer = server.post("/v1/completions", body)
    assert status == 400 and answer["error"]["code"] == "invalid_json"
    assert answer["error"]["message"].startswith("the body ")


@pytest.mark.parametrize("depth", [10, 300, 900, 980, 990, 1000, 3000])
@pytest.mark.parametrize("name", ["prompt", "logit_bias", "unheard_of"])
def test_deep_nesting(server, name, depth):
    body = f'{{"prompt": "a", "{name}": {"[" * depth}{"]" * depth}}}'
    status, answer = server.post("/v1/completions", body.encode())
    assert status == 400 and answer["error"]["message"]


def test_a_model_that_is_not_served(server):
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        status, answer = server.post(path, {**body, "model": "gpt-4"})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        assert answer["error"]["message"] == "model: expected one of tiny"
    status, _, body = server.request("GET", "/v1/models/gpt-4")
    assert status == 404 and json.loads(body)["error"]["code"] == "model_not_found"


def test_other_paths_methods_and_types(server):
    for method, path, status in (
        ("GET", "/", 404),
        ("GET", "/v1/../etc/passwd", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/health", 405),
    ):
        found, _, body = server.request(method, path, b"" if method == "POST" else None)
        assert found == status and f"{method} " in json.loads(body)["error"]["message"]
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        status, answer = server.post("/v1/completions", COMPLETION, {"content-type": kind})
        assert status == 415 and "application/json" in answer["error"]["message"]


def test_a_body_that_is_too_large(start):
    with start(max_body_bytes=1000) as server:
        status, answer = server.post("/v1/completions", {"prompt": "x" * 1000})
        assert status == 413 and answer["error"]["code"] == "body_too_large"
        with server.connect() as connection:  # no length given: chunks until it is too much
            head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            connection.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            connection.sendall(b"1f4\r\n" + b" " * 500 + b"\r\n")
            connection.sendall(b"1f4\r\n" + b" " * 500 + b"\r\n")
            connection.sendall(b"1f4\r\n" + b" " * 500 + b"\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
        assert server.post("/v1/completions", COMPLETION)[0] == 200


def test_an_api_key(start):
    with start(api_key="secret") as server:
        for given in (None, "Bearer wrong", "Bearer sécret", "secret"):
            headers = {"content-type": "application/json"}
            if given is not None:
                headers["authorization"] = given.encode("latin-1").decode("latin-1")
            status, answer = server.post("/v1/completions", COMPLETION, headers)
            assert (status, answer["error"]["type"]) == (401, "authentication_error")
        headers["authorization"] = "Bearer secret"
        assert server.post("/v1/completions", COMPLETION, headers)[0] == 200
        assert server.request("GET", "/health")[0] == 200


def test_without_a_chat_template_chats_are_refused(start):
    with start(template=None) as server:
        status, answer = server.post("/v1/chat/completions", CHAT)
        assert status == 400 and answer["error"]["code"] == "no_chat_template"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(string.ascii_letters, max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
names = st.sampled_from(
    [
        *("prompt", "messages", "model", "max_tokens", "max_completion_tokens", "temperature"),
        *("top_p", "top_k", "min_p", "n", "seed", "stop", "logprobs", "top_logprobs"),
        *("stream_options", "min_tokens", "tools", "user", "echo", "best_of", "response_format"),
        *("logit_bias", "stop_token_ids", "ignore_eos", "frequency_penalty", "repetition_penalty"),
    ]
) | st.text(max_size=12)
RELAXED = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@RELAXED
@given(
    base=st.sampled_from([COMPLETION, CHAT, {}]),
    changes=st.dictionaries(names, json_values, max_size=4),
    path=st.sampled_from(["/v1/completions", "/v1/chat/completions"]),
)
def test_any_json_gets_an_answer_or_a_reason(server, base, changes, path):
    status, answer = server.post(path, {"max_tokens": 2, **base, **changes})
    assert status in (200, 400, 404)
    if status != 200:
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["message"]
    else:
        assert answer["choices"]


@RELAXED
@given(body=st.binary(max_size=200))
def test_any_bytes_get_a_reason(server, body):
    status, answer = server.post("/v1/completions", body)
    assert status == 400 and answer["error"]["message"]


@RELAXED
@given(data=st.binary(min_size=1, max_size=200))
def test_any_bytes_on_the_wire_do_no_harm(server, data):
    with server.connect() as connection:
        connection.sendall(data + b"\r\n\r\n")
        answer = connection.recv(100)
    assert answer.startswith(b"HTTP/1.1 4")


def test_after_all_that_nothing_is_left(server):
    assert server.service.thread.in_flight == 0
    assert server.post("/v1/completions", COMPLETION)[0] == 200
