"""config.json files of every kind, and what they may not say."""

import dataclasses

import pytest
import torch
from released_configs import GEMMA4, QWEN3, SPECULATORS, V4, V41

from dspark_ext.draft_head import FLAVOURS, ConfigError, make_draft_head, read_config
from dspark_ext.engine import output_taps

FILES = {
    "deepseek_v41": V41,
    "deepseek_v4": V4,
    "qwen3": QWEN3,
    "gemma4": GEMMA4,
    "speculators": SPECULATORS,
}


@pytest.mark.parametrize("name", FILES)
def test_a_config_is_read_and_read_back(name):
    config = read_config(FILES[name])
    assert config.flavour == (name if name in FLAVOURS else "qwen3")
    assert read_config(config.to_dict()) == config


def test_v41_sizes():
    config = read_config(V41)
    assert (config.dspark_n_routed_experts, config.dspark_num_experts_per_tok) == (128, 3)
    assert (config.dense_format, config.expert_format) == ("fp8_e4m3", "mxfp4")
    assert config.weight_block_size == (32, 32)
    assert (config.features_from, config.num_features) == ("inputs", 15360)
    assert output_taps(config) == [36, 37, 38]
    assert config.rms_norm_eps == 1e-20 and config.window == 128 and config.trained_drafts == 5


def test_v4_takes_the_experts_of_the_target():
    config = read_config(V4)
    assert (config.dspark_n_routed_experts, config.dspark_num_experts_per_tok) == (256, 6)
    assert config.features_from == "outputs" and output_taps(config) == [40, 41, 42]
    assert config.dense_format == config.expert_format == "bf16"


def test_v4_as_transformers_writes_it():
    rope = {
        "main": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.125},
        "compress": {"rope_type": "yarn", "rope_theta": 160000.0, "partial_rotary_factor": 0.125},
    }
    config = read_config(changed(V4, rope_parameters=rope, rope_theta=..., qk_rope_head_dim=...))
    assert config.rope_theta == 5000.0 and config.qk_rope_head_dim == 64


def test_a_flat_rope_of_deepseek_is_that_of_the_draft():
    config = read_config(changed(V4, rope_parameters={"rope_theta": 5000.0}, rope_theta=...))
    assert config.rope_theta == 5000.0


def test_gemma4_uses_its_global_heads():
    config = read_config(GEMMA4)
    assert (config.head_dim, config.num_key_value_heads) == (512, 1)
    assert (config.rope_theta, config.partial_rotary_factor) == (1e6, 0.25)
    assert config.tie_word_embeddings and not read_config(QWEN3).tie_word_embeddings
    assert not read_config(changed(GEMMA4, tie_word_embeddings=False)).tie_word_embeddings


def test_speculators_count_the_embedding_and_the_anchor():
    config = read_config(SPECULATORS)
    assert config.target_layer_ids == (1, 17, 33)
    assert not config.sample_from_anchor and config.trained_drafts == 7 and config.block_rows == 8
    assert config.markov_rank == 0 and not config.enable_confidence_head


def changed(values, **changes):
    values = {**values, **changes}
    return {key: value for key, value in values.items() if value is not ...}


