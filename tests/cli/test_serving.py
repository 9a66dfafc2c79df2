"""dspark-ext chat and dspark-ext serve."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from dspark_ext.cli.tokenizer import Tokenizer


def chat(command, arguments, *lines):
    words = ["chat", *arguments, "--temperature", 0, "--max-new-tokens", 10, "--dtype", "fp32"]
    return command(*words, stdin="".join(f"{line}\n" for line in lines))


def test_a_conversation_goes_on(command, tiny_pair_arguments):
    def generated(prompt):
        words = ["generate", "--raw", prompt, "--max-new-tokens", 10, "--json", "--dtype", "fp32"]
        return json.loads(command(*words, *tiny_pair_arguments)[1])["text"]

    first = generated("# user: import\n# assistant:")
    second = generated(f"# user: import\n# assistant: {first}\n# user: more\n# assistant:")
    status, out, log = chat(command, tiny_pair_arguments, "import", "more", "/stats", "/quit")
    assert status == 0 and out == f"{first}\n{second}\n"
    assert "last: 10 tokens" in log and "in all: 20 tokens" in log and "accepted" in log
    status, out, _ = chat(command, tiny_pair_arguments, "import", "/reset", "import")
    assert status == 0 and out == f"{first}\n{first}\n"


def test_settings_of_a_conversation(command, tiny_pair_arguments):
    status, out, log = chat(
        command,
        [*tiny_pair_arguments, "--system", "short"],
        *("/plain", "/set max_new_tokens 3", "hi", "/stats", "/help"),
        *("/stats now", "/frobnicate", "/set colour red", "/set top_p 7", "/set top_k x"),
    )
    assert status == 0 and len(out) <= 4  # three bytes and a new line
    assert "plain decoding" in log and "drafts accepted" not in log and "/quit" in log
    assert "/frobnicate: unknown command; there are /help" in log
    assert "/set: 'colour': expected one of temperature" in log
    assert "top_p: expected a number in (0, 1], got 7.0" in log and "/set top_k: invalid" in log


def test_old_messages_leave_a_full_context(command, tiny_pair_arguments):
    lines = ["x" * 60, "y" * 60, "z" * 60, "w" * 400, "again"]
    status, out, log = chat(command, tiny_pair_arguments, *lines)
    assert status == 0 and out.count("\n") >= 4
    assert "the oldest 2 messages were dropped" in log
    assert "tokens, there is room for 190" in log


def test_a_message_that_was_refused_is_forgotten(command, tiny_pair_arguments, monkeypatch):
    """By the template, or as it is no text; the next one stands alone."""
    said = []
    whole = Tokenizer._chat_prompt

    def choosy(self, messages):
        said.append([each["content"] for each in messages])
        if messages[-1]["content"] == "bad":
            raise ValueError("the chat template refuses the messages: bad")
        return whole(self, messages)

    monkeypatch.setattr(Tokenizer, "_chat_prompt", choosy)
    status, _, log = chat(command, tiny_pair_arguments, "bad", "\udcff", "good")
    assert status == 0 and "refuses the messages" in log and "message: expected UTF-8" in log
    assert said == [["bad"], ["good"]]


def test_chat_needs_a_template(command, make_model_directory, tiny_pair_arguments):
    path = make_model_directory(chat_template=None)
    status, _, err = command("chat", *tiny_pair_arguments, "--target", path)
    assert status == 2 and "it has no chat template" in err


@contextlib.contextmanager
def serving(arguments, **environment):
    """(process, port, lines of its log so far)"""
    words = [sys.executable, "-m", "dspark_ext.cli", "serve", "--port", "0", *arguments]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.Popen(
        words,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    try:
        log = []
        while not (found := re.search(r"running on http://[\d.]+:(\d+)", log[-1] if log else "")):
            log.append(process.stderr.readline())
            assert log[-1], "".join(log)
        yield process, int(found[1]), log
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_serve(tiny_pair_arguments):
    pytest.importorskip("uvicorn")
    arguments = [*tiny_pair_arguments, "--name", "tiny", "--max-in-flight", "5"]
    with serving(arguments, DSPARK_API_KEY="k") as (process, port, log):
        assert any("'max_in_flight': 5" in line for line in log)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"content-type": "application/json", "authorization": "Bearer k"}
        body = {"messages": [{"role": "user", "content": "import"}], "max_tokens": 5}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200 and answer["model"] == "tiny"
        assert answer["usage"]["completion_tokens"] == 5
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)


def test_an_address_that_cannot_be_had_is_told_before_models_are_loaded(command):
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, expected in (
            (["--port", port], f"--port {port}: [Errno 98] Address already in use"),
            (["--port", 0, "--host", "no.such.host.invalid"], "--host no.such.host.invalid"),
            (["--port", 0, "--host", "192.0.2.1"], "--host 192.0.2.1 --port 0: [Errno 99]"),
        ):
            status, _, err = command("serve", "--target", "nowhere", *words)
            assert status == 2 and expected in err and err.count("\n") == 1


def test_serve_names_wrong_arguments(command):
    pytest.importorskip("uvicorn")
    for arguments, expected in (
        (["--port", 70000], "--port: expected 0 to 65535"),
        (["--max-in-flight", 0], "limits: max_in_flight: expected > 0, got 0"),
    ):
        status, _, err = command("serve", *arguments)
        assert status == 2 and expected in err and err.count("\n") == 1
