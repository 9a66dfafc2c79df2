"""Mixture of experts: routing, dispatch and the expert layer, with their parallel forms."""

from .dispatch import combine, permute
from .expert_parallel import Dispatched, ExpertParallel
from .plan import DispatchPlan, PlanCapacity, plan, plan_capacity
from .route import DEAD_ROW, EMPTY_ROW, INVALID_ID, NAN_ROW, Routing, route

__all__ = [
    "DEAD_ROW",
    "EMPTY_ROW",
    "INVALID_ID",
    "NAN_ROW",
    "DispatchPlan",
    "Dispatched",
    "ExpertParallel",
    "PlanCapacity",
    "Routing",
    "combine",
    "permute",
    "plan",
    "plan_capacity",
    "route",
]
