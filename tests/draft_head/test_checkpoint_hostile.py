"""Files that are damaged, or lie: each is a named error, and nothing outside is opened."""

import json

import pytest
import torch
from checkpoints import HEADS, V41, assert_same_state, edit, edit_json, make, saved
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dspark_ext.draft_head.checkpoint import CheckpointError, load_draft_head
from dspark_ext.draft_head.write import save_draft_head

INDEX = "model.safetensors.index.json"


def groups_of(path, **options):
    with pytest.raises(CheckpointError) as caught:
        load_draft_head(path, **options)
    assert str(path) in str(caught.value)
    return caught.value.groups


@pytest.fixture
def single(tmp_path):
    return saved(tmp_path, *HEADS["qwen3-bfloat16"])[1]


@pytest.fixture
def sharded(tmp_path):
    return saved(tmp_path, *V41, max_shard_bytes=60_000)[1]


def header_of(raw):
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def with_header(header, data, length=None):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def moved(header, data, name, **changes):
    header[name] |= changes
    return with_header(header, data)


DAMAGES = {
    "empty": lambda raw: b"",
    "only a length": lambda raw: raw[:8],
    "truncated header": lambda raw: raw[:100],
    "truncated data": lambda raw: raw[:-1],
    "trailing data": lambda raw: raw + b"\0",
    "header longer than the file": lambda raw: (len(raw) * 2).to_bytes(8, "little") + raw[8:],
    "header of 2^63 bytes": lambda raw: (2**63).to_bytes(8, "little") + raw[8:],
    "header shorter than it is": lambda raw: (40).to_bytes(8, "little") + raw[8:],
    "no JSON": lambda raw: raw[:8] + b"\xff" * (len(raw) - 8),
    "offsets beyond the file": lambda raw: moved(
        *header_of(raw), "fc.weight", data_offsets=[0, 2**40]
    ),
    "offsets that overlap": lambda raw: moved(*header_of(raw), "fc.weight", data_offsets=[0, 2304]),
    "a shape that is not the data's": lambda raw: moved(
        *header_of(raw), "fc.weight", shape=[2**40, 2**40]
    ),
    "an unknown dtype": lambda raw: moved(*header_of(raw), "fc.weight", dtype="PICKLE"),
    "a pickle": lambda raw: b"\x80\x04\x95" + raw,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file(single, damage):
    file = single / "model.safetensors"
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    for path in (single, file):
        found = groups_of(path)
        assert list(found) == ["unreadable files"]
        assert found["unreadable files"][0].startswith("model.safetensors: ")


def test_damaged_and_missing_shards_are_all_named(sharded):
    shards = sorted(sharded.glob("*.safetensors"))
    assert len(shards) >= 4
    shards[0].unlink()
    shards[2].write_bytes(shards[2].read_bytes()[:-5])
    found = groups_of(sharded)
    assert found["missing files"] == [f"{shards[0].name}: named by {INDEX}"]
    assert len(found["unreadable files"]) == 1
    assert found["unreadable files"][0].startswith(shards[2].name)


@pytest.mark.parametrize(
    "file",
    ["../secret.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "a\\b.safetensors", "",
     7, None, ["x.safetensors"], "config.json", "weights.bin"],
)  # fmt: skip
def test_an_index_names_plain_safetensors_files_of_its_directory(sharded, file):
    secret = sharded.parent / "secret.safetensors"
    save_file({"mtp.0.main_proj.weight": torch.zeros(1)}, secret)
    edit_json(sharded, lambda v: v["weight_map"].update({"mtp.0.main_proj.weight": file}), INDEX)
    found = groups_of(sharded)
    assert list(found) == ["outside the directory"]
    assert found["outside the directory"][0].startswith(f"mtp.0.main_proj.weight: {file!r} is no")


def test_a_tensor_that_is_not_in_its_shard(sharded):
    index = json.loads((sharded / INDEX).read_text())["weight_map"]
    name = "mtp.1.attn.wkv.weight"
    edit(sharded, lambda tensors: tensors.pop(name), index[name])
    found = groups_of(sharded)
    assert found == {"not in the shard": [f"{name}: the index places it in {index[name]}"]}


def test_duplicate_over_shards(sharded):
    index = json.loads((sharded / INDEX).read_text())["weight_map"]
    name = "mtp.2.norm.weight"
    other = sorted(set(index.values()) - {index[name]})[0]
    tensor = load_file(sharded / index[name])[name]
    edit(sharded, lambda tensors: tensors | {name: tensor + 1}, other)
    assert groups_of(sharded) == {"duplicate": [f"{name} in {index[name]} and {other}"]}


def test_a_tensor_that_the_index_does_not_know(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    edit(sharded, lambda tensors: tensors | {"mtp.0.extra": torch.zeros(1)}, shard.name)
    assert groups_of(sharded) == {"not in the index": [f"mtp.0.extra of {shard.name}"]}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"weight_map": []}', "{}", "\x00", '{"weight_map": ' + "[" * 100_000,
     '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}'],
    ids=["empty", "cut", "list", "list map", "no map", "zero", "deep", "twice"],
)  # fmt: skip
def test_unreadable_index(sharded, text):
    (sharded / INDEX).write_text(text)
    found = groups_of(sharded)
    assert list(found) == ["unreadable files"]
    assert found["unreadable files"][0].startswith(f"{INDEX}: ")


