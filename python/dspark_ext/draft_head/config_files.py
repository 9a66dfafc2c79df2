"""config.json files of DeepSeek, DeepSpec and the speculators format, as draft head configs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from .config import (
    DEEPSEEK_FLAVOURS,
    FLAVOURS,
    ConfigError,
    DeepSeekDraftConfig,
    DenseDraftConfig,
    DraftHeadConfig,
)

# Other names of a key, in the order of preference; two that disagree are a contradiction.
_DEEPSEEK_ALIASES = {
    "dspark_num_experts_per_tok": ("dspark_n_activated_experts",),
}
# Where the draft's own key is absent, the target's applies.
_DEEPSEEK_TARGET_KEYS = {
    "dspark_n_routed_experts": "n_routed_experts",
    "dspark_num_experts_per_tok": "num_experts_per_tok",
}
_DEEPSEEK_FIXED = {
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "hidden_act": "silu",
}
_DENSE_ALIASES = {
    "block_size": ("dspark_block_size",),
    "mask_token_id": ("dspark_noise_token_id",),
    "target_layer_ids": ("dspark_target_layer_ids",),
    "markov_rank": ("dspark_markov_rank",),
}
_DENSE_FIXED = {
    "attention_bias": False,
    "enable_moe_block": False,
    "hidden_size_per_layer_input": 0,
}
_ACTIVATION = {
    "qwen3": ("hidden_act", "silu"),
    "gemma4": ("hidden_activation", "gelu_pytorch_tanh"),
}


def read(values: Mapping[str, Any], flavour: str | None) -> DraftHeadConfig:
    """See `config.read_config`."""
    values = flatten(values)
    flavour = flavour or recognise(values)
    if flavour not in FLAVOURS:
        raise ConfigError(
            f"draft head config: flavour: expected one of {FLAVOURS}, got {flavour!r}"
        )
    reader = _read_deepseek if flavour in DEEPSEEK_FLAVOURS else _read_dense
    return reader(values, flavour)


def recognise(values: Mapping[str, Any]) -> str:
    """The flavour of a config.json."""
    if "flavour" in values:
        flavour = values["flavour"]
        if not isinstance(flavour, str):
            raise ConfigError(f"draft head config: flavour: expected a string, got {flavour!r}")
        return flavour
    architectures = values.get("architectures") or ()
    if not isinstance(architectures, list | tuple):
        architectures = [architectures]
    names = [str(values.get("model_type", "")), *map(str, architectures)]
    words = [name.lower().replace(".", "").replace("_", "") for name in names]
    for key, flavour in (
        ("deepseekv41", "deepseek_v41"),
        ("deepseekv4", "deepseek_v4"),
        ("qwen3", "qwen3"),
        ("gemma4", "gemma4"),
    ):
        if any(key in word for word in words):
            return flavour
    raise ConfigError(
        f"draft head config: cannot tell the flavour from model_type and architectures {names}; "
        f"name one of {FLAVOURS}"
    )


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """One level: text_config, transformer_layer_config and dflash_config beneath the top level.

    Raises ConfigError where something else is in the place of an object."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"draft head config: expected an object, got {values!r:.60}")
    for part in (values, _object(values, "quantization_config")):
        block = part.get("weight_block_size")
        if block is not None and not (
            isinstance(block, list | tuple) and all(fits_type(size, "int") for size in block)
        ):
            raise ConfigError(
                f"draft head config: weight_block_size: expected [rows, columns], got {block!r:.60}"
            )
    flat: dict[str, Any] = {}
    for part in ("text_config", "transformer_layer_config", "dflash_config", "dspark_config"):
        flat |= _object(values, part)
    flat |= {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    for key in ("quantization_config", "rope_parameters", "rope_scaling"):
        if values.get(key) or flat.get(key):
            flat[key] = values.get(key) or flat[key]
    if "speculators_model_type" in values:
        # These count the embedding as layer 0 and name the model type of the target's layers.
        layers = values.get("aux_hidden_state_layer_ids")
        if not isinstance(layers, list) or not all(fits_type(layer, "int") for layer in layers):
            raise ConfigError(
                f"draft head config: aux_hidden_state_layer_ids: expected integers, got {layers!r}"
            )
        flat["target_layer_ids"] = [layer - 1 for layer in layers]
        flat["model_type"] = _object(values, "transformer_layer_config").get("model_type", "qwen3")
        flat.setdefault("sample_from_anchor", False)
        flat.setdefault("markov_rank", 0)
        flat.setdefault("enable_confidence_head", False)
    return flat


def _object(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What is under a key, {} if that is nothing."""
    value = values.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"draft head config: {key}: expected an object, got {value!r:.60}")
    return value or {}


def _read_deepseek(values: dict[str, Any], flavour: str) -> DeepSeekDraftConfig:
    findings: list[str] = []
    values = _merge_aliases(values, _DEEPSEEK_ALIASES, findings)
    for key, target_key in _DEEPSEEK_TARGET_KEYS.items():
        if values.get(key) is None and target_key in values:
            values[key] = values[target_key]
    _check_fixed(values, _DEEPSEEK_FIXED, findings)
    # transformers' form: the draft's layers have the unscaled embedding, "main".
    rope = _object(values, "rope_parameters")
    rope = _object(rope, "main") if "main" in rope else rope
    values["rope_theta"] = rope.get("rope_theta", values.get("rope_theta"))
    if "qk_rope_head_dim" not in values and "partial_rotary_factor" in rope:
        values["qk_rope_head_dim"] = round(
            rope["partial_rotary_factor"] * values.get("head_dim", 0)
        )
    quantization = _object(values, "quantization_config")
    if quantization.get("quant_method") == "fp8":
        values.setdefault("dense_format", "fp8_e4m3")
        values.setdefault("weight_block_size", quantization.get("weight_block_size"))
    dense = values.get("dense_format", "bf16")
    values.setdefault("expert_format", "mxfp4" if values.get("expert_dtype") == "fp4" else dense)
    return _build(DeepSeekDraftConfig, values, flavour, findings)


def _read_dense(values: dict[str, Any], flavour: str) -> DenseDraftConfig:
    findings: list[str] = []
    values = _merge_aliases(values, _DENSE_ALIASES, findings)
    _check_fixed(
        values, {**_DENSE_FIXED, _ACTIVATION[flavour][0]: _ACTIVATION[flavour][1]}, findings
    )
    if flavour == "qwen3":
        _check_fixed(values, {"use_sliding_window": False}, findings)
        if "sliding_attention" in (values.get("layer_types") or ()):
            findings.append("layer_types: only 'full_attention' is supported")
    rope = _object(values, "rope_parameters") or _object(values, "rope_scaling")
    rope = _object(rope, "full_attention") or rope
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "proportional"):
        findings.append(f"rope_type: expected 'default' or 'proportional', got {kind!r}")
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            values[key] = rope[key]
    if flavour == "gemma4" and values.get("tie_word_embeddings") is None:
        values["tie_word_embeddings"] = True  # Gemma's config leaves out what all its models have
    if flavour == "gemma4" and "global_head_dim" in values:
        values["head_dim"] = values["global_head_dim"]
        if values.get("attention_k_eq_v"):
            values["num_key_value_heads"] = values.get("num_global_key_value_heads")
    if values.get("head_dim") is None and values.get("num_attention_heads"):
        values["head_dim"] = values.get("hidden_size", 0) // values["num_attention_heads"]
    return _build(DenseDraftConfig, values, flavour, findings)


def _merge_aliases(values, aliases, findings: list[str]) -> dict[str, Any]:
    values = dict(values)
    for key, others in aliases.items():
        for other in others:
            if other not in values:
                continue
            if values.get(key) is None:
                values[key] = values[other]
            elif values[key] != values[other]:
                findings.append(f"{key} {values[key]!r} contradicts {other} {values[other]!r}")
    return values


def _check_fixed(values, fixed: Mapping[str, Any], findings: list[str]) -> None:
    for key, expected in fixed.items():
        if values.get(key, expected) not in (expected, None):
            findings.append(f"{key}: only {expected!r} is supported, got {values[key]!r}")


_MOST = 1 << 41  # no size is larger; the files are asked whether it is theirs


def fits_type(value, kind: str) -> bool:
    """Whether a value is what a field declares."""
    kind = kind.removesuffix(" | None")
    if kind.startswith("tuple"):
        return isinstance(value, tuple) and all(fits_type(item, "int") for item in value)
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "str":
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind == "int":
        return isinstance(value, int) and abs(value) <= _MOST
    return isinstance(value, int) and abs(value) <= _MOST or math.isfinite(value)


def _build(cls, values: Mapping[str, Any], flavour: str, findings: list[str]):
    known = {}
    for field in dataclasses.fields(cls):
        value = flavour if field.name == "flavour" else values.get(field.name)
        if value is not None:
            known[field.name] = tuple(value) if isinstance(value, list) else value
            if not fits_type(known[field.name], field.type):
                findings.append(f"{field.name}: expected {field.type}, got {value!r}")
        elif field.default is dataclasses.MISSING:
            findings.append(f"missing {field.name}")
    if not findings:
        return cls(**known)
    raise ConfigError(f"draft head config ({flavour}): " + "; ".join(findings))
