"""Draft heads written as released checkpoints and loaded again, bit for bit, and what is read."""

import json
import pathlib

import draft_heads
import pytest
import torch
from checkpoints import (
    HEADS,
    V4,
    V41,
    assert_same_state,
    bits,
    edit,
    edit_json,
    make,
    saved,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dspark_ext.draft_head.checkpoint import (
    CheckpointError,
    load_draft_head,
    read_checkpoint_config,
)
from dspark_ext.draft_head.checkpoint_files import CheckpointFiles
from dspark_ext.draft_head.write import released_tensors, save_draft_head


def headers(file):
    with safe_open(file, "pt") as opened:
        parts = {name: opened.get_slice(name) for name in opened.keys()}
        return {name: (p.get_dtype(), tuple(p.get_shape())) for name, p in parts.items()}


@pytest.mark.parametrize("name", HEADS)
def test_round_trip_is_bit_equal(tmp_path, name):
    config, dtype = HEADS[name]
    head, directory = saved(tmp_path, config, dtype)
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "model.safetensors"]
    loaded = load_draft_head(directory, dtype=dtype)
    assert type(loaded) is type(head) and not loaded.training
    assert loaded.config == config
    assert_same_state(loaded, head)
    again = released_tensors(loaded)
    for key, tensor in load_file(directory / "model.safetensors").items():
        assert again[key].dtype == tensor.dtype and torch.equal(bits(again[key]), bits(tensor))


@pytest.mark.parametrize("name", ["v41-released", "v4-fp8-128", "qwen3-reduced-bfloat16"])
def test_round_trip_through_shards(tmp_path, name):
    config, dtype = HEADS[name]
    limit = 5_000 if name.startswith("qwen3") else 30_000
    head, directory = saved(tmp_path, config, dtype, max_shard_bytes=limit)
    shards = sorted(path.name for path in directory.glob("*.safetensors"))
    assert len(shards) > 2 and shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    in_files = {key: shard for shard in shards for key in headers(directory / shard)}
    assert index["weight_map"] == in_files
    sizes = [sum(t.nbytes for t in load_file(directory / shard).values()) for shard in shards]
    assert sum(sizes) == index["metadata"]["total_size"]
    largest = max(t.nbytes for t in released_tensors(head).values())
    assert max(sizes) <= max(limit, largest)
    assert_same_state(load_draft_head(directory, dtype=dtype), head)