@pytest.mark.parametrize("text", ["", "[1]", '{"hidden_size": 1, "hidden_size": 2}'])
def test_unreadable_config(single, text):
    (single / "config.json").write_text(text)
    found = groups_of(single)
    assert list(found) == ["unreadable files"]
    assert found["unreadable files"][0].startswith("config.json: ")


def test_nothing_there_and_too_much_there(tmp_path, single):
    assert list(groups_of(tmp_path / "nowhere")) == ["missing files"]
    (tmp_path / "empty").mkdir()
    assert "no *.safetensors" in groups_of(tmp_path / "empty")["missing files"][0]
    file = single / "model.safetensors"
    (single / "a.safetensors").write_bytes(file.read_bytes())
    file.rename(single / "b.safetensors")
    assert "a.safetensors, b.safetensors" in groups_of(single)["missing files"][0]


def test_an_index_beside_another_whole_file_is_ambiguous(sharded):
    """Other readers prefer the one to the other."""
    save_file({"norm.weight": torch.ones(3)}, sharded / "model.safetensors")
    assert list(groups_of(sharded)) == ["ambiguous"]


def test_an_index_is_no_checkpoint_by_itself(sharded):
    index = sharded / "model.safetensors.index.json"
    assert groups_of(index) == {
        "missing files": ["model.safetensors.index.json is an index; name its directory"]
    }


def test_a_full_disk_leaves_no_part_of_a_checkpoint(tmp_path, monkeypatch):
    """So that the same call can be made again."""
    head, written = make(*V41), []

    def full(tensors, file, metadata):
        if len(written) == 3:
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        written.append(file)
        save_file(tensors, file, metadata)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="model-00004.*No space left"):
        patch.setattr("safetensors.torch.save_file", full)
        save_draft_head(head, tmp_path, max_shard_bytes=60_000)
    assert list(tmp_path.iterdir()) == []
    save_draft_head(head, tmp_path, max_shard_bytes=60_000)
    assert_same_state(load_draft_head(tmp_path), head)


def test_dtypes_that_nothing_is_drawn_in(single):
    for dtype in (torch.float64, torch.int8, torch.float8_e4m3fn):
        with pytest.raises(ValueError, match="dtype: expected one of bfloat16, float16, float32"):
            load_draft_head(single, dtype=dtype)


def test_a_torch_file_is_not_opened(tmp_path):
    """Loading must not run what a pickle holds."""
    ran = tmp_path / "ran"

    class Payload:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    directory = tmp_path / "checkpoint"
    directory.mkdir()
    torch.save(Payload(), directory / "model.safetensors")
    torch.save(Payload(), directory / "pytorch_model.bin")
    assert list(groups_of(directory)) == ["unreadable files"]
    assert not ran.exists()


def test_a_config_that_asks_for_absurd_sizes_needs_no_memory(tmp_path):
    _, directory = saved(tmp_path, *V41)
    edit_json(directory, lambda v: v | {"vocab_size": 2**40, "hidden_size": 2**30})
    found = groups_of(directory)
    assert any("1099511627776" in finding for finding in found["wrong shape"])


@pytest.mark.parametrize("key", ["dspark_n_routed_experts", "num_nextn_predict_layers"])
def test_a_config_that_asks_for_absurdly_many_parts_is_refused_at_once(tmp_path, key):
    _, directory = saved(tmp_path, *V41)
    edit_json(directory, lambda v: v | {key: 2**40})
    found = groups_of(directory)
    assert list(found) == ["contradictions"] and "1099511627776" in found["contradictions"][0]
