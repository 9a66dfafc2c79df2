"""Slow and vanishing clients, many at once, and stopping while streams run."""

import asyncio
import json
import math
import os
import random
import threading
import types

import pytest
from http_clients import wait_until

from dspark_ext.demo import tiny
from dspark_ext.engine import DSparkEngine, HuggingFaceTarget, SamplingParams

PROMPT = tiny.PROMPTS[0]
LONG = {"prompt": PROMPT, "max_tokens": 100, "temperature": 0}


class Gate:
    """An engine whose steps wait until the gate is open."""

    def __init__(self, engine):
        self._engine, self.open = engine, threading.Event()
        self.failure = None

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def step(self):
        assert self.open.wait(60)
        if self.failure is not None:
            raise self.failure
        return self._engine.step()


def idle(server):
    """Nothing runs, nothing is queued and every cache slot is free."""
    engine = server.service.model.engine
    return (
        server.service.thread.in_flight == 0
        and not engine.has_work
        and engine.slots.available == engine.target.max_requests
    )


async def read_stream(port, body):
    """All events of a stream over a raw connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps({**body, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 200"), answer[:200]
    events = [
        line[6:]
        for line in answer.split("\r\n")
        for line in line.splitlines()
        if line.startswith("data: ")
    ]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def test_two_hundred_streams_at_once(start, make_engine):
    prompts = [tiny.PROMPTS[index % len(tiny.PROMPTS)] for index in range(200)]
    bodies = [
        {"prompt": p, "max_tokens": 3 + i % 7, "temperature": 0.9 * (i % 2), "seed": i}
        for i, p in enumerate(prompts)
    ]
    with start(make_engine(max_requests=32)) as server:

        async def all_streams():
            return await asyncio.gather(*(read_stream(server.port, body) for body in bodies))

        streams = asyncio.run(all_streams())
        assert idle(server)
    engine = make_engine(max_requests=8)
    params = [
        SamplingParams(body["temperature"], seed=body["seed"], max_new_tokens=body["max_tokens"])
        for body in bodies
    ]
    expected = [output.text for output in engine.generate(prompts, params).outputs]
    found = ["".join(event["choices"][0]["text"] for event in events) for events in streams]
    assert found == expected


def test_beyond_the_limit_is_told_to_come_again(start, make_engine):
    gate = Gate(make_engine())
    with start(gate, max_in_flight=3) as server:
        open_streams = [server.send({**LONG, "stream": True}) for _ in range(3)]
        wait_until(lambda: server.service.thread.in_flight == 3)
        status, headers, body = server.request("POST", "/v1/completions", LONG)
        assert status == 429 and headers["retry-after"] == "1"
        error = json.loads(body)["error"]
        assert error["type"] == "rate_limit_error" and "the limit is 3" in error["message"]
        assert server.request("GET", "/health")[0] == 200
        gate.open.set()
        for connection in open_streams:
            connection.close()
        wait_until(lambda: idle(server))
        assert server.post("/v1/completions", LONG)[0] == 200
        # More choices than there is room for: none of them is queued.
        assert server.post("/v1/completions", {**LONG, "n": 4})[0] == 429 and idle(server)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(start, make_engine, stream):
    gate = Gate(make_engine())
    with start(gate) as server:
        connection = server.send({**LONG, "n": 2, "stream": stream})
        wait_until(lambda: server.service.thread.in_flight == 2)
        connection.close()
        wait_until(lambda: server.service.thread.in_flight == 0)
        gate.open.set()
        wait_until(lambda: idle(server))
        assert gate.stats.cancelled == 2 and gate.stats.emitted == 0
        assert server.metric('dspark_ext:requests_total{reason="cancelled"}') == 2


def test_a_client_that_takes_nothing_is_disconnected(start, make_engine):
    """Its answers fill the buffers of both sides; then its time runs, and others are served."""
    with start(make_engine(max_len=1000), send_seconds=1.0, max_choices=64) as server:
        big = {"prompt": PROMPT, "max_tokens": 960, "temperature": 1, "logprobs": 20, "n": 24}
        connection = server.send({**big, "stream": True}, receive_buffer=2048)
        wait_until(lambda: server.service.thread.in_flight == 24)
        assert server.post("/v1/completions", {**LONG, "max_tokens": 4})[0] == 200
        wait_until(lambda: not server.server.server_state.connections, 60)
        wait_until(lambda: idle(server))
        connection.close()


def test_clients_that_send_too_slowly(start):
    with start(receive_seconds=0.5) as server:
        silent, half_head, half_body = (server.connect() for _ in range(3))
        half_head.sendall(b"POST /v1/completions HTTP/1.1\r\nhost:")
        half_body.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 50\r\n\r\n{"
        )
        answer = b""
        while piece := half_body.recv(1000):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 408") and b"took longer than 0.5 s" in answer
        for connection in (silent, half_head):
            try:
                assert connection.recv(100) == b""
            except ConnectionResetError:
                pass
            connection.close()
        wait_until(lambda: not server.server.server_state.connections)


def test_a_failing_pass_ends_its_requests_and_not_the_server(start, make_engine):
    engine = make_engine()
    target_forward = engine.target.forward
    with start(engine) as server:

        def broken(batch):
            raise RuntimeError("out of memory")

        engine.target.forward = broken
        status, answer = server.post("/v1/completions", LONG)
        assert status == 500 and answer["error"]["code"] == "engine_error"
        with server.send({**LONG, "stream": True}) as connection:
            answer = b""
            while b"engine_error" not in answer:
                answer += connection.recv(1000)
        assert b"[DONE]" not in answer
        engine.target.forward = target_forward
        assert server.post("/v1/completions", LONG)[0] == 200
        assert idle(server)


def test_a_request_without_a_distribution_ends_alone(start, make_engine):
    engine = make_engine()
    target_forward = engine.target.forward
    with start(engine) as server:

        def broken(batch):
            output = target_forward(batch)
            rows = batch.slots[batch.logit_rows] == 0
            output.logits[rows & (batch.positions[batch.logit_rows] > 40)] = math.nan
            return output

        engine.target.forward = broken
        status, answer = server.post("/v1/completions", LONG)
        assert status == 500 and answer["error"]["code"] == "engine_error"
        assert server.post("/v1/completions", {**LONG, "max_tokens": 2})[0] == 200
        assert idle(server)


def test_a_finished_request_is_not_taken_for_a_failed_one(start, make_engine):
    """Its last events are on their way while another's pass fails."""
    with start(make_engine()) as server:
        thread = server.service.thread

        class Finished:
            id, output = -1, types.SimpleNamespace(finish_reason="length")

        job = types.SimpleNamespace(handle=Finished, end=pytest.fail)
        thread._jobs[-1] = job
        thread._end_failed("error")
        assert thread._jobs.pop(-1) is job


