"""Files of the compact head: written and read back, and what is wrong with them is one error."""

import dataclasses
import json
import pathlib

import draft_heads
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dspark_ext.demo import tiny
from dspark_ext.draft_head import ConfigError, load_draft_head, save_draft_head
from dspark_ext.draft_head.checkpoint_files import CheckpointError
from dspark_ext.draft_head.compact import CompactDraftHead, CompactDraftHeadConfig
from dspark_ext.draft_head.ledger import ledger

FILE = pathlib.Path(__file__).parents[1] / "fixtures/tiny_drafter.safetensors"
PROJ = "mtp.0.main_proj"


@pytest.fixture
def changed(tmp_path):
    """changed(tensors=, config=, metadata=) -> the fixture's file, otherwise."""

    def make(tensors=None, config=None, metadata=None):
        with safe_open(FILE, "pt") as file:
            header = file.metadata()
        values = json.loads(header["config"])
        values |= config or {}
        header["config"] = json.dumps({k: v for k, v in values.items() if v is not ...})
        header = {k: v for k, v in (header | (metadata or {})).items() if v is not ...}
        held = {k: v for k, v in (load_file(FILE) | (tensors or {})).items() if v is not ...}
        save_file(held, tmp_path / "head.safetensors", header)
        return tmp_path / "head.safetensors"

    return make


def groups_of(path):
    with pytest.raises(CheckpointError) as caught:
        load_draft_head(path)
    assert str(path) in str(caught.value)
    return caught.value.groups


def test_a_head_is_read_back(tmp_path):
    head = CompactDraftHead.load(FILE)
    head.save(tmp_path / "again.safetensors", {"made": "here"})
    again = CompactDraftHead.load(tmp_path / "again.safetensors")
    assert again.config == head.config and not again.training
    for (
        name,
        value,
    ) in head.state_dict().items():  # the codes are the same, a scale may be an ulp off
        torch.testing.assert_close(again.state_dict()[name], value, rtol=3e-7, atol=0)


def test_everything_wrong_is_one_error(changed):
    weight = torch.zeros(3, 4).to(torch.float8_e4m3fn)
    path = changed(
        {
            f"{PROJ}.weight": weight,
            f"{PROJ}.scale": torch.ones(128, dtype=torch.uint8),
            "mtp.0.main_norm.weight": ...,
            "module.mtp.0.main_norm.weight": torch.ones(128),
            "mtp.0.attn_norm.weight": torch.ones(128, dtype=torch.int64),
        }
    )
    assert groups_of(path) == {
        "missing": ["mtp.0.main_norm.weight [128]"],
        "unexpected": ["module.mtp.0.main_norm.weight F32 [128]"],
        "wrong shape": [f"{PROJ}.weight: expected [128, 384], found [3, 4]"],
        "wrong dtype": [
            f"{PROJ}.scale: expected F32, found U8",
            "mtp.0.attn_norm.weight: expected F32 or BF16 or F16, found I64",
        ],
    }


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda d2t: d2t + 200, r"draft ids lead outside \[0, 256\)"),
        (lambda d2t: d2t - 50, r"draft ids lead outside \[0, 256\), the first is 0: 0 \+ -"),
        (
            lambda d2t: torch.cat([d2t[:1], d2t[:1] - 1, d2t[2:]]),
            "draft ids 0 and 1 both lead to",
        ),
    ],
)
def test_d2t_leads_each_draft_id_to_a_target_id_of_its_own(changed, change, words):
    found = groups_of(changed({"d2t": change(load_file(FILE)["d2t"])}))
    assert list(found) == ["d2t"]
    with pytest.raises(CheckpointError, match=words):
        CompactDraftHead.load(changed({"d2t": change(load_file(FILE)["d2t"])}))


def test_d2t_is_an_integer_table(changed):
    d2t = load_file(FILE)["d2t"]
    assert groups_of(changed({"d2t": d2t.float()})) == {
        "wrong dtype": ["d2t: expected I64 or I32, found F32"]
    }
    assert torch.equal(load_draft_head(changed({"d2t": d2t.int()})).d2t, d2t)


