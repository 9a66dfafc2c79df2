"""Latent attention of a DeepSeek draft stage: many query heads on one key, also the value."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .config import DeepSeekDraftConfig
from .context import BlockView
from .layers import RMSNorm, Rotary, attend, rotate_tail
from .quantized import QuantizedLinear


class LatentAttention(nn.Module):
    """The rows of a block see the context before it and the whole block, all of them alike.

    Queries go through a low rank (wq_a, q_norm, wq_b); the key of a token is kv_norm(wkv x) with
    its last entries rotated. The rotation is taken out of the mixed values again, and the output
    projection is grouped (wo_a) before it is one (wo_b).
    """

    def __init__(self, config: DeepSeekDraftConfig, device=None, dtype=None) -> None:
        super().__init__()
        c = config
        self.heads, self.head_dim, self.groups = c.num_attention_heads, c.head_dim, c.o_groups
        self.scale = c.head_dim**-0.5
        self.rotary = Rotary(c.qk_rope_head_dim, c.rope_theta)
        width = self.heads * self.head_dim

        def linear(inputs: int, outputs: int) -> QuantizedLinear:
            return QuantizedLinear(
                inputs, outputs, format=c.dense_format, block=c.weight_block_size,
                device=device, dtype=dtype,
            )  # fmt: skip

        self.wq_a = linear(c.hidden_size, c.q_lora_rank)
        self.q_norm = RMSNorm(c.q_lora_rank, c.rms_norm_eps, device)
        self.wq_b = linear(c.q_lora_rank, width)
        self.wkv = linear(c.hidden_size, c.head_dim)
        self.kv_norm = RMSNorm(c.head_dim, c.rms_norm_eps, device)
        self.wo_a = linear(width // self.groups, self.groups * c.o_lora_rank)
        self.wo_b = linear(self.groups * c.o_lora_rank, c.hidden_size)
        self.attn_sink = nn.Parameter(torch.zeros(self.heads, device=device))
        # V4 norms each query head too; V4.1 does not.
        per_head = c.flavour == "deepseek_v4"
        self.head_norm = RMSNorm(None, c.rms_norm_eps) if per_head else nn.Identity()

    def key_value(self, x: Tensor, positions: Tensor) -> Tensor:
        """[..., head_dim] of rows x [..., d] at `positions` [...]."""
        latent = self.kv_norm(self.wkv(x))[..., None, :]
        return rotate_tail(latent, *self.rotary(positions))[..., 0, :]

    def forward(self, x: Tensor, positions: Tensor, view: BlockView, layer: int) -> Tensor:
        """x [B, R, d], rows of blocks at `positions` [B, R] -> [B, R, d]."""
        turn = self.rotary(positions)
        query = self.wq_b(self.q_norm(self.wq_a(x))).unflatten(-1, (self.heads, self.head_dim))
        query = rotate_tail(self.head_norm(query), *turn)
        key = view.joined("kv", layer, self.key_value(x, positions))[:, :, None]
        visible = view.visible(x.shape[1])
        mixed = attend(query, key, key, visible, self.scale, self.attn_sink)
        return self.project(rotate_tail(mixed, *turn, inverse=True))

    def project(self, mixed: Tensor) -> Tensor:
        """[B, R, heads, head_dim] -> [B, R, d], by groups of heads first."""
        grouped = mixed.flatten(-2).unflatten(-1, (self.groups, -1))
        weight = self.wo_a.dequantized(mixed.dtype).unflatten(0, (self.groups, -1))
        low = torch.einsum("brgi,goi->brgo", grouped, weight)
        return self.wo_b(low.flatten(-2))
