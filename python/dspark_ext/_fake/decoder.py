"""Fake kernels of the decoder family."""

import torch

from ._register import register_fake


@register_fake("rms_norm")
def _(x, weight, eps):
    return torch.empty_like(x)


@register_fake("silu_mul")
def _(gate_up):
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


@register_fake("routed_silu_mul")
def _(gate_up, router_logits, router_bias, expert_size, top_k, scaling, limit):
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


@register_fake("rope_store")
def _(
    qkv, cos, sin, positions, slots, key_cache, value_cache, num_heads, query_norm, key_norm, eps
):
    return qkv.new_empty(qkv.shape[0], num_heads, qkv.shape[2])
