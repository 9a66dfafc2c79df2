"""What lies between the linears of a Llama-like decoder layer, for decoding on a CPU.

Row-invariant: the bits of a row do not depend on the other rows of the call, on the number of threads
or on the instruction set. All tensors fp32 and contiguous; violations are RuntimeErrors that name the
argument.
"""

import torch

_ops = torch.ops.dspark_ext


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


def rope_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_heads: int,
) -> torch.Tensor:
    """Rotate queries and keys (half-split RoPE, Su et al. 2021) and put keys and values in the cache.

    qkv [N, Hq + 2 Hkv, D]; cos, sin [T, D], one row per position; positions int64 [N] in
    [0, min(T, L)); slots int32 [N] in [0, S); key_cache, value_cache [S, L, Hkv, D], written at
    (slot, position). Returns the rotated queries [N, Hq, D].
    """
    return _ops.rope_store(qkv, cos, sin, positions, slots, key_cache, value_cache, num_heads)
