"""A complete serving loop on the operators: continuous batching over a target and a DSpark
drafter."""

from .causal_lm import CausalLMTarget
from .config import PRESETS, SpeculativeConfig
from .costs import cached_profile, profile_step
from .drafter import Draft, DraftBatch, Drafter, DSparkDrafter
from .engine import DSparkEngine
from .generation import Generation, RequestHandle
from .handover import export_request, import_request, prefill_request
from .head_drafter import HeadDrafter, output_taps
from .huggingface import HuggingFaceTarget
from .ngram import NGramDrafter
from .paging import BlockPool, CacheFullError
from .request import TokenLogprobs
from .request_state import HandoverError, RequestState
from .sampling_params import SamplingParams
from .small_model import SmallModelDrafter, VocabularyMismatchError, check_tokenizers
from .speedup import SpeedupReport, measure_speedup
from .stats import GenerationStats, RequestOutput, RequestStats, StepEvent
from .target import Bounds, Target, TargetBatch, TargetOutput, UnsupportedModelError
from .target_choice import target_for

__all__ = [
    "PRESETS",
    "BlockPool",
    "Bounds",
    "CacheFullError",
    "CausalLMTarget",
    "DSparkDrafter",
    "DSparkEngine",
    "Draft",
    "DraftBatch",
    "Drafter",
    "Generation",
    "GenerationStats",
    "HandoverError",
    "HeadDrafter",
    "HuggingFaceTarget",
    "NGramDrafter",
    "RequestHandle",
    "RequestOutput",
    "RequestState",
    "RequestStats",
    "SamplingParams",
    "SmallModelDrafter",
    "SpeculativeConfig",
    "SpeedupReport",
    "StepEvent",
    "Target",
    "TargetBatch",
    "TargetOutput",
    "TokenLogprobs",
    "UnsupportedModelError",
    "VocabularyMismatchError",
    "cached_profile",
    "check_tokenizers",
    "export_request",
    "import_request",
    "measure_speedup",
    "output_taps",
    "prefill_request",
    "profile_step",
    "target_for",
]