def test_names_and_formats_are_the_released_ones(tmp_path):
    """A list of its own, from the published checkpoints, for V4.1."""
    config, dtype = V41
    _, directory = saved(tmp_path, config, dtype)
    found = headers(directory / "model.safetensors")
    d, r, v, e, inner = 72, 8, config.vocab_size, 6, 40
    expected = {}

    def fp8(name, rows, columns):
        expected[f"{name}.weight"] = ("F8_E4M3", (rows, columns))
        expected[f"{name}.scale"] = ("F8_E8M0", (-(-rows // 32), -(-columns // 32)))

    def fp4(name, rows, columns):
        expected[f"{name}.weight"] = ("I8", (rows, columns // 2))
        expected[f"{name}.scale"] = ("F8_E8M0", (rows, -(-columns // 32)))

    fp8("mtp.0.main_proj", d, 3 * d)
    for i in range(3):
        stage = f"mtp.{i}"
        fp8(f"{stage}.attn.wq_a", 34, d)
        fp8(f"{stage}.attn.wq_b", 48, 34)
        fp8(f"{stage}.attn.wkv", 12, d)
        fp8(f"{stage}.attn.wo_a", 12, 24)
        fp8(f"{stage}.attn.wo_b", d, 12)
        for name, rows, columns in (("w1", inner, d), ("w2", d, inner), ("w3", inner, d)):
            fp8(f"{stage}.ffn.shared_experts.{name}", rows, columns)
            for expert in range(e):
                fp4(f"{stage}.ffn.experts.{expert}.{name}", rows, columns)
        for sublayer in ("attn", "ffn"):
            expected[f"{stage}.hc_{sublayer}_fn"] = ("F32", (24, 4 * d))
            expected[f"{stage}.hc_{sublayer}_base"] = ("F32", (24,))
            expected[f"{stage}.hc_{sublayer}_scale"] = ("F32", (3,))
        expected[f"{stage}.ffn.gate.weight"] = ("BF16", (e, d))
        expected[f"{stage}.ffn.gate.bias"] = ("F32", (e,))
        expected[f"{stage}.ffn.gate.bias_vl"] = ("F32", (e,))
        expected[f"{stage}.attn.attn_sink"] = ("F32", (4,))
    expected["mtp.2.markov_head.embed.weight"] = ("BF16", (v, r))
    expected["mtp.2.markov_head.head.weight"] = ("BF16", (v, r))
    expected["mtp.2.confidence_head.proj.weight"] = ("F32", (1, d + r))
    norms = {f"mtp.{i}.{n}.weight" for i in range(3) for n in ("attn_norm", "ffn_norm")}
    norms |= {f"mtp.{i}.attn.{n}.weight" for i in range(3) for n in ("q_norm", "kv_norm")}
    norms |= {"mtp.0.main_norm.weight", "mtp.2.norm.weight"}
    assert set(found) == set(expected) | norms
    assert {name: found[name] for name in expected} == expected


def test_v4_has_the_old_markov_names_and_a_learned_mix():
    names = set(released_tensors(make(*V4)))
    assert {f"mtp.2.markov_head.markov_w{i}.weight" for i in (1, 2)} <= names
    assert {f"mtp.2.hc_head_{part}" for part in ("fn", "base", "scale")} <= names
    assert not [n for n in names if "bias_vl" in n or "markov_head.embed" in n]


def test_norms_are_written_narrow_only_if_that_loses_nothing(tmp_path):
    config, dtype = V41
    head = make(config, dtype)
    name = "mtp.0.main_norm.weight"
    head.state_dict()[name].copy_(torch.linspace(0, 1, 72))
    wide = released_tensors(head)[name]
    assert wide.dtype == torch.float32
    head.state_dict()[name].copy_(torch.linspace(0, 1, 72).bfloat16())
    assert released_tensors(head)[name].dtype == torch.bfloat16


def test_a_loaded_head_drafts_what_the_written_one_drafts(tmp_path):
    for number, name in enumerate(
        ("v41-released", "v4-fp8-32", "qwen3-bfloat16", "gemma4-float32")
    ):
        config, dtype = HEADS[name]
        head, directory = saved(tmp_path / str(number), config, dtype)
        loaded = load_draft_head(directory, dtype=dtype)
        generator = torch.Generator().manual_seed(2)
        size = (config.vocab_size, config.hidden_size)
        target = [torch.randn(size, generator=generator).to(dtype) for _ in range(2)]
        drafts = []
        for each in (head, loaded):
            each.bind_target(*target)
            each.allocate_context(2, 16)
            draft_heads.fill(each, 0, 7)
            drafts.append(draft_heads.draft(each, [3], [7], [0]))
        assert torch.equal(drafts[0].token_ids, drafts[1].token_ids)
        assert torch.equal(drafts[0].logits, drafts[1].logits)


def whole_target(directory, head):
    """The head's shard beside two of its target, as in a whole checkpoint."""
    config, own = head.config, released_tensors(head)
    size = (config.vocab_size, config.hidden_size)
    vocabulary = {"embed.weight": torch.randn(size), "head.weight": torch.randn(size)}
    layers = {
        "layers.0.attn.wq_a.weight": torch.randn(4, 4),
        "layers.0.ffn.experts.0.w1.weight": torch.randn(4, 4),
        "norm.weight": torch.ones(4),
    }
    directory.mkdir()
    index = {}
    for number, tensors in enumerate((vocabulary, layers, own), 1):
        file = f"model-{number:05d}-of-00003.safetensors"
        save_file(tensors, directory / file, {"format": "pt"})
        index |= dict.fromkeys(tensors, file)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (directory / "model.safetensors.index.json").write_text(text)
    return vocabulary


def test_a_whole_target_checkpoint_gives_its_head_and_nothing_else_is_opened(tmp_path):
    config, dtype = V41
    head, written = saved(tmp_path, config, dtype)
    directory = tmp_path / "target"
    vocabulary = whole_target(directory, head)
    target_config = json.loads((written / "config.json").read_text())
    target_config |= {"n_routed_experts": 384, "num_experts_per_tok": 6}
    (directory / "config.json").write_text(json.dumps(target_config))
    (directory / "model-00002-of-00003.safetensors").write_bytes(b"no safetensors file")
    loaded = load_draft_head(directory)
    assert_same_state(loaded, head)
    assert torch.equal(loaded.embedding_weight, vocabulary["embed.weight"].bfloat16())
    assert torch.equal(loaded.output_weight, vocabulary["head.weight"].bfloat16())

    given = [torch.randn(config.vocab_size, 72, dtype=torch.bfloat16) for _ in range(2)]
    loaded = load_draft_head(directory, target=given)
    assert loaded.embedding_weight.data_ptr() == given[0].data_ptr()
    assert loaded.output_weight.data_ptr() == given[1].data_ptr()


def test_only_tensors_of_the_head_are_read(tmp_path, monkeypatch):
    head, written = saved(tmp_path, *V41)
    directory = tmp_path / "target"
    whole_target(directory, head)
    (directory / "config.json").write_text((written / "config.json").read_text())
    read = []
    original = CheckpointFiles.read

    def recording(self, entries, device="cpu"):
        read.extend(entries)
        return original(self, entries, device)

    monkeypatch.setattr(CheckpointFiles, "read", recording)
    load_draft_head(directory)
    assert sorted(read) == sorted([*head.state_dict(), "embed.weight", "head.weight"])


def test_embeddings_may_be_left_to_the_target(tmp_path):
    config, dtype = HEADS["qwen3-reduced-bfloat16"]
    head, directory = saved(tmp_path, config, dtype, embeddings=False)
    names = set(headers(directory / "model.safetensors"))
    assert not names & {"embed_tokens.weight", "lm_head.weight"}
    size = (config.vocab_size, config.hidden_size)
    target = [torch.randn(size).bfloat16() for _ in range(2)]
    loaded = load_draft_head(directory, target=target)
    assert loaded.embed_tokens.weight.data_ptr() == target[0].data_ptr()
    rows = torch.arange(20) + head.d2t
    assert torch.equal(loaded.lm_head.weight, target[1][rows])
    unbound = load_draft_head(directory)
    assert unbound.embed_tokens.weight.is_meta and unbound.lm_head.weight.is_meta
    unbound.bind_target(*target)
    assert torch.equal(unbound.lm_head.weight, loaded.lm_head.weight)
    assert not any(p.is_meta for p in unbound.parameters())


def test_one_matrix_bound_as_both_embedding_and_output_is_written_twice(tmp_path):
    config, dtype = HEADS["qwen3-bfloat16"]
    head = make(config, dtype)
    tied = torch.randn(config.vocab_size, config.hidden_size).to(dtype)
    head.bind_target(tied, tied)
    save_draft_head(head, tmp_path / "checkpoint")
    assert_same_state(load_draft_head(tmp_path / "checkpoint"), head)


def test_draft_ids_are_mapped_even_where_all_are_there(tmp_path):
    """Some writers put d2t into every file; it may be another order of the vocabulary."""
    config, dtype = HEADS["qwen3-float32"]
    head, directory = saved(tmp_path, config, dtype)
    order = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(1))
    rows = ("lm_head.weight", "markov_head.markov_w2.weight")

    def reorder(tensors):
        for name in rows:
            tensors[name] = tensors[name][order].clone()
        tensors["d2t"] = order - torch.arange(len(order))

    edit(directory, reorder)
    mapped = load_draft_head(directory, dtype=dtype)
    again = load_draft_head(save_draft_head(mapped, tmp_path / "again")[0].parent, dtype=dtype)
    blocks = []
    for each in (head, mapped, again):
        each.allocate_context(2, 16)
        draft_heads.fill(each, 0, 7)
        blocks.append(draft_heads.draft(each, [3], [7], [0]))
    for block in blocks[1:]:
        torch.testing.assert_close(block.logits, blocks[0].logits)
    edit(directory, lambda tensors: tensors["d2t"].zero_().__setitem__(0, 1))
    with pytest.raises(CheckpointError, match="draft ids 0 and 1 both lead to 1"):
        load_draft_head(directory)


def test_t2d_is_ignored(tmp_path):
    config, dtype = HEADS["qwen3-reduced-bfloat16"]
    head, directory = saved(tmp_path, config, dtype)
    edit(directory, lambda t: t | {"t2d": torch.ones(config.vocab_size, dtype=torch.bool)})
    assert_same_state(load_draft_head(directory), head)


def test_a_single_file_takes_the_config_beside_it_or_the_one_given(tmp_path):
    head, directory = saved(tmp_path, *V41)
    file = directory / "model.safetensors"
    assert_same_state(load_draft_head(file), head)
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").unlink()
    for config in (values, head.config):
        assert_same_state(load_draft_head(file, config=config), head)
    file.rename(directory / "weights.safetensors")
    assert_same_state(load_draft_head(directory, config=values), head)


@pytest.mark.parametrize("name", ["v41-bf16", "v4-released", "v41-fp8-128", "v41-fp16"])
def test_formats_are_those_of_the_tensors_whatever_the_config_says(tmp_path, name):
    config, dtype = HEADS[name]
    head, directory = saved(tmp_path, config, dtype)

    def forget(values):
        for key in ("dense_format", "expert_format", "expert_dtype", "quantization_config"):
            values.pop(key, None)
        if config.weight_block_size != (128, 128):  # one block of a small weight fits any size
            return values
        values["weight_block_size"] = [128, 128]
        return values

    edit_json(directory, forget)
    found = read_checkpoint_config(directory)
    assert found.dense_format == config.dense_format
    assert found.expert_format == config.expert_format
    assert_same_state(load_draft_head(directory, dtype=dtype), head)


def test_nested_config_of_a_released_target(tmp_path):
    """V4.1's config.json keeps the sizes in text_config."""
    head, directory = saved(tmp_path, *V41)

    def nest(values):
        quantization = values.pop("quantization_config")
        for key in ("flavour", "dense_format", "expert_format", "weight_block_size"):
            del values[key]
        outer = {"model_type": "deepseek_v41", "architectures": values.pop("architectures")}
        del values["model_type"]
        return outer | {"text_config": values, "quantization_config": quantization}

    edit_json(directory, nest)
    assert_same_state(load_draft_head(directory), head)


def test_float_weights_take_the_dtype_asked_for(tmp_path):
    for number, name in enumerate(("v41-released", "qwen3-bfloat16")):
        config, dtype = HEADS[name]
        head, directory = saved(tmp_path / str(number), config, dtype)
        loaded = load_draft_head(directory, dtype=torch.float32)
        for key, tensor in loaded.state_dict().items():
            written = head.state_dict()[key]
            if written.dtype == torch.bfloat16:
                assert tensor.dtype == torch.float32 and torch.equal(tensor, written.float())
            else:
                assert torch.equal(bits(tensor), bits(written))


@pytest.mark.parametrize("stored", [torch.uint8, torch.float4_e2m1fn_x2])
def test_packed_experts_may_be_stored_as_other_one_byte_types(tmp_path, stored):
    head, directory = saved(tmp_path, *V41)

    def restore(tensors):
        return {
            name: t.view(torch.uint8).view(stored) if t.dtype == torch.int8 else t
            for name, t in tensors.items()
        }

    edit(directory, restore)
    assert_same_state(load_draft_head(directory), head)


def test_float32_scales_are_kept(tmp_path):
    head, directory = saved(tmp_path, *HEADS["v4-fp8-128"])

    def widen(tensors):
        return {name: t.float() if name.endswith(".scale") else t for name, t in tensors.items()}

    edit(directory, widen)
    loaded = load_draft_head(directory)
    assert loaded.mtp[0].main_proj.scale.dtype == torch.float32
    x = torch.randn(2, head.config.num_features, dtype=torch.bfloat16)
    assert torch.equal(loaded.combine(x), head.combine(x))


def test_the_demos_head_is_known_by_its_header(tmp_path):
    from dspark_ext.draft_head.compact import CompactDraftHead

    file = pathlib.Path(__file__).parents[1] / "fixtures/tiny_drafter.safetensors"
    loaded = load_draft_head(file, dtype=torch.float32)
    assert type(loaded) is CompactDraftHead
    assert_same_state(loaded, CompactDraftHead.load(file))
    (tmp_path / "drafter.safetensors").write_bytes(file.read_bytes())
    assert_same_state(load_draft_head(tmp_path, dtype=torch.float32), loaded)


def test_writing_needs_an_empty_place_and_data(tmp_path):
    from dspark_ext.draft_head import make_draft_head

    head, directory = saved(tmp_path, *V41)
    with pytest.raises(FileExistsError, match="holds model.safetensors"):
        save_draft_head(head, directory)
    empty = make_draft_head(head.config, device="meta")
    with pytest.raises(ValueError, match="has no data"):
        save_draft_head(empty, tmp_path / "other")
    assert not list((tmp_path / "other").glob("*"))
