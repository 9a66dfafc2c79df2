"""Sizes of draft heads, under the names that their checkpoints' config.json use.

Two families: `DeepSeekDraftConfig` (flavours deepseek_v41 and deepseek_v4, stages `mtp.{i}` inside
a DeepSeek checkpoint) and `DenseDraftConfig` (flavours qwen3 and gemma4, DeepSpec's drafts).
`read_config` tells them apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .quantized import FORMATS

DEEPSEEK_FLAVOURS = ("deepseek_v41", "deepseek_v4")
DENSE_FLAVOURS = ("qwen3", "gemma4")
FLAVOURS = DEEPSEEK_FLAVOURS + DENSE_FLAVOURS
MARKOV_HEADS = ("vanilla", "gated", "rnn")


class ConfigError(ValueError):
    """A config that is incomplete or contradicts itself; the message lists every finding."""


@dataclass(frozen=True, kw_only=True)
class DraftHeadConfig:
    """What every flavour has.

    flavour             one of FLAVOURS
    hidden_size         d, the target's
    vocab_size          V, the target's
    rms_norm_eps        of every norm
    rope_theta          base of the rotary embedding
    sample_from_anchor  True: the K inputs are [x_0, mask x (K-1)] and row k-1 proposes x_k; False:
                        1+K inputs, and the mask at the position of x_k proposes it (DFlash and
                        speculators-format checkpoints)

    Uniform names, whatever the checkpoint calls it: num_layers, block_rows (inputs of a block),
    mask_token, feature_layers (target layers) and features_from ("inputs" or "outputs" of these),
    markov_rank, markov_head_type, window (context positions before a block, None = all) and
    draft_vocab_size.
    """

    flavour: str
    hidden_size: int
    vocab_size: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    sample_from_anchor: bool = True

    _positive = ()  # numbers above 0, besides those that every flavour has

    @property
    def num_features(self) -> int:
        """F: entries of one row of features, the concatenation over `feature_layers`."""
        return len(self.feature_layers) * self.hidden_size

    @property
    def trained_drafts(self) -> int:
        """K of the checkpoint: rows of its block that propose a token."""
        return self.block_rows if self.sample_from_anchor else self.block_rows - 1

    def to_dict(self) -> dict[str, Any]:
        """A config.json that `read_config` reads back."""
        return {name: _plain(value) for name, value in dataclasses.asdict(self).items()}

    def _check(self, findings: list[str]) -> None:
        for name, least in self._least().items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                findings.append(f"{name}: expected an integer >= {least}, got {value!r}")
        for name in ("rms_norm_eps", "rope_theta", *self._positive):
            if not getattr(self, name) > 0:
                findings.append(f"{name}: expected a number > 0, got {getattr(self, name)!r}")

    def __post_init__(self) -> None:
        findings: list[str] = []
        self._check(findings)
        if not findings:
            self._check_together(findings)
        if findings:
            raise ConfigError(f"draft head config ({self.flavour}): " + "; ".join(findings))


@dataclass(frozen=True, kw_only=True)
class DeepSeekDraftConfig(DraftHeadConfig):
    """Stages `mtp.0 .. mtp.{n-1}` of a DeepSeek checkpoint, under DeepSeek's names.

    num_hidden_layers       layers of the target, or None if unknown
    head_dim                of the one key/value head, used as key and as value; its last
                            `qk_rope_head_dim` entries are rotated
    o_groups, o_lora_rank   the output projection: `o_groups` products to `o_lora_rank`, then one
    sliding_window          context positions before the block that its rows see
    hc_mult                 copies of the residual stream
    swiglu_limit            gates are clamped to at most, ups to within this; 0 = not
    dense_format            of the projections: bf16, fp16, fp32, fp8_e4m3; expert_format also mxfp4
    weight_block_size       block of one fp8 scale, (rows, columns)
    """

    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    moe_intermediate_size: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_noise_token_id: int
    dspark_block_size: int = 5
    dspark_markov_rank: int = 256
    num_nextn_predict_layers: int = 3
    num_hidden_layers: int | None = None
    sliding_window: int = 128
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    dense_format: str = "bf16"
    expert_format: str = "bf16"
    weight_block_size: tuple[int, int] | None = None

    @property
    def features_from(self) -> str:
        return "inputs" if self.flavour == "deepseek_v41" else "outputs"

    num_layers = property(lambda self: self.num_nextn_predict_layers)
    block_rows = property(lambda self: self.dspark_block_size)
    mask_token = property(lambda self: self.dspark_noise_token_id)
    feature_layers = property(lambda self: self.dspark_target_layer_ids)
    markov_rank = property(lambda self: self.dspark_markov_rank)
    window = property(lambda self: self.sliding_window)
    draft_vocab_size = property(lambda self: self.vocab_size)
    markov_head_type = "vanilla"
    _positive = ("routed_scaling_factor",)

    def _least(self) -> dict[str, int]:
        ones = (
            "hidden_size", "vocab_size", "num_attention_heads", "head_dim", "q_lora_rank",
            "o_lora_rank", "o_groups", "moe_intermediate_size", "dspark_n_routed_experts",
            "dspark_num_experts_per_tok", "dspark_block_size", "dspark_markov_rank",
            "num_nextn_predict_layers", "sliding_window", "hc_mult", "hc_sinkhorn_iters",
        )  # fmt: skip
        return {**dict.fromkeys(ones, 1), "qk_rope_head_dim": 0, "dspark_noise_token_id": 0}

    def _check_together(self, findings: list[str]) -> None:
        if self.flavour not in DEEPSEEK_FLAVOURS:
            findings.append(f"flavour: expected one of {DEEPSEEK_FLAVOURS}, got {self.flavour!r}")
        if self.qk_rope_head_dim % 2 or self.qk_rope_head_dim > self.head_dim:
            findings.append(
                f"qk_rope_head_dim {self.qk_rope_head_dim}: expected an even number of at most "
                f"head_dim {self.head_dim}"
            )
        if self.num_attention_heads % self.o_groups:
            findings.append(
                f"num_attention_heads {self.num_attention_heads} is no multiple of o_groups "
                f"{self.o_groups}"
            )
        if self.dspark_num_experts_per_tok > self.dspark_n_routed_experts:
            findings.append(
                f"dspark_num_experts_per_tok {self.dspark_num_experts_per_tok} exceeds "
                f"dspark_n_routed_experts {self.dspark_n_routed_experts}"
            )
        _check_shared(self, "dspark_target_layer_ids", "dspark_noise_token_id", findings)
        _check_layers(
            self.dspark_target_layer_ids,
            "dspark_target_layer_ids",
            self.num_hidden_layers,
            findings,
        )
        for name in ("swiglu_limit", "hc_eps"):
            if not getattr(self, name) >= 0:
                findings.append(f"{name}: expected a number >= 0, got {getattr(self, name)!r}")
        for name in ("dense_format", "expert_format"):
            if getattr(self, name) not in FORMATS:
                findings.append(f"{name}: expected one of {FORMATS}, got {getattr(self, name)!r}")
        if self.expert_format == "mxfp4":
            for name in ("hidden_size", "moe_intermediate_size"):
                if getattr(self, name) % 2:
                    findings.append(f"{name}: expected an even number for mxfp4")
        block = self.weight_block_size
        if block and (len(block) != 2 or min(block) < 1):
            findings.append(f"weight_block_size: expected (rows, columns), got {block}")
        if self.dense_format == "mxfp4":
            findings.append("dense_format: mxfp4 is for experts only")
        if "fp8_e4m3" in (self.dense_format, self.expert_format) and not self.weight_block_size:
            findings.append("weight_block_size: needed by the format fp8_e4m3")


def check_attention_heads(config, findings: list[str]) -> None:
    """Of heads that rotate halves and share keys and values in groups."""
    if config.num_attention_heads % config.num_key_value_heads:
        findings.append(
            f"num_attention_heads {config.num_attention_heads} is no multiple of "
            f"num_key_value_heads {config.num_key_value_heads}"
        )
    if config.head_dim % 2:
        findings.append(f"head_dim: expected an even number, got {config.head_dim}")


@dataclass(frozen=True, kw_only=True)
class DenseDraftConfig(DraftHeadConfig):
    """DeepSpec's drafts for Qwen3 and Gemma4 targets, under DeepSpec's names.

    num_hidden_layers            draft layers
    num_target_layers            layers of the target, or None if unknown
    head_dim                     (Gemma4: its global_head_dim)
    num_key_value_heads          (Gemma4 with attention_k_eq_v: its num_global_key_value_heads)
    target_layer_ids             target layers whose outputs are the features; -1 = the embedding
    block_size                   inputs of a block
    markov_rank                  0 = no Markov head
    partial_rotary_factor        share of the head that is rotated (Gemma4's proportional RoPE)
    attention_k_eq_v             values are the keys' projection; there is no v_proj
    final_logit_softcapping      base logits are cap * tanh(logits / cap); None = not
    draft_vocab_size             V_draft; smaller than vocab_size with a `d2t` table
    tie_word_embeddings          the embedding is the output matrix, too, in a checkpoint that has
                                 an embedding and no output matrix
    """

    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    block_size: int = 7
    draft_vocab_size: int | None = None
    markov_rank: int = 256
    markov_head_type: str = "vanilla"
    enable_confidence_head: bool = True
    confidence_head_with_markov: bool = True
    num_target_layers: int | None = None
    partial_rotary_factor: float = 1.0
    attention_k_eq_v: bool = False
    final_logit_softcapping: float | None = None
    tie_word_embeddings: bool = False

    features_from = "outputs"
    num_layers = property(lambda self: self.num_hidden_layers)
    block_rows = property(lambda self: self.block_size)
    mask_token = property(lambda self: self.mask_token_id)
    feature_layers = property(lambda self: self.target_layer_ids)
    window = None

    def __post_init__(self) -> None:
        if self.draft_vocab_size is None:
            object.__setattr__(self, "draft_vocab_size", self.vocab_size)
        super().__post_init__()

    def _least(self) -> dict[str, int]:
        ones = (
            "hidden_size", "vocab_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "block_size",
            "draft_vocab_size",
        )  # fmt: skip
        return {**dict.fromkeys(ones, 1), "markov_rank": 0, "mask_token_id": 0}

    def _check_together(self, findings: list[str]) -> None:
        if self.flavour not in DENSE_FLAVOURS:
            findings.append(f"flavour: expected one of {DENSE_FLAVOURS}, got {self.flavour!r}")
        check_attention_heads(self, findings)
        if self.draft_vocab_size > self.vocab_size:
            findings.append(
                f"draft_vocab_size {self.draft_vocab_size} exceeds vocab_size {self.vocab_size}"
            )
        if self.markov_head_type not in MARKOV_HEADS:
            findings.append(
                f"markov_head_type: expected one of {MARKOV_HEADS}, got {self.markov_head_type!r}"
            )
        if (
            self.enable_confidence_head
            and self.confidence_head_with_markov
            and not self.markov_rank
        ):
            findings.append("confidence_head_with_markov needs a markov_rank above 0")
        if not 0 <= self.partial_rotary_factor <= 1:
            findings.append(
                f"partial_rotary_factor: expected a share in [0, 1], got "
                f"{self.partial_rotary_factor!r}"
            )
        if self.final_logit_softcapping is not None and not self.final_logit_softcapping > 0:
            findings.append(
                f"final_logit_softcapping: expected a number > 0 or none, got "
                f"{self.final_logit_softcapping!r}"
            )
        if self.attention_k_eq_v and self.flavour != "gemma4":
            findings.append("attention_k_eq_v belongs to gemma4")
        if not self.sample_from_anchor and self.block_size < 2:
            findings.append("block_size: expected at least 2 without sample_from_anchor, got 1")
        _check_shared(self, "target_layer_ids", "mask_token_id", findings)
        _check_layers(self.target_layer_ids, "target_layer_ids", self.num_target_layers, findings)


def _check_shared(config, layers: str, mask: str, findings: list[str]) -> None:
    if not getattr(config, layers):
        findings.append(f"{layers}: expected at least one target layer")
    if getattr(config, mask) >= config.vocab_size:
        findings.append(f"{mask} {getattr(config, mask)} is no id below {config.vocab_size}")


def _check_layers(layers, name: str, count: int | None, findings: list[str]) -> None:
    if len(set(layers)) != len(layers):
        findings.append(f"{name}: {list(layers)} names a layer twice")
    low = 0 if name.startswith("dspark") else -1
    for layer in layers:
        if layer < low or (count is not None and layer >= count):
            findings.append(f"{name}: layer {layer} is outside [{low}, {count})")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def read_config(values: Mapping[str, Any], flavour: str | None = None) -> DraftHeadConfig:
    """A config from a config.json: DeepSeek's, DeepSpec's, or a speculators-format one.

    values   the parsed file; keys that do not concern the draft are ignored
    flavour  instead of recognising it by `flavour`, `model_type` or `architectures`

    Raises ConfigError naming every missing key and every contradiction.
    """
    from . import config_files

    return config_files.read(values, flavour)
