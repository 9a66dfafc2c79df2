"""The mixture of experts of a DeepSeek draft stage.

A row meets its experts in `experts`, one module after the other, or where nothing has to be
differentiated in `grouped_experts`, which runs them all by `moe.grouped_gemm`. Source: DeepSeek-V4
(noaux_tc routing by square-root softplus scores, clamped SwiGLU).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import _info, moe
from .config import DeepSeekDraftConfig
from .quantized import QuantizedLinear
from .stacked import ExpertStack

TILE_ROWS = 16  # a draft has few rows


def route(logits: Tensor, bias: Tensor, top_k: int, scale: float) -> tuple[Tensor, Tensor]:
    """(ids int64 [T, k], weights float32 [T, k]) from router logits float32 [T, E].

    Scores are sqrt(softplus(logit)). The k best of score + bias are chosen (ties: lower id); their
    weights are the scores without the bias, scaled to sum to `scale`.
    """
    scores = F.softplus(logits.float()).sqrt()
    ids = (scores + bias.float()).sort(dim=-1, descending=True, stable=True).indices[..., :top_k]
    weights = scores.gather(-1, ids)
    return ids, weights / (weights.sum(-1, keepdim=True) + 1e-20) * scale


def experts(x: Tensor, ids: Tensor, weights: Tensor, modules: Sequence[nn.Module]) -> Tensor:
    """float32 [T, d]: the outputs of a row's experts, weighted and added in slot order.

    x [T, d]; ids int64 [T, k], expert of each slot; weights float32 [T, k]. Rows are grouped by
    expert, so each expert that is named runs once.
    """
    rows, top_k = ids.shape
    outputs = x.new_empty(rows * top_k, x.shape[-1])
    flat = ids.flatten()
    for expert in flat.unique().tolist():
        places = (flat == expert).nonzero()[:, 0]
        outputs[places] = modules[expert](x[places // top_k])
    outputs = outputs.view(rows, top_k, x.shape[-1]).float()
    total = outputs.new_zeros(x.shape)
    for slot in range(top_k):
        total += weights[:, slot, None] * outputs[:, slot]
    return total


def grouped_experts(
    x: Tensor, ids: Tensor, weights: Tensor, stack: moe.ExpertWeights, limit: float
) -> Tensor:
    """The same, without a read back to the host. Weights that are codes are not rounded to the
    dtype of x on the way, and sums have another order."""
    plan = moe.plan(ids, len(stack.w13), tile_rows=TILE_ROWS)
    swiglu_limit = limit if limit < float("inf") else None
    outputs = moe.apply_experts(x, stack, plan, swiglu_limit=swiglu_limit)
    return moe.combine(outputs.float(), plan, weights)


@functools.cache
def _has_grouped_gemm(device_type: str) -> bool:
    known = device_type in ("cpu", "cuda")
    return known and "grouped_gemm" in _info.capabilities(device_type)["operators"]


class Expert(nn.Module):
    """w2 (silu(min(w1 x, limit)) * clamp(w3 x, -limit, limit)); limit 0: nothing is clamped."""

    def __init__(self, config: DeepSeekDraftConfig, format: str, device, dtype) -> None:
        super().__init__()
        self.limit = config.swiglu_limit or float("inf")
        size, inner = config.hidden_size, config.moe_intermediate_size
        how = {"format": format, "block": config.weight_block_size} | _place(device, dtype)
        self.w1 = QuantizedLinear(size, inner, **how)
        self.w2 = QuantizedLinear(inner, size, **how)
        self.w3 = QuantizedLinear(size, inner, **how)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x).float(), self.w3(x).float()
        hidden = F.silu(gate.clamp(max=self.limit)) * up.clamp(-self.limit, self.limit)
        return self.w2(hidden.to(x.dtype))


class Gate(nn.Module):
    """weight [E, d]; bias [E] float32 for choosing only; bias_vl (V4.1) is for vision tokens, which
    a draft never sees: it is stored and not used."""

    def __init__(self, config: DeepSeekDraftConfig, device, dtype) -> None:
        super().__init__()
        count = config.dspark_n_routed_experts
        self.weight = nn.Parameter(torch.empty(count, config.hidden_size, **_place(device, dtype)))
        self.register_buffer("bias", torch.zeros(count, device=device))
        if config.flavour == "deepseek_v41":
            self.register_buffer("bias_vl", torch.zeros(count, device=device))


class MoE(nn.Module):
    """Routed experts plus the shared one."""

    def __init__(self, config: DeepSeekDraftConfig, device=None, dtype=None) -> None:
        super().__init__()
        self.top_k = config.dspark_num_experts_per_tok
        self.scale = config.routed_scaling_factor
        self.gate = Gate(config, device, dtype)
        self.experts = nn.ModuleList(
            Expert(config, config.expert_format, device, dtype)
            for _ in range(config.dspark_n_routed_experts)
        )
        self.shared_experts = Expert(config, config.dense_format, device, dtype)
        self._stack = ExpertStack()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        logits = F.linear(rows.float(), self.gate.weight.float())
        ids, weights = route(logits, self.gate.bias, self.top_k, self.scale)
        routed = self._routed(rows, ids, weights)
        total = routed + self.shared_experts(rows).float()
        return total.to(x.dtype).view(x.shape)

    def _routed(self, rows: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        stack = None
        if not torch.is_grad_enabled() and _has_grouped_gemm(rows.device.type):
            takes_prepared = self._takes_prepared(rows.dtype)
            own = self._stack.prepared if takes_prepared else self._stack.weights
            stack = own(self.experts)
        if stack is None:
            return experts(rows, ids, weights, self.experts)
        return grouped_experts(rows, ids, weights, stack, self.experts[0].limit)

    def _takes_prepared(self, dtype: torch.dtype) -> bool:
        """Whether there are kernels for rows of this dtype and prepared weights."""
        layer = self.experts[0].w1
        if layer.is_quantized:
            return dtype in (torch.bfloat16, torch.float16)
        return dtype == layer.weight.dtype != torch.float32


def prepare_experts(head: nn.Module, enabled: bool = True) -> int:
    """Lets the routed experts of a head work on a copy of their weights that `moe.prepare_weights`
    made for their device. Drafts are the same within the bounds of docs/numerics.md.

    The copies are made by the first draft without gradients, and again after weights were loaded,
    moved or written to in place; parameters and state dict stay as they are. So the experts take
    twice their memory while this is enabled. Call it again after writing to the `data` of a
    parameter, which nobody can see.

    Args:
        head: a draft head, or any module that holds its mixtures of experts.
        enabled: False drops the copies.

    Returns:
        Bytes that the copies take, 0 for a head without routed experts or experts whose weights
        have no other layout (`moe.prepared_bytes`).
    """
    total = 0
    for module in head.modules():
        if isinstance(module, MoE):
            module._stack = ExpertStack(enabled)
            total += module._stack.copy_bytes(module.experts) if enabled else 0
    return total


def _place(device, dtype) -> dict:
    return {"device": device, "dtype": dtype}
