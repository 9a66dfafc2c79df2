"""The compact DSpark draft head: grouped-query attention and a small mixture of experts, for a CPU.

One round for a batch: ``combine`` and ``context_kv`` turn the features of newly verified tokens
into the keys and values of every stage; ``backbone`` reads the block ``[anchor, noise x (K-1)]``
and returns one hidden row per drafted position; ``base_logits``, the Markov factors and the
confidence weight are what ``dspark_ext.draft`` samples from. Row ``k`` predicts the token at
``anchor_position + k + 1``.

Attention is grouped-query as in DeepSpec's Qwen3 drafters (not DeepSeek-V4's latent attention), its
window the ``sliding_window`` positions before the anchor plus the whole block. The stages are MoE
with DeepSeek-V4's routing. Embedding and output matrix are the target's, bound and never stored.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import compact_files
from .config import ConfigError, check_attention_heads
from .config_files import fits_type

FORMAT = compact_files.FORMAT

# attend(stage, q [B,K,Hq,D], k_block [B,K,Hkv,D], v_block [B,K,Hkv,D]) -> [B,K,Hq,D], scale D**-0.5
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass
class CompactDraftHeadConfig:
    """Sizes of a draft head, under DeepSeek-V4's names where it has one."""

    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    moe_intermediate_size: int
    shared_intermediate_size: int
    dspark_target_layer_ids: list[int]
    num_nextn_predict_layers: int = 2
    dspark_block_size: int = 5
    dspark_markov_rank: int = 64
    dspark_n_routed_experts: int = 8
    dspark_num_experts_per_tok: int = 2
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    sliding_window: int = 128
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        """Raises ConfigError listing every finding."""
        findings = []
        for field in dataclasses.fields(self):
            value, low = getattr(self, field.name), 1 if field.type == "int" else 0
            if field.type == "list[int]":
                fits = isinstance(value, list) and all(fits_type(item, "int") for item in value)
                fits = fits and len(set(value)) == len(value) > 0 and min(value) >= 0
                expected = "different layers"
            else:
                fits = fits_type(value, field.type) and (value >= low and value > 0)
                expected = "an integer >= 1" if low else "a number > 0"
            if not fits:
                findings.append(f"{field.name}: expected {expected}, got {value!r}")
        if findings:
            raise ConfigError("draft head config (compact): " + "; ".join(findings))
        for name, most in (
            ("draft_vocab_size", self.vocab_size),
            ("dspark_num_experts_per_tok", self.dspark_n_routed_experts),
        ):
            if getattr(self, name) > most:
                findings.append(f"{name}: expected at most {most}, got {getattr(self, name)}")
        check_attention_heads(self, findings)
        if findings:
            raise ConfigError("draft head config (compact): " + "; ".join(findings))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CompactDraftHeadConfig:
        """Raises ConfigError for keys that are missing or unknown, and values that do not fit."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"draft head config (compact): {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"draft head config (compact): expected an object, got {text:.60}")
        fields = dataclasses.fields(cls)
        needed = {field.name for field in fields if field.default is dataclasses.MISSING}
        findings = [f"missing {name}" for name in sorted(needed - values.keys())]
        unknown = sorted(values.keys() - {field.name for field in fields})
        findings += [f"unknown {name}" for name in unknown]
        if findings:
            raise ConfigError("draft head config (compact): " + "; ".join(findings))
        return cls(**values)


class RMSNorm(nn.Module):
    """Normalises in float32 and answers in the dtype of its input, or in ``dtype`` if given."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(
            dtype or x.dtype
        )


