"""A running server and plain clients of it."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time


class Running:
    """A server in a thread, and requests to it."""

    def __init__(self, server):
        self.server = server
        self.thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
        self.thread.start()
        deadline = time.monotonic() + 60
        while not server.started and self.thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started
        self.port = server.servers[0].sockets[0].getsockname()[1]

    @property
    def service(self):
        return self.server.config.app.state.service

    def stop(self):
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body); a body that is no bytes is sent as JSON"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            sent = {"content-type": "application/json"} if headers is None else headers
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def post(self, path, body, headers=None):
        """(status, JSON of the answer)"""
        status, _, answer = self.request("POST", path, body, headers)
        return status, json.loads(answer)

    def stream(self, path, body):
        """The events of a stream; the last one has to be [DONE]."""
        status, headers, answer = self.request("POST", path, {**body, "stream": True})
        assert status == 200 and headers["content-type"].startswith("text/event-stream"), answer
        *events, end, rest = answer.decode().split("\n\n")
        assert end == "data: [DONE]" and rest == ""
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def connect(self, receive_buffer=None):
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def send(self, body, path="/v1/completions", **arguments):
        """A connection on which the request was sent, and nothing of the answer was read."""
        connection = self.connect(**arguments)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        return connection

    def metric(self, name):
        """The sum of a counter or gauge over its labels."""
        text = self.request("GET", "/metrics")[2].decode()
        lines = [line for line in text.splitlines() if line.startswith(name)]
        assert lines, name
        return sum(float(line.rpartition(" ")[2]) for line in lines)


def wait_until(condition, seconds=30.0):
    """Give a condition that comes true by itself the time to do so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
