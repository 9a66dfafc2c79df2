"""Mixture of experts: routing, dispatch and the expert layer, with their parallel forms."""

from .dispatch import combine, permute
from .expert_parallel import Dispatched, ExpertParallel
from .fused import ExpertWeights, apply_experts, fused_moe
from .gemm import grouped_gemm, swiglu
from .plan import DispatchPlan, PlanCapacity, plan, plan_capacity
from .prepare import prepare_weights, prepared_bytes, restore_weights
from .route import DEAD_ROW, EMPTY_ROW, INVALID_ID, NAN_ROW, Routing, route

__all__ = [
    "DEAD_ROW",
    "EMPTY_ROW",
    "INVALID_ID",
    "NAN_ROW",
    "DispatchPlan",
    "Dispatched",
    "ExpertParallel",
    "ExpertWeights",
    "PlanCapacity",
    "Routing",
    "apply_experts",
    "combine",
    "fused_moe",
    "grouped_gemm",
    "permute",
    "plan",
    "plan_capacity",
    "prepare_weights",
    "prepared_bytes",
    "restore_weights",
    "route",
    "swiglu",
]
