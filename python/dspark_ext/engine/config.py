"""What a user may set: per engine (`SpeculativeConfig`) and per request (`SamplingParams`)."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from ..verify import CostTable

_CHOICES = {
    "draft_sample_method": ("probabilistic", "greedy"),
    "rejection_sample_method": ("block", "token", "standard", "greedy"),
    "schedule": ("fixed", "threshold", "early_stop"),
}


@dataclasses.dataclass(frozen=True)
class SpeculativeConfig:
    """How the engine drafts and verifies.

    num_speculative_tokens  drafts per block, 1 .. the drafter's block size; None = that block size
    draft_sample_method     "probabilistic": drafts are drawn at the request's temperature and
                            judged with their distribution; "greedy": drafts are argmaxes, judged as
                            one-hot
    rejection_sample_method "block" (Sun et al., arXiv 2403.10444), "token" (alias "standard",
                            Leviathan et al., arXiv 2211.17192) or "greedy"
    schedule                which drafts are verified: "fixed" all of them; "threshold" those before
                            the first confidence below `confidence_threshold`; "early_stop" the
                            hardware-aware prefixes of the DSpark paper's algorithm 1, by
                            `cost_table`
    confidence_threshold    in [0, 1]; read by "threshold" only
    cost_table              seconds of a step by the rows of its target pass (and by its requests);
                            read by "early_stop" only; None = the engine measures it when it is
                            built, target and drafter
    prefill_chunk           prompt tokens that enter one target pass beside the decoding rows
    seed                    where the seeds of requests that give none come from
    """

    num_speculative_tokens: int | None = None
    draft_sample_method: str = "probabilistic"
    rejection_sample_method: str = "block"
    schedule: str = "fixed"
    confidence_threshold: float = 0.0
    cost_table: CostTable | None = None
    prefill_chunk: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            _require_choice("SpeculativeConfig", name, getattr(self, name), choices)
        _require(
            "SpeculativeConfig",
            "num_speculative_tokens",
            self.num_speculative_tokens,
            "None or an integer >= 1",
            lambda value: value is None or _is_int(value, 1),
        )
        _require(
            "SpeculativeConfig",
            "confidence_threshold",
            self.confidence_threshold,
            "a number in [0, 1]",
            lambda value: 0.0 <= value <= 1.0,
        )
        _require(
            "SpeculativeConfig",
            "prefill_chunk",
            self.prefill_chunk,
            "an integer >= 1",
            lambda value: _is_int(value, 1),
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SpeculativeConfig":
        """Build from a mapping, say parsed JSON. An unknown name is a ValueError naming the
        nearest."""
        return _from_dict(cls, values)


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled. The filters mean what `dspark_ext.sampling` says.

    temperature     >= 0; 0 is greedy
    top_k           0 = off
    top_p, min_p    1 and 0 = off
    seed            64-bit; None = derived from the engine's seed and the number of the request
    max_new_tokens  >= 1; the context may end a request earlier
    stop_token_ids  the request ends with (and its output includes) the first of these
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_new_tokens: int = 128
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        def check(name: str, expected: str, ok) -> None:
            _require("SamplingParams", name, getattr(self, name), expected, ok)

        check("temperature", "a number >= 0", lambda value: 0.0 <= value < float("inf"))
        check("top_k", "an integer >= 0", lambda value: _is_int(value, 0))
        check("top_p", "a number in (0, 1]", lambda value: 0.0 < value <= 1.0)
        check("min_p", "a number in [0, 1]", lambda value: 0.0 <= value <= 1.0)
        check(
            "seed",
            "None or a 64-bit integer",
            lambda value: value is None or (_is_int(value, -(2**63)) and value < 2**63),
        )
        check("max_new_tokens", "an integer >= 1", lambda value: _is_int(value, 1))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SamplingParams":
        """Build from a mapping. An unknown name is a ValueError naming the nearest known one."""
        return _from_dict(cls, values)


def _is_int(value: Any, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest


def _require(owner: str, name: str, value: Any, expected: str, ok) -> None:
    try:
        passed = ok(value)
    except TypeError:
        passed = False
    if not passed:
        raise ValueError(f"dspark_ext.engine.{owner}: {name}: expected {expected}, got {value!r}")


def _require_choice(owner: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        nearest = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"dspark_ext.engine.{owner}: {name}: expected one of {', '.join(choices)}, "
            f"got {value!r} (nearest: {nearest!r})"
        )


def _from_dict(cls, values: Mapping[str, Any]):
    known = [field.name for field in dataclasses.fields(cls)]
    for name in values:
        if name not in known:
            nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"dspark_ext.engine.{cls.__name__}: unknown name {name!r} (nearest: {nearest!r})"
            )
    return cls(**values)
