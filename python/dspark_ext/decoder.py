"""What lies between the linears of a Llama-like decoder layer, for decoding on a CPU.

Row-invariant: the bits of a row do not depend on the other rows of the call, on the number of
threads or on the instruction set. All tensors fp32 and contiguous; violations are RuntimeErrors
that name the argument.
"""

import torch

from . import _operators as _ops


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`weight * x / sqrt(mean(x^2) + eps)` over the last dimension (Zhang & Sennrich 2019).

    x [..., width], weight [width] -> as x.
    """
    return _ops.rms_norm(x, weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SwiGLU activation: gate_up [N, 2F] (gate, then up) -> `silu(gate) * up` [N, F].

    silu(x) = x * sigmoid(x); relative error below 1e-6 * (1 + |x| / 8), the tail below 1e-34 aside.
    """
    return _ops.silu_mul(gate_up)


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
    """`silu_mul` of a small mixture of experts kept as one dense network.

    gate_up [N, 2 (E * expert_size + shared)]: gates of experts 0 .. E-1 and of the shared expert,
    then their ups; router_logits [N, E]; router_bias [E], added for the choice only. Routing as in
    DeepSeek-V4: scores sqrt(softplus(logit)), the `top_k` best (ties: lower id), their scores
    scaled to sum to `scaling`. Gates are clamped to at most `limit`, ups to [-limit, limit].
    Columns of experts that were not chosen are 0. At most 256 experts.
    Returns [N, E * expert_size + shared].
    """
    return _ops.routed_silu_mul(
        gate_up, router_logits, router_bias, expert_size, top_k, scaling, limit
    )


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
    """Rotate queries and keys (half-split RoPE, Su et al. 2021) and put keys and values in the
    cache.

    qkv [N, Hq + 2 Hkv, D], Hq = num_heads (0 = keys and values alone); cos, sin [T, D], one row per
    position; positions int64 [N] in [0, min(T, L)); slots int32 [N] in [0, S); key_cache,
    value_cache [S, L, Hkv, D], written at (slot, position). query_norm, key_norm [D]: weights of an
    RMSNorm of each
    head, with `eps`, before the rotation. Returns the rotated queries [N, Hq, D].
    """
    return _ops.rope_store(
        qkv,
        cos,
        sin,
        positions,
        slots,
        key_cache,
        value_cache,
        num_heads,
        query_norm,
        key_norm,
        eps,
    )
