"""A complete serving loop on the operators: continuous batching over a target and a DSpark
drafter."""

from .config import SamplingParams, SpeculativeConfig
from .drafter import Draft, DraftBatch, Drafter, DSparkDrafter
from .engine import DSparkEngine, profile_step
from .generation import Generation
from .head_drafter import HeadDrafter, output_taps
from .huggingface import HuggingFaceTarget
from .stats import GenerationStats, RequestOutput, StepEvent
from .target import Target, TargetBatch, TargetOutput

__all__ = [
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
    "output_taps",
    "profile_step",
]