@pytest.mark.parametrize(
    "values,words",
    [
        (changed(V4, head_dim=...), "missing head_dim"),
        (changed(V4, head_dim=..., o_groups=...), "missing head_dim; missing o_groups"),
        (changed(V4, qk_rope_head_dim=63), "qk_rope_head_dim 63: expected an even number"),
        (changed(V4, qk_rope_head_dim=514), "at most head_dim 512"),
        (changed(V4, o_groups=7), "num_attention_heads 64 is no multiple of o_groups 7"),
        (changed(V4, num_experts_per_tok=257), "dspark_num_experts_per_tok 257 exceeds"),
        (changed(V4, dspark_target_layer_ids=[40, 43]), r"layer 43 is outside \[0, 43\)"),
        (changed(V4, dspark_target_layer_ids=[40, 40]), "names a layer twice"),
        (changed(V4, dspark_target_layer_ids=[]), "expected at least one target layer"),
        (changed(V4, dspark_noise_token_id=129280), "dspark_noise_token_id 129280 is no id below"),
        (changed(V4, scoring_func="sigmoid"), "scoring_func: only 'sqrtsoftplus' is supported"),
        (changed(V4, num_key_value_heads=2), "num_key_value_heads: only 1 is supported, got 2"),
        (changed(V4, hidden_size=0), "hidden_size: expected an integer >= 1, got 0"),
        (changed(V4, dense_format="fp8_e4m3"), "weight_block_size: needed"),
        (
            changed(V4, dspark_num_experts_per_tok=3, dspark_n_activated_experts=4),
            "dspark_num_experts_per_tok 3 contradicts dspark_n_activated_experts 4",
        ),
        (changed(QWEN3, num_key_value_heads=5), "32 is no multiple of num_key_value_heads 5"),
        (changed(QWEN3, markov_head_type="lstm"), "markov_head_type: expected one of"),
        (changed(QWEN3, markov_rank=0), "confidence_head_with_markov needs a markov_rank above 0"),
        (changed(QWEN3, attention_bias=True), "attention_bias: only False is supported"),
        (changed(QWEN3, draft_vocab_size=151937), "draft_vocab_size 151937 exceeds vocab_size"),
        (changed(QWEN3, dspark_block_size=5), "block_size 7 contradicts dspark_block_size 5"),
        (changed(QWEN3, rope_parameters={"rope_type": "yarn"}), "rope_type: expected 'default'"),
        (changed(QWEN3, target_layer_ids=[1, 36]), r"layer 36 is outside \[-1, 36\)"),
        (changed(QWEN3, hidden_act="gelu"), "hidden_act: only 'silu' is supported, got 'gelu'"),
        (changed(QWEN3, flavour="qwen4"), "flavour: expected one of"),
        ({"model_type": "llama"}, "cannot tell the flavour"),
        (changed(V4, swiglu_limit=-1.0), "swiglu_limit: expected a number >= 0, got -1.0"),
        (changed(V4, routed_scaling_factor=0.0), "routed_scaling_factor: expected a number > 0"),
        (changed(V4, hc_eps=-1e-6), "hc_eps: expected a number >= 0"),
        (
            changed(V41["text_config"], flavour="deepseek_v41", hidden_size=71, expert_dtype="fp4"),
            "hidden_size: expected an even number for mxfp4",
        ),
        (changed(V4, expert_format="int8"), "expert_format: expected one of .* got 'int8'"),
        (
            changed(V4, dense_format="fp8_e4m3", weight_block_size=[128]),
            r"weight_block_size: expected \(rows, columns\), got \(128,\)",
        ),
        (changed(GEMMA4, final_logit_softcapping=0.0), "final_logit_softcapping: expected a"),
        (changed(QWEN3, partial_rotary_factor=1.5), r"partial_rotary_factor: .* got 1\.5"),
        (changed(QWEN3, rope_scaling={"type": "yarn"}), "rope_type: expected .* got 'yarn'"),
        (changed(QWEN3, use_sliding_window=True), "use_sliding_window: only False is supported"),
        (changed(QWEN3, layer_types=["sliding_attention"]), "layer_types: only 'full_attention'"),
        (changed(QWEN3, rope_parameters="yarn"), "rope_parameters: expected an object, got 'yarn'"),
        (changed(V4, rope_parameters={"main": 3}), "main: expected an object, got 3"),
        (changed(V4, quantization_config="fp8"), "quantization_config: expected an object"),
        (changed(V4, text_config=[1]), r"text_config: expected an object, got \[1\]"),
        (changed(QWEN3, model_type="x", architectures=7), r"from model_type .* \['x', '7'\]"),
        (
            changed(SPECULATORS, aux_hidden_state_layer_ids=...),
            "aux_hidden_state_layer_ids: expected integers, got None",
        ),
        ([], r"expected an object, got \[\]"),
    ],
)
def test_contradictions_are_named(values, words):
    with pytest.raises(ConfigError, match=words):
        read_config(values)


def test_a_layer_may_be_the_embedding_in_deepspec_only():
    assert read_config(changed(QWEN3, target_layer_ids=[-1, 3])).target_layer_ids == (-1, 3)
    with pytest.raises(ConfigError, match="layer -1 is outside"):
        read_config(changed(V4, dspark_target_layer_ids=[-1, 3]))


def test_a_head_of_another_abstract_kind_cannot_be_made():
    config = read_config(QWEN3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.hidden_size = 3


@pytest.mark.parametrize("name", ["deepseek_v41", "deepseek_v4", "qwen3", "gemma4"])
def test_a_head_of_released_size_needs_no_memory_on_meta(name):
    config = read_config(FILES[name])
    head = make_draft_head(config, device="meta")
    assert all(value.device.type == "meta" for value in head.state_dict().values())
    assert head.dtype == torch.bfloat16