@pytest.mark.parametrize(
    "config, words",
    [
        ({"hidden_size": ..., "head_dim": ...}, "missing head_dim; missing hidden_size"),
        ({"num_layers": 3}, "unknown num_layers"),
        ({"hidden_size": "128"}, "hidden_size: expected an integer >= 1, got '128'"),
        ({"hidden_size": 128.0}, "hidden_size: expected an integer >= 1, got 128.0"),
        ({"hidden_size": -1}, "hidden_size: expected an integer >= 1, got -1"),
        ({"num_nextn_predict_layers": 0}, "num_nextn_predict_layers: expected an integer"),
        ({"sliding_window": 0, "dspark_block_size": True}, "block_size: .* sliding_window: "),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps: expected a number > 0, got -1.0"),
        ({"swiglu_limit": 0}, "swiglu_limit: expected a number > 0, got 0"),
        ({"rope_theta": float("nan")}, "rope_theta: expected a number > 0, got nan"),
        ({"dspark_target_layer_ids": 3}, "dspark_target_layer_ids: expected different layers"),
        ({"dspark_target_layer_ids": [1, 1, 2]}, "expected different layers, got"),
        ({"dspark_num_experts_per_tok": 5}, "dspark_num_experts_per_tok: expected at most 4"),
        ({"draft_vocab_size": 257}, "draft_vocab_size: expected at most 256, got 257"),
        ({"num_key_value_heads": 3}, "4 is no multiple of num_key_value_heads 3"),
        ({"head_dim": 31}, "head_dim: expected an even number, got 31"),
    ],
)
def test_a_config_that_cannot_be(changed, config, words):
    with pytest.raises(ConfigError, match=r"draft head config \(compact\): .*" + words):
        load_draft_head(changed(config=config))


@pytest.mark.parametrize("text", ["{", "[1]", "7"])
def test_a_config_that_is_none(changed, text):
    with pytest.raises(ConfigError, match=r"draft head config \(compact\): "):
        load_draft_head(changed(metadata={"config": text}))


def test_a_header_without_its_parts(changed):
    assert "format" in groups_of(changed(metadata={"config": ...}))["contradictions"][0]
    with pytest.raises(CheckpointError, match="expected format 'dspark_ext.draft_head.v1'"):
        CompactDraftHead.load(changed(metadata={"format": "dspark_ext.draft_head.v2"}))


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_size": 2**30},
        {"hidden_size": 2**40, "dspark_markov_rank": 2**40},
        {"dspark_n_routed_experts": 10**7},
        {"num_nextn_predict_layers": 10**7},
    ],
)
def test_absurd_sizes_need_no_memory(changed, config):
    assert groups_of(changed(config=config)).keys() <= {
        "contradictions", "missing", "unexpected", "wrong shape"
    }  # fmt: skip


def test_a_torn_file_is_unreadable(changed):
    path = changed()
    path.write_bytes(path.read_bytes()[:-100])
    assert list(groups_of(path)) == ["unreadable files"]
    with pytest.raises(CheckpointError, match="unreadable files"):
        CompactDraftHead.load(path)
    with pytest.raises(FileNotFoundError, match="nothing: no such file"):
        CompactDraftHead.load(path.parent / "nothing")


def test_a_config_beside_the_one_in_the_header_is_refused(changed):
    with pytest.raises(ValueError, match="config: the file has its own in its header"):
        load_draft_head(changed(), config={"hidden_size": 3})


def test_a_full_disk_leaves_the_file_before(tmp_path, monkeypatch):
    path, head = tmp_path / "head.safetensors", load_draft_head(FILE)
    head.save(path)
    draft_heads.check_full_disk(monkeypatch, path, head.save)


def test_the_ledger_of_a_file_and_of_its_head():
    of_file, of_head = ledger(FILE), ledger(CompactDraftHead.load(FILE))
    assert [row.part for row in of_file.rows] == [row.part for row in of_head.rows]
    assert of_file.total.parameters == of_head.total.parameters == 278_721 + 96 + 4 * 2
    assert of_file["experts"].weight_bytes == of_file["experts"].parameters
    assert of_head["experts"].weight_bytes == 4 * of_head["experts"].parameters


def test_the_writer_of_released_heads_names_the_right_one(tmp_path):
    with pytest.raises(ValueError, match="CompactDraftHead has its own `save`"):
        save_draft_head(load_draft_head(FILE), tmp_path / "head")
    assert not (tmp_path / "head").exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_head_computes_in_its_dtype(dtype):
    head = CompactDraftHead.load(FILE).to(dtype)
    embedding = torch.randn(256, 128)
    head.bind_target(embedding, embedding)
    assert head.combine(torch.randn(3, 384)).dtype == head.lm_head.weight.dtype == dtype


def test_the_demos_sizes_are_a_config():
    config = tiny.draft_config()
    assert config == load_draft_head(FILE).config
    assert CompactDraftHeadConfig.from_json(config.to_json()) == config
    assert dataclasses.replace(config, draft_vocab_size=256).draft_vocab_size == 256
