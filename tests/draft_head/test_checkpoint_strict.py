"""Checkpoints that do not fit: one error that lists all of it."""

import re

import pytest
import torch
from checkpoints import HEADS, V4, V41, edit, edit_json, saved

from dspark_ext.draft_head import ConfigError
from dspark_ext.draft_head.checkpoint import CheckpointError, load_draft_head


def groups_of(directory, **options):
    with pytest.raises(CheckpointError) as caught:
        load_draft_head(directory, **options)
    for kind, findings in caught.value.groups.items():
        assert f"{kind} ({len(findings)}):" in str(caught.value)
        for finding in findings:
            assert finding in str(caught.value)
    return caught.value.groups


def test_everything_wrong_is_one_error(tmp_path):
    _, directory = saved(tmp_path, *V41)

    def damage(tensors):
        del tensors["mtp.0.attn.wq_a.scale"], tensors["mtp.1.hc_attn_fn"]
        del tensors["mtp.2.ffn.experts.5.w3.weight"]
        tensors["mtp.1.attn.wq_c.weight"] = torch.zeros(2, 3)
        tensors["mtp.3.attn_norm.weight"] = torch.zeros(72)
        tensors["mtp.1.ffn.gate.bias"] = torch.zeros(7)
        tensors["mtp.0.ffn.experts.0.w2.scale"] = torch.zeros(72, 1, dtype=torch.uint8)
        tensors["mtp.2.attn.wkv.weight"] = torch.zeros(12, 72, dtype=torch.int8)
        tensors["mtp.2.norm.weight"] = torch.zeros(72, dtype=torch.int32)

    edit(directory, damage)
    assert groups_of(directory) == {
        "missing": [
            "mtp.0.attn.wq_a.scale [2, 3]",
            "mtp.1.hc_attn_fn [24, 288]",
            "mtp.2.ffn.experts.5.w3.weight [40, 36]",
        ],
        "wrong shape": [
            "mtp.0.ffn.experts.0.w2.scale: expected [72, 2], found [72, 1]",
            "mtp.1.ffn.gate.bias: expected [6], found [7]",
        ],
        "wrong dtype": [
            "mtp.2.attn.wkv.weight: expected F8_E4M3, found I8",
            "mtp.2.norm.weight: expected F32 or BF16 or F16, found I32",
        ],
        "unexpected": [
            "mtp.1.attn.wq_c.weight F32 [2, 3]",
            "mtp.3.attn_norm.weight F32 [72]",
        ],
    }


@pytest.mark.parametrize("head", ["v41-released", "v4-fp8-32", "v41-bf16", "gemma4-bfloat16"])
def test_each_missing_tensor_is_named(tmp_path, head):
    config, dtype = HEADS[head]
    written, directory = saved(tmp_path, config, dtype)
    kept = "mtp.0.main_proj.weight" if "v4" in head and "gemma" not in head else "fc.weight"
    edit(directory, lambda tensors: {kept: tensors[kept]})
    names = [n for n in written.state_dict() if n not in written.optional_names and n != kept]
    missing = groups_of(directory)["missing"]
    assert [finding.partition(" ")[0] for finding in missing] == names


def test_names_outside_the_heads_own_do_not_matter(tmp_path):
    _, directory = saved(tmp_path, *V41)
    edit(
        directory,
        lambda t: t | {"layers.0.attn.wq_a.weight": torch.zeros(1), "mtpx": torch.ones(1)},
    )
    load_draft_head(directory)


def test_expert_w1_is_not_markov_w1(tmp_path):
    """ "w1" must not match "markov_w1": neither stands in for the other, in either direction."""
    _, directory = saved(tmp_path, *V4)
    expert, markov = "mtp.2.ffn.experts.3.w1.weight", "mtp.2.markov_head.markov_w1.weight"
    edit(directory, lambda t: t.pop(expert))
    assert groups_of(directory) == {"missing": [f"{expert} [40, 36]"]}
    (tmp_path / "other").mkdir()
    head, directory = saved(tmp_path / "other", *V4)
    vocab = head.config.vocab_size

    def rename(tensors):
        tensors["mtp.2.markov_head.w1.weight"] = tensors.pop(markov)

    edit(directory, rename)
    found = groups_of(directory)
    assert found["missing"] == [f"{markov} [{vocab}, 8]"]
    assert found["unexpected"] == [f"mtp.2.markov_head.w1.weight BF16 [{vocab}, 8]"]


