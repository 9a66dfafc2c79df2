"""DeepSpec's dense drafts for Qwen3 and Gemma4 targets.

Names are those of the published checkpoints. A layer sees all context positions before the block
and the block. Source: DeepSpec modeling/dspark; DSpark paper section 3.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import DSparkDraftHead
from .config import DenseDraftConfig
from .context import BlockView
from .heads import ConfidenceHead, MarkovHead, NoMarkovHead
from .layers import RMSNorm, Rotary, attend, rotate_halves


class DenseAttention(nn.Module):
    """Grouped-query attention with norms per head. Context keys and values come from the combined
    features, those of the block from the layer's own normed rows."""

    def __init__(self, config: DenseDraftConfig, device=None, dtype=None) -> None:
        super().__init__()
        c, place = config, {"bias": False, "device": device, "dtype": dtype}
        gemma = c.flavour == "gemma4"
        self.head_dim = c.head_dim
        self.scale = 1.0 if gemma else c.head_dim**-0.5
        pairs = int(c.partial_rotary_factor * c.head_dim // 2)
        self.rotary = Rotary(c.head_dim, c.rope_theta, pairs)
        queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, queries, **place)
        self.k_proj = nn.Linear(c.hidden_size, keys, **place)
        self.v_proj = None if c.attention_k_eq_v else nn.Linear(c.hidden_size, keys, **place)
        self.o_proj = nn.Linear(queries, c.hidden_size, **place)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps, device)
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps, device)
        self.v_norm = RMSNorm(None, c.rms_norm_eps) if gemma else nn.Identity()

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[..., G, D] each, of rows [..., d] at `positions` [...]."""
        key = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        value = key if self.v_proj is None else self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        return rotate_halves(self.k_norm(key), *self.rotary(positions)), self.v_norm(value)

    def forward(self, x: Tensor, positions: Tensor, view: BlockView, layer: int) -> Tensor:
        query = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim)))
        query = rotate_halves(query, *self.rotary(positions))
        key, value = self.keys_values(x, positions)
        key, value = view.joined("k", layer, key), view.joined("v", layer, value)
        mixed = attend(query, key, value, view.visible(x.shape[1]), self.scale)
        return self.o_proj(mixed.flatten(-2))


class DenseMLP(nn.Module):
    """down (act(gate x) * up x)."""

    def __init__(self, config: DenseDraftConfig, activation, device=None, dtype=None) -> None:
        super().__init__()
        place = {"bias": False, "device": device, "dtype": dtype}
        size, inner = config.hidden_size, config.intermediate_size
        self.activation = activation
        self.gate_proj = nn.Linear(size, inner, **place)
        self.up_proj = nn.Linear(size, inner, **place)
        self.down_proj = nn.Linear(inner, size, **place)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class Qwen3Layer(nn.Module):
    """Norm, attention, add; norm, MLP, add."""

    norms = ("input_layernorm", "post_attention_layernorm")

    def __init__(self, config: DenseDraftConfig, device=None, dtype=None) -> None:
        super().__init__()
        self.self_attn = DenseAttention(config, device, dtype)
        self.mlp = DenseMLP(config, self.activation, device, dtype)
        for name in self.norms:
            self.add_module(name, RMSNorm(config.hidden_size, config.rms_norm_eps, device))

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        return F.silu(x)

    def forward(self, x: Tensor, positions: Tensor, view: BlockView, layer: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, view, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Gemma4Layer(Qwen3Layer):
    """Norms on both sides of attention and MLP; the layer's output is scaled."""

    norms = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

    def __init__(self, config: DenseDraftConfig, device=None, dtype=None) -> None:
        super().__init__(config, device, dtype)
        self.register_buffer("layer_scalar", torch.ones(1, device=device, dtype=dtype))

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def forward(self, x: Tensor, positions: Tensor, view: BlockView, layer: int) -> Tensor:
        mixed = self.self_attn(self.input_layernorm(x), positions, view, layer)
        x = x + self.post_attention_layernorm(mixed)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x * self.layer_scalar


