"""A complete serving loop on the operators: continuous batching over a target and a DSpark
drafter."""

from .causal_lm import CausalLMTarget
from .config import PRESETS, SpeculativeConfig
from .costs import cached_profile, profile_step
from .drafter import Draft, DraftBatch, Drafter, DSparkDrafter
from .engine import DSparkEngine
from .generation import Generation, RequestHandle
from .head_drafter import HeadDrafter, output_taps
from .huggingface import HuggingFaceTarget
from .paging import BlockPool, CacheFullError
from .request import TokenLogprobs
from .sampling_params import SamplingParams
from .speedup import SpeedupReport, measure_speedup
from .stats import GenerationStats, RequestOutput, RequestStats, StepEvent
from .target import Target, TargetBatch, TargetOutput, UnsupportedModelError

__all__ = [
    "PRESETS",
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
    "RequestHandle",
    "RequestOutput",
    "RequestStats",
    "SamplingParams",
    "SpeculativeConfig",
    "SpeedupReport",
    "StepEvent",
    "Target",
    "TargetBatch",
    "TargetOutput",
    "TokenLogprobs",
    "UnsupportedModelError",
    "cached_profile",
    "measure_speedup",
    "output_taps",
    "profile_step",
]
