"""The operators of a lean pass by device: ours on a CPU, torch's elsewhere, where ours have none.

Torch's round otherwise, and a row's bits may depend on the rows beside it. They read nothing back
to the host, so a pass of them can be captured.
"""

import torch
import torch.nn.functional as F

from .. import decoder
from ..attention import attention
from ..draft_head.moe import route


def ours(tensor: torch.Tensor) -> bool:
    """Whether our operators take tensors of this device."""
    return tensor.device.type == "cpu"


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `decoder.rms_norm`."""
    if ours(x):
        return decoder.rms_norm(x, weight, eps)
    return F.rms_norm(x, weight.shape, weight, eps)


def routed_silu_mul(
    gate_up: torch.Tensor,
    router_logits: torch.Tensor,
    router_bias: torch.Tensor,
    *,
    expert_size: int,
    top_k: int,
    scaling: float,
    limit: float,
) -> torch.Tensor:
    """See `decoder.routed_silu_mul`."""
    if ours(gate_up):
        sizes = dict(expert_size=expert_size, top_k=top_k, scaling=scaling, limit=limit)
        return decoder.routed_silu_mul(gate_up, router_logits, router_bias, **sizes)
    gate, up = gate_up.chunk(2, -1)
    activated = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    ids, weights = route(router_logits, router_bias, top_k, scaling)
    dense = torch.zeros_like(router_logits).scatter_(1, ids, weights)
    shared = activated.shape[1] - expert_size * dense.shape[1]
    dense = F.pad(dense.repeat_interleave(expert_size, 1), (0, shared), value=1.0)
    return torch.where(dense == 0, 0.0, activated * dense)


def rope_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    num_heads: int,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """See `decoder.rope_store`."""
    if ours(qkv):
        norms = dict(query_norm=query_norm, key_norm=key_norm, eps=eps)
        caches = key_cache, value_cache
        return decoder.rope_store(
            qkv, cos, sin, positions, slots, *caches, num_heads=num_heads, **norms
        )
    kv_heads = key_cache.shape[2]
    query, key, value = qkv.split([num_heads, kv_heads, kv_heads], 1)
    angles = cos[positions][:, None], sin[positions][:, None]
    cells = slots.long(), positions
    key_cache[cells] = _rotated(key, key_norm, eps, *angles)
    value_cache[cells] = value
    return _rotated(query, query_norm, eps, *angles)


def block_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_start: torch.Tensor,
    key_end: torch.Tensor,
    scale: float,
    *,
    block: int,
    most_keys: int,
) -> torch.Tensor:
    """See `attention`; each `block` rows in order have one slot and range, of at most `most_keys`
    keys."""
    if ours(query):
        return attention(query, key_cache, value_cache, slots, key_start, key_end, scale)
    first, end, slot = (each[::block, None].long() for each in (key_start, key_end, slots))
    length = key_cache.shape[1]
    places = first + torch.arange(min(most_keys, length), device=query.device)
    cells = slot, places.clamp(max=length - 1)
    keys, values = (cache[cells].transpose(1, 2) for cache in (key_cache, value_cache))
    groups = query.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(groups, 1) for each in (keys, values))
    queries = query.unflatten(0, (-1, block)).transpose(1, 2)
    visible = (places < end)[:, None, None]
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible, scale=scale)
    return mixed.transpose(1, 2).flatten(0, 1)


def _rotated(heads, norm, eps: float, cos, sin) -> torch.Tensor:
    if norm is not None:
        heads = F.rms_norm(heads, norm.shape, norm, eps)
    low, high = heads.chunk(2, -1)
    return heads * cos + torch.cat([-high, low], -1) * sin
