"""What a user may set per request."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from . import checks

_OWNER = "SamplingParams"


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled. The filters mean what `dspark_ext.sampling` says.

    temperature     >= 0; 0 is greedy
    top_k           0 = off
    top_p, min_p    1 and 0 = off
    seed            64-bit; None = derived from the engine's seed and the number of the request
    max_new_tokens  >= 1; the context may end a request earlier
    min_new_tokens  until so many tokens are there, stop tokens are masked out of the target's law
                    and stop strings are not looked for
    stop_token_ids  the request ends with (and its output includes) the first of these
    stop            strings; the request ends with the token that completes the first of them, its
                    text just before it. Needs a tokenizer.
    logprobs        None, or report of every emitted token its log-probability under the target's
                    filtered law, and so many of the most probable alternatives (0: none)
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_new_tokens: int = 128
    stop_token_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        def check(name: str, expected: str, ok) -> None:
            checks.require(_OWNER, name, getattr(self, name), expected, ok)

        is_int = checks.is_int
        check("temperature", "a number >= 0", lambda value: 0.0 <= value < float("inf"))
        check("top_k", "an integer >= 0", lambda value: is_int(value, 0))
        check("top_p", "a number in (0, 1]", lambda value: 0.0 < value <= 1.0)
        check("min_p", "a number in [0, 1]", lambda value: 0.0 <= value <= 1.0)
        check(
            "seed",
            "None or a 64-bit integer",
            lambda value: value is None or (is_int(value, -(2**63)) and value < 2**63),
        )
        check("max_new_tokens", "an integer >= 1", lambda value: is_int(value, 1))
        check(
            "min_new_tokens",
            f"an integer from 0 to max_new_tokens ({self.max_new_tokens})",
            lambda value: is_int(value, 0) and value <= self.max_new_tokens,
        )
        check(
            "logprobs",
            "None or an integer from 0 to 100",
            lambda value: value is None or (is_int(value, 0) and value <= 100),
        )
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", tuple(stop or ()))
        check(
            "stop",
            "a text or texts, none of them empty",
            lambda value: all(isinstance(text, str) and text for text in value),
        )
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SamplingParams":
        """Build from a mapping. An unknown name is a ValueError naming the nearest known one."""
        return checks.from_dict(cls, values)

    def to_dict(self) -> dict[str, Any]:
        """JSON-like; `from_dict` reads it back."""
        values = dataclasses.asdict(self)
        return {**values, "stop_token_ids": list(self.stop_token_ids), "stop": list(self.stop)}
