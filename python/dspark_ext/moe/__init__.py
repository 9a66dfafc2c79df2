"""Mixture of experts: routing, dispatch and the expert layer, with their parallel forms."""

from .dispatch import combine, permute
from .plan import DispatchPlan, PlanCapacity, plan, plan_capacity

__all__ = ["DispatchPlan", "PlanCapacity", "combine", "permute", "plan", "plan_capacity"]
