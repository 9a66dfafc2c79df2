"""Checkpoints with any bytes and any JSON in them are loaded, or an error says what is wrong."""

import json
import math
import random

import pytest
from checkpoints import HEADS, saved

from dspark_ext.draft_head.checkpoint import CheckpointError, load_draft_head
from dspark_ext.draft_head.config import ConfigError

VALUES = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, -(2**63), 1e400, -1e-400, math.nan, 0.5, "",
    "float32", "\u0000", "../x", [], [1], [[]], {}, {"a": 1}, [2**40] * 3, "9" * 400,
)  # fmt: skip


@pytest.fixture(scope="module", params=["qwen3-bfloat16", "v41-released"])
def checkpoint(request, tmp_path_factory):
    directory = saved(tmp_path_factory.mktemp("head"), *HEADS[request.param])[1]
    return directory, {path.name: path.read_bytes() for path in directory.iterdir()}


def load(directory) -> bool:
    try:
        load_draft_head(directory)
    except CheckpointError as error:
        assert str(directory) in str(error)
        return False
    except ConfigError as error:
        assert str(error).startswith("draft head config")
        return False
    return True


def restore(directory, files) -> None:
    for name, data in files.items():
        (directory / name).write_bytes(data)


def replace_somewhere(value, rng: random.Random):
    """JSON with one value, at any depth, replaced or left out."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        changed = dict(value)
        if rng.random() < 0.1:
            changed.pop(key)
        else:
            changed[key] = replace_somewhere(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.6:
        place = rng.randrange(len(value))
        return [replace_somewhere(v, rng) if i == place else v for i, v in enumerate(value)]
    return rng.choice(VALUES)


def changed_file(data: bytes, rng: random.Random) -> bytes:
    """safetensors with its header's bytes or its JSON changed, cut, or filled up."""
    size = int.from_bytes(data[:8], "little")
    kind = rng.randrange(4)
    if kind == 0:
        at = rng.randrange(8 + size)
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if kind == 1:
        return data[: rng.randrange(len(data))]
    if kind == 2:
        return rng.randbytes(rng.randrange(1, 12)) + data[8:]
    header = json.dumps(replace_somewhere(json.loads(data[8 : 8 + size]), rng)).encode()
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def check(checkpoint, count: int, seed: int) -> None:
    directory, files = checkpoint
    rng, loaded = random.Random(seed), 0
    name = next(name for name in files if name.endswith(".safetensors"))
    for number in range(count):
        restore(directory, files)
        try:
            if number % 2:
                (directory / name).write_bytes(changed_file(files[name], rng))
            else:
                config = replace_somewhere(json.loads(files["config.json"]), rng)
                (directory / "config.json").write_text(json.dumps(config))
            loaded += load(directory)
        except BaseException:
            print(f"seed {seed}, change {number}", (directory / "config.json").read_text()[:2000])
            raise
    restore(directory, files)
    assert load(directory)
    assert loaded < count


def test_a_few_hundred_changes(checkpoint):
    check(checkpoint, 200, seed=1)


@pytest.mark.slow
def test_many_changes(checkpoint):
    check(checkpoint, 10_000, seed=2)