@pytest.mark.parametrize(
    ("flavour", "extra"),
    [
        (V41, {"embed": "markov_w1"}),
        (V41, {"head": "markov_w2"}),
        (V4, {"markov_w1": "embed", "markov_w2": "head"}),
    ],
)
def test_both_spellings_of_the_markov_factors_are_ambiguous(tmp_path, flavour, extra):
    _, directory = saved(tmp_path, *flavour)
    prefix = "mtp.2.markov_head."

    def repeat(tensors):
        for name, other in extra.items():
            tensors[f"{prefix}{other}.weight"] = tensors[f"{prefix}{name}.weight"].clone()

    edit(directory, repeat)
    found = groups_of(directory)
    assert list(found) == ["ambiguous"] and len(found["ambiguous"]) == len(extra)
    for name, other in extra.items():
        assert any(f"{prefix}{name}.weight" in f and other in f for f in found["ambiguous"])


def test_a_flavour_that_contradicts_the_names_is_told(tmp_path):
    _, directory = saved(tmp_path, *V4)
    edit_json(directory, lambda values: values | {"flavour": "deepseek_v41"})
    assert groups_of(directory) == {
        "contradictions": ["the config is of flavour deepseek_v41, the names are of deepseek_v4"]
    }


def test_dense_config_of_a_deepseek_checkpoint(tmp_path):
    _, directory = saved(tmp_path, *V41)
    edit_json(directory, lambda values: values | {"flavour": "qwen3"})
    assert list(groups_of(directory)) == ["contradictions"]


def test_target_tensors_are_checked_too(tmp_path):
    head, directory = saved(tmp_path, *V41)
    wrong = torch.zeros(head.config.vocab_size, 71)
    edit(directory, lambda t: t | {"embed.weight": wrong, "head.weight": wrong.clone()})
    found = groups_of(directory)["wrong shape"]
    assert [f.partition(":")[0] for f in found] == ["embed.weight", "head.weight"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.fill_(0).__setitem__(3, -4),
            r"1 draft ids lead outside \[0, 37\), .* 3: 3 \+ -4",
        ),
        (lambda d: d.add_(30), r"\d+ draft ids lead outside \[0, 37\), the first is"),
        (lambda d: d.fill_(0).__setitem__(5, 1), "draft ids 5 and 6 both lead to 6"),
    ],
)
def test_d2t_leads_each_draft_id_to_a_target_id_of_its_own(tmp_path, change, message):
    _, directory = saved(tmp_path, *HEADS["qwen3-reduced-bfloat16"])
    edit(directory, lambda tensors: change(tensors["d2t"]))
    found = groups_of(directory)
    assert list(found) == ["d2t"] and re.search(message, found["d2t"][0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8])
def test_d2t_is_an_integer_table(tmp_path, dtype):
    _, directory = saved(tmp_path, *HEADS["qwen3-reduced-bfloat16"])
    edit(directory, lambda tensors: tensors | {"d2t": tensors["d2t"].to(dtype)})
    assert groups_of(directory)["wrong dtype"][0].startswith("d2t: expected I64 or I32, found ")


def test_int32_d2t_is_read(tmp_path):
    head, directory = saved(tmp_path, *HEADS["qwen3-reduced-bfloat16"])
    edit(directory, lambda tensors: tensors | {"d2t": tensors["d2t"].int()})
    assert torch.equal(load_draft_head(directory).d2t, head.d2t)


def test_a_missing_config_is_told_and_an_incomplete_one(tmp_path):
    _, directory = saved(tmp_path, *V41)
    edit_json(directory, lambda values: {k: v for k, v in values.items() if k != "q_lora_rank"})
    with pytest.raises(ConfigError, match="missing q_lora_rank"):
        load_draft_head(directory)
    (directory / "config.json").unlink()
    assert groups_of(directory) == {
        "missing files": ["config.json: sizes are not told by tensor names"]
    }


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.module."])
@pytest.mark.parametrize("name", ["v41-released", "qwen3-bfloat16"])
def test_what_stands_before_all_names_is_told(tmp_path, name, prefix):
    """Checkpoints saved from inside a wrapper."""
    _, directory = saved(tmp_path, *HEADS[name])
    edit(directory, lambda tensors: {prefix + key: value for key, value in tensors.items()})
    told = f"names of the head begin with {prefix!r}; take it off"
    assert groups_of(directory)["contradictions"] == [told]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"quantization_config": "fp8"}, "quantization_config: expected an object, got 'fp8'"),
        ({"weight_block_size": 32}, r"weight_block_size: expected \[rows, columns\], got 32"),
        ({"text_config": 5}, "text_config: expected an object, got 5"),
    ],
)
def test_objects_of_the_config_are_objects(tmp_path, change, words):
    _, directory = saved(tmp_path, *V41)
    edit_json(directory, lambda values: values | change)
    with pytest.raises(ConfigError, match=words):
        load_draft_head(directory)
    with pytest.raises(ConfigError, match="expected an object, got 'config.json'"):
        load_draft_head(directory, config="config.json")


def test_a_checkpoint_without_a_draft_head(tmp_path):
    _, directory = saved(tmp_path, *V41)
    edit(directory, lambda tensors: {"layers.0.attn.wq_a.weight": torch.zeros(1)})
    assert list(groups_of(directory)) == ["missing"]
