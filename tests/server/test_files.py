"""The server writes no file and loads no pickle, whatever it is asked.

Python reports every opened file, every change of a directory and every class that a pickle names to
audit hooks (docs.python.org, "Audit events table"); the hook of this file collects them while a
server works.
"""

import contextlib
import functools
import os
import pickle
import sys

import pytest

_CHANGES = ("mkdir", "remove", "rename", "rmdir", "link", "symlink", "truncate", "chmod", "putenv")
_FORBIDDEN = {*(f"os.{name}" for name in _CHANGES), "subprocess.Popen", "os.exec", "os.posix_spawn"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_seen: list[str] | None = None


def _hook(event: str, arguments: tuple) -> None:
    if _seen is None:
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, (str, bytes)) and (flags or 0) & _WRITES:
            _seen.append(f"{event} {path!r}")
    elif event in _FORBIDDEN or event.startswith(("pickle.", "shutil.")):
        _seen.append(f"{event} {arguments}")


@functools.cache
def _install_hook() -> None:
    sys.addaudithook(_hook)  # once and for good: a hook cannot be removed


@contextlib.contextmanager
def watched():
    """Yields the list of what was written or unpickled, by any thread, so far."""
    global _seen
    _install_hook()
    _seen = []
    try:
        yield _seen
    finally:
        _seen = None


def test_the_hook_sees_a_file_and_a_pickle(tmp_path):
    data = pickle.dumps(pytest.approx)
    with watched() as seen:
        (tmp_path / "made").write_text("")
        os.remove(tmp_path / "made")
        pickle.loads(data)
    assert [each.split()[0] for each in seen] == ["open", "os.remove", "pickle.find_class"]


def test_nothing_is_written_and_no_pickle_is_loaded(start):
    prompt = {"prompt": "import ", "max_tokens": 4}
    with start(max_body_bytes=4096) as server, watched() as seen:
        assert server.post("/v1/completions", prompt)[0] == 200
        for hostile in (
            {**prompt, "model": "../../etc/passwd"},
            {**prompt, "prompt": "../../tmp/file"},
            {**prompt, "suffix": "/tmp/x"},
            {**prompt, "user": "../" * 50},
            {**prompt, "prompt": "x" * 8000},
            {"prompt": None},
        ):
            server.post("/v1/completions", hostile)
        server.request("POST", "/v1/completions", pickle.dumps(pytest.approx))
        for path in ("/../../etc/passwd", "/%2e%2e/x", "/v1/files", "/metrics", "/health"):
            server.request("GET", path)
        for method in ("PUT", "DELETE", "PATCH"):
            server.request(method, "/v1/models/x", b"x" * 100)
    assert seen == []