class DraftAttention(nn.Module):
    """Projections of one stage; the attention itself belongs to whoever owns the cache."""

    def __init__(self, config: CompactDraftHeadConfig):
        super().__init__()
        self.head_dim = config.head_dim
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(config.hidden_size, self.num_heads * self.head_dim, bias=False)
        self.kv_proj = nn.Linear(
            config.hidden_size, 2 * self.num_kv_heads * self.head_dim, bias=False
        )
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def queries(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.num_heads, self.head_dim))
        return rotate(self.q_norm(q), rotary)

    def keys_values(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        kv = self.kv_proj(x).unflatten(-1, (2 * self.num_kv_heads, self.head_dim))
        k, v = kv.split(self.num_kv_heads, -2)
        return rotate(self.k_norm(k), rotary), v


class DraftMoE(nn.Module):
    """Top-k routed experts plus a shared one, as one dense network with masked activations.

    The experts are so small, and the rows so few, that two GEMMs over all of them beat any
    grouping. Rows of ``w13``: gates of experts 0..E-1 and of the shared expert, then their ups.
    Columns of ``w2`` follow the same order. A row's unselected experts are multiplied by an exact
    zero.
    """

    def __init__(self, config: CompactDraftHeadConfig):
        super().__init__()
        self.num_experts, self.top_k = (
            config.dspark_n_routed_experts,
            config.dspark_num_experts_per_tok,
        )
        self.expert_size, self.shared_size = (
            config.moe_intermediate_size,
            config.shared_intermediate_size,
        )
        self.scaling, self.limit = config.routed_scaling_factor, config.swiglu_limit
        width = self.num_experts * self.expert_size + self.shared_size
        self.gate_weight = nn.Parameter(torch.empty(self.num_experts, config.hidden_size))
        self.register_buffer("gate_bias", torch.zeros(self.num_experts))
        self.w13 = nn.Linear(config.hidden_size, 2 * width, bias=False)
        self.w2 = nn.Linear(width, config.hidden_size, bias=False)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(expert ids, weights), both [..., top_k]: sqrt-softplus scores, bias only to choose."""
        scores = F.softplus(F.linear(x.float(), self.gate_weight.float())).sqrt()
        ids = (scores + self.gate_bias).topk(self.top_k, -1).indices
        weights = scores.gather(-1, ids)
        return ids, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.scaling

    def forward(self, x: Tensor) -> Tensor:
        ids, weights = self.route(x)
        mixture = torch.zeros(*x.shape[:-1], self.num_experts, dtype=weights.dtype, device=x.device)
        mixture = mixture.scatter(-1, ids, weights)
        gate, up = self.w13(x).chunk(2, -1)
        a = F.silu(gate.clamp(max=self.limit)) * up.clamp(-self.limit, self.limit)
        routed, shared = a.split([self.num_experts * self.expert_size, self.shared_size], -1)
        routed = routed.unflatten(-1, (self.num_experts, self.expert_size)) * mixture[..., None].to(
            a.dtype
        )
        return self.w2(torch.cat([routed.flatten(-2), shared], -1))


class DraftStage(nn.Module):
    def __init__(self, config: CompactDraftHeadConfig):
        super().__init__()
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = DraftAttention(config)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn = DraftMoE(config)


class CompactDraftHead(nn.Module):
    """See the module's docstring. ``bind_target`` must be called before ``backbone``."""

    def __init__(self, config: CompactDraftHeadConfig, dtype: torch.dtype = torch.float32):
        super().__init__()
        c = self.config = config
        taps = len(c.dspark_target_layer_ids)
        self.main_proj = nn.Linear(taps * c.hidden_size, c.hidden_size, bias=False)
        self.main_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.noise_embed = nn.Parameter(torch.empty(c.hidden_size))
        self.stages = nn.ModuleList(DraftStage(c) for _ in range(c.num_nextn_predict_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        # One row per draft token, and a last one for all tokens outside the draft vocabulary.
        self.markov_w1 = nn.Parameter(torch.empty(c.draft_vocab_size + 1, c.dspark_markov_rank))
        self.markov_w2 = nn.Parameter(torch.empty(c.draft_vocab_size, c.dspark_markov_rank))
        self.confidence_weight = nn.Parameter(torch.empty(c.hidden_size + c.dspark_markov_rank))
        self.confidence_bias = nn.Parameter(torch.zeros(()))
        self.register_buffer("d2t", torch.zeros(c.draft_vocab_size, dtype=torch.int64))
        self.embed_weight: Tensor | None = None
        self.lm_head: nn.Module | None = None
        self.reset_parameters()
        for linear in self.linears():
            linear.to(dtype)

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of the linear layers; norms, routing and residual stream are computed in float32."""
        return self.main_proj.weight.dtype

    def reset_parameters(self) -> None:
        c = self.config
        for linear in self.linears():
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        for stage in self.stages:
            for linear in (stage.attn.o_proj, stage.ffn.w2):
                nn.init.normal_(
                    linear.weight, std=linear.in_features**-0.5 / math.sqrt(2 * len(self.stages))
                )
            nn.init.normal_(stage.ffn.gate_weight, std=c.hidden_size**-0.5)
        nn.init.normal_(self.noise_embed, std=0.02)
        nn.init.normal_(self.markov_w1, std=c.dspark_markov_rank**-0.5)
        nn.init.zeros_(self.markov_w2)
        nn.init.zeros_(self.confidence_weight)

    def linears(self):
        """The layers kept in ``compute_dtype``, in a fixed order."""
        yield self.main_proj
        for stage in self.stages:
            yield from (
                stage.attn.q_proj,
                stage.attn.kv_proj,
                stage.attn.o_proj,
                stage.ffn.w13,
                stage.ffn.w2,
            )

    def bind_target(self, embed_weight: Tensor, lm_head_weight: Tensor) -> None:
        """Share the target's embedding, and the rows of its output matrix that can be drafted."""
        c = self.config
        for name, weight in (("embed_weight", embed_weight), ("lm_head_weight", lm_head_weight)):
            if tuple(weight.shape) != (c.vocab_size, c.hidden_size):
                expected = [c.vocab_size, c.hidden_size]
                raise ValueError(
                    f"bind_target: {name} has shape {list(weight.shape)}, expected {expected}"
                )
        self.embed_weight = embed_weight.detach()
        self.lm_head = nn.Linear(c.hidden_size, c.draft_vocab_size, bias=False, device="meta")
        rows = lm_head_weight.detach()[self.draft_token_ids].to(self.compute_dtype)
        self.lm_head.weight = nn.Parameter(rows, requires_grad=False)

    @property
    def draft_token_ids(self) -> Tensor:
        """[V_draft] target id of every draft id."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def combine(self, features: Tensor) -> Tensor:
        """Features [T, taps*d] of verified tokens -> context rows [T, d]."""
        return self.main_norm(self.main_proj(features.to(self.compute_dtype)))

    def context_kv(self, context: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Per stage: keys (rotated) and values, each [T, Hkv, D], of context rows [T, d]."""
        rotary = self.rotary(positions)
        return [stage.attn.keys_values(context, rotary) for stage in self.stages]

    def backbone(self, anchor: Tensor, anchor_positions: Tensor, attend: Attend) -> Tensor:
        """Anchors [B] -> normed hidden rows [B, K, d] in ``compute_dtype``."""
        block_size, dtype = self.config.dspark_block_size, self.compute_dtype
        first = self.embed_weight[anchor].float()[:, None]
        x = torch.cat([first, self.noise_embed.float().expand(len(anchor), block_size - 1, -1)], 1)
        positions = anchor_positions[:, None] + torch.arange(block_size, device=anchor.device)
        rotary = self.rotary(positions)
        for index, stage in enumerate(self.stages):
            n = stage.attn_norm(x, dtype)
            q = stage.attn.queries(n, rotary)
            k, v = stage.attn.keys_values(n, rotary)
            x = x + stage.attn.o_proj(attend(index, q, k, v).flatten(-2))
            x = x + stage.ffn(stage.ffn_norm(x, dtype))
        return self.norm(x, dtype)

    def base_logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)

    def markov_rows(self, token_ids: Tensor) -> Tensor:
        """Row of ``markov_w1`` for every target token id."""
        to_draft = torch.full((self.config.vocab_size,), len(self.d2t), device=self.d2t.device)
        to_draft[self.draft_token_ids] = torch.arange(len(self.d2t), device=self.d2t.device)
        return to_draft[token_ids]

    def markov_w1_full(self) -> Tensor:
        """[V, r], indexed by target token id."""
        return self.markov_w1[
            self.markov_rows(torch.arange(self.config.vocab_size, device=self.d2t.device))
        ]

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        half = self.config.head_dim // 2
        exponents = torch.arange(half, device=positions.device, dtype=torch.float32) / half
        angles = positions[..., None].float() * self.config.rope_theta**-exponents
        return angles.cos()[..., None, :], angles.sin()[..., None, :]

    # Files

    def save(self, path: str | Path, metadata: dict[str, str] | None = None) -> None:
        """Matrices as fp8 e4m3 with one float32 scale per row, everything else as float32. The
        file is written whole or not at all."""
        compact_files.save(self, Path(path), metadata)

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32) -> CompactDraftHead:
        """What `save` wrote. Strict: all that does not fit is one CheckpointError or, in the
        config, one ConfigError."""
        return compact_files.load(Path(path), dtype)

    def named_tensors(self) -> dict[str, Tensor]:
        """File name -> view of the parameter, in the layout of DeepSeek-V4's ``mtp.*`` tensors."""
        names: dict[str, Tensor] = {
            "d2t": self.d2t,
            "mtp.0.main_proj.weight": self.main_proj.weight,
            "mtp.0.main_norm.weight": self.main_norm.weight,
            "mtp.0.noise_embed.weight": self.noise_embed,
        }
        for index, stage in enumerate(self.stages):
            prefix = f"mtp.{index}"
            attn, ffn = stage.attn, stage.ffn
            key_rows = attn.num_kv_heads * attn.head_dim
            names |= {
                f"{prefix}.attn_norm.weight": stage.attn_norm.weight,
                f"{prefix}.attn.q_proj.weight": attn.q_proj.weight,
                f"{prefix}.attn.k_proj.weight": attn.kv_proj.weight[:key_rows],
                f"{prefix}.attn.v_proj.weight": attn.kv_proj.weight[key_rows:],
                f"{prefix}.attn.o_proj.weight": attn.o_proj.weight,
                f"{prefix}.attn.q_norm.weight": attn.q_norm.weight,
                f"{prefix}.attn.k_norm.weight": attn.k_norm.weight,
                f"{prefix}.ffn_norm.weight": stage.ffn_norm.weight,
                f"{prefix}.ffn.gate.weight": ffn.gate_weight,
                f"{prefix}.ffn.gate.bias": ffn.gate_bias,
            }
            gates, ups = ffn.w13.weight.chunk(2)
            for expert in range(ffn.num_experts + 1):
                routed = expert < ffn.num_experts
                start = expert * ffn.expert_size
                span = slice(start, start + (ffn.expert_size if routed else ffn.shared_size))
                part = f"{prefix}.ffn." + (f"experts.{expert}" if routed else "shared_experts")
                names |= {
                    f"{part}.w1.weight": gates[span],
                    f"{part}.w3.weight": ups[span],
                    f"{part}.w2.weight": ffn.w2.weight[:, span],
                }
        last = f"mtp.{len(self.stages) - 1}"
        return names | {
            f"{last}.norm.weight": self.norm.weight,
            f"{last}.markov_head.markov_w1.weight": self.markov_w1,
            f"{last}.markov_head.markov_w2.weight": self.markov_w2,
            f"{last}.confidence_head.proj.weight": self.confidence_weight,
            f"{last}.confidence_head.proj.bias": self.confidence_bias,
        }


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of [..., H, D], halves convention."""
    cos, sin = rotary
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