class DenseDraftHead(DSparkDraftHead):
    """What the dense flavours share. The checkpoint may bring its own copy of the target's
    embedding and output matrix; `bind_target` puts the target's in their place."""

    layer_type: type[nn.Module] = Qwen3Layer
    optional_names = ("embed_tokens.weight", "lm_head.weight")

    def __init__(
        self, config: DenseDraftConfig, *, dtype: torch.dtype = torch.bfloat16, device=None
    ) -> None:
        super().__init__(config, dtype=dtype, device=device)
        c, place = config, {"device": device, "dtype": dtype}
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size, **place)
        self.layers = nn.ModuleList(self.layer_type(c, device, dtype) for _ in range(c.num_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device)
        self.fc = nn.Linear(c.num_features, c.hidden_size, bias=False, **place)
        self.hidden_norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device)
        self.lm_head = nn.Linear(c.hidden_size, c.draft_vocab_size, bias=False, **place)
        self.markov_head = (MarkovHead if c.markov_rank else NoMarkovHead)(c, **place)
        self.confidence_head = None
        if c.enable_confidence_head:
            self.confidence_head = ConfidenceHead(
                c, markov=c.confidence_head_with_markov, bias=True, device=device
            )
        reduced = c.draft_vocab_size < c.vocab_size
        offsets = torch.zeros(c.draft_vocab_size, dtype=torch.int64, device=device)
        self.register_buffer("d2t", offsets if reduced else None)

    markov = property(lambda self: self.markov_head)
    confidence = property(lambda self: self.confidence_head)
    embedding_weight = property(lambda self: self.embed_tokens.weight)
    output_weight = property(lambda self: self.lm_head.weight)

    def bind_target(self, embedding: Tensor, lm_head_weight: Tensor) -> None:
        """Share the target's embedding and output matrix, both [V, d]; with a reduced vocabulary
        the drafted rows of the latter are copied. A tied target gives the same matrix twice."""
        self._check_target(embedding, lm_head_weight)
        rows = lm_head_weight.detach()
        if self.d2t is not None:
            rows = rows[torch.arange(len(self.d2t), device=rows.device) + self.d2t]
        self.embed_tokens.weight = nn.Parameter(embedding.detach(), requires_grad=False)
        self.lm_head.weight = nn.Parameter(rows, requires_grad=False)

    def context_entries(self) -> dict[str, tuple[int, ...]]:
        shape = (self.config.num_key_value_heads, self.config.head_dim)
        return {"k": shape, "v": shape}

    def combine(self, features: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(features))

    def context_rows(self, combined: Tensor, positions: Tensor) -> dict[str, Tensor]:
        pairs = [layer.self_attn.keys_values(combined, positions) for layer in self.layers]
        keys, values = zip(*pairs)
        return {"k": torch.stack(keys), "v": torch.stack(values)}

    def backbone(self, embedded: Tensor, positions: Tensor, view: BlockView) -> Tensor:
        for index, layer in enumerate(self.layers):
            embedded = layer(embedded, positions, view, index)
        return embedded

    def head_state(self, hidden: Tensor, normed: Tensor) -> Tensor:
        return normed


class Qwen3DraftHead(DenseDraftHead):
    """For Qwen3 targets."""


class Gemma4DraftHead(DenseDraftHead):
    """For Gemma4 targets: scaled embeddings, capped base logits."""

    layer_type = Gemma4Layer

    def embed(self, token_ids: Tensor) -> Tensor:
        weight = self.embedding_weight
        scale = weight.new_full((), self.config.hidden_size**0.5)  # rounded to its dtype
        return (F.embedding(token_ids, weight) * scale).to(self.dtype)

    def base_logits(self, normed: Tensor) -> Tensor:
        logits, cap = super().base_logits(normed), self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)