def test_a_request_that_never_fits_does_not_block_the_others(start, pair):
    """A paged cache of 6 blocks of 16: 96 positions in all."""
    target = HuggingFaceTarget(
        pair[0], [], max_requests=2, max_len=160, block_size=16, num_blocks=6
    )
    with start(DSparkEngine(target, tokenizer=tiny)) as server:
        status, answer = server.post("/v1/completions", LONG)
        assert status == 400 and answer["error"]["code"] == "no_room"
        assert server.post("/v1/completions", {**LONG, "max_tokens": 5})[0] == 200
        assert idle(server)


def test_stopping_while_streams_run(start, make_engine):
    gate = Gate(make_engine())
    with start(gate, shutdown_seconds=0.3) as server:
        streams = [server.send({**LONG, "stream": True}) for _ in range(3)]
        whole = server.send(LONG)
        wait_until(lambda: server.service.thread.in_flight == 4)
        server.server.should_exit = True
        wait_until(lambda: server.service.thread.in_flight == 0)
        gate.open.set()
        for connection in streams:
            answer = b""
            while piece := connection.recv(1000):
                answer += piece
            assert answer.startswith(b"HTTP/1.1 200") and b'"shutdown"' in answer
            assert b"[DONE]" not in answer
        answer = whole.recv(1000)
        assert answer.startswith(b"HTTP/1.1 503") and b"retry-after" in answer
        server.thread.join(30)
        assert not server.thread.is_alive()
    assert not server.service.thread.alive


def test_running_requests_may_finish_before_the_end(start, make_engine):
    gate = Gate(make_engine())
    with start(gate, shutdown_seconds=60) as server:
        connection = server.send({**LONG, "stream": True})
        wait_until(lambda: server.service.thread.in_flight == 1)
        server.server.should_exit = True
        wait_until(lambda: server.service.closing)
        gate.open.set()
        answer = b""
        while piece := connection.recv(1000):
            answer += piece
        assert b"[DONE]" in answer


def test_nothing_is_written(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with start() as server:
        server.stream("/v1/completions", LONG)
        server.post("/v1/completions", b"{")
        server.request("GET", "/metrics")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_many_clients_of_every_kind(start, make_engine):
    """250 clients, 60 at once: whole answers, streams, some that leave, wrong and oversized bodies.
    Nothing is left of them, and who stayed got what an engine alone gives."""
    choose = random.Random(7)
    engine = make_engine(max_requests=8)

    def body(index):
        return {
            "prompt": tiny.PROMPTS[index % len(tiny.PROMPTS)],
            "max_tokens": choose.randint(1, 40),
            "temperature": choose.choice([0, 0.9]),
            "seed": index,
        }

    async def client(port, index, room, answers):
        kind = choose.choice(["whole", "stream", "leave", "leave", "wrong", "large"])
        sent = body(index)
        async with room:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            data = json.dumps({**sent, "stream": kind in ("stream", "leave")}).encode()
            if kind == "wrong":
                data = data[: choose.randrange(len(data))]
            elif kind == "large":
                data = b'{"prompt": "' + b"x" * 70_000 + b'"}'
            head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            if kind == "leave":
                await reader.read(choose.randrange(1, 3000))
            else:
                answers.append((kind, sent, (await reader.read()).decode()))
            writer.close()

    async def everybody(port):
        room, answers = asyncio.Semaphore(60), []
        await asyncio.gather(*(client(port, index, room, answers) for index in range(250)))
        return answers

    with start(engine, max_body_bytes=60_000) as server:
        answers = asyncio.run(everybody(server.port))
        wait_until(lambda: idle(server))
        wait_until(lambda: not server.server.server_state.connections)
    alone = make_engine()
    for kind, sent, answer in answers:
        status = int(answer.split()[1])
        assert status == {"wrong": 400, "large": 413}.get(kind, 200), answer[:300]
        if kind in ("whole", "stream"):
            params = SamplingParams(
                sent["temperature"], seed=sent["seed"], max_new_tokens=sent["max_tokens"]
            )
            expected = alone.generate([sent["prompt"]], params).outputs[0].text
            bodies = [line for line in answer.split("\r\n") if line.startswith(("{", "data: {"))]
            pieces = [json.loads(line.strip().removeprefix("data: ")) for line in bodies]
            assert "".join(piece["choices"][0]["text"] for piece in pieces) == expected
