"""A complete serving loop on the operators: continuous batching over a target and a DSpark
drafter."""

from .causal_lm import CausalLMTarget
from .config import SamplingParams, SpeculativeConfig
from .drafter import Draft, DraftBatch, Drafter, DSparkDrafter
from .engine import DSparkEngine, profile_step
from .generation import Generation
from .head_drafter import HeadDrafter, output_taps
from .huggingface import HuggingFaceTarget
from .paging import BlockPool, CacheFullError
from .stats import GenerationStats, RequestOutput, StepEvent
from .target import Target, TargetBatch, TargetOutput, UnsupportedModelError

__all__ = [
    "BlockPool",
    "CacheFullError",
    "CausalLMTarget",
    "DSparkDrafter",
    "DSparkEngine",
    "Draft",
    "DraftBatch",
    "Drafter",
    "Generation",
    "GenerationStats",
    "HeadDrafter",
    "HuggingFaceTarget",
    "RequestOutput",
    "SamplingParams",
    "SpeculativeConfig",
    "StepEvent",
    "Target",
    "TargetBatch",
    "TargetOutput",
    "UnsupportedModelError",
    "output_taps",
    "profile_step",
]
