"""What a user may set per request."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from . import checks

TokenMask = Callable[[list[int]], Sequence[int] | torch.Tensor]

_OWNER = "SamplingParams"
_MOST_TEMPERATURE = _MOST_BIAS = 3.4e38  # of an fp32


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled. The filters mean what `dspark_ext.sampling` says.

    temperature     >= 0; 0 is greedy
    top_k           0 = off, as is anything from the vocabulary's size on
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

    These change the target's law, drafts or not (`logit_rules`):

    logit_bias         {token id: what is added to its logit}, kept as pairs; -inf bans a token
    allowed_token_ids  None, or the only ids that may be emitted, a stop token among them
    token_mask         None, or a function of the ids emitted so far that says what may follow: ids,
                       or booleans [V]. For grammars. It is asked for every row, with the drafts
                       before it behind what was emitted, as long as each of them may follow
    presence_penalty, frequency_penalty
                       -2 to 2; taken from the logits of emitted tokens: once, and as often as each
                       was emitted
    repetition_penalty > 0; logits of tokens of the prompt and emitted ones are divided by it, those
                       below 0 multiplied
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
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    token_mask: TokenMask | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        def check(name: str, expected: str, ok) -> None:
            checks.require(_OWNER, name, getattr(self, name), expected, ok)

        is_int = checks.is_int
        check(
            "temperature",
            f"a number >= 0, at most {_MOST_TEMPERATURE:.3g}",
            lambda value: 0.0 <= value <= _MOST_TEMPERATURE,
        )
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
        texts = lambda value: all(isinstance(text, str) and text for text in value)  # noqa: E731
        self._make_tuple("stop", str)
        check("stop", "a text or texts, none of them empty", texts)
        self._make_tuple("stop_token_ids", int)
        check("stop_token_ids", "a token id or ids", lambda value: isinstance(value, tuple))
        self._check_rules(check)

    def _check_rules(self, check) -> None:
        bias = self.logit_bias
        pairs = bias.items() if isinstance(bias, Mapping) else () if bias is None else bias
        if isinstance(pairs, Iterable):
            pairs = tuple(tuple(each) if isinstance(each, Iterable) else each for each in pairs)
            object.__setattr__(self, "logit_bias", pairs)
        check(
            "logit_bias",
            "{token id: number, not NaN or +inf}",
            lambda value: all(
                checks.is_int(token, 0) and checks.is_number(number, -math.inf, _MOST_BIAS)
                for token, number in value
            ),
        )
        if self.allowed_token_ids is not None:
            self._make_tuple("allowed_token_ids", int)
            ids = "None or a list of token ids, not empty"
            check("allowed_token_ids", ids, lambda value: isinstance(value, tuple) and value)
        check("token_mask", "None or a function", lambda value: value is None or callable(value))
        for name in ("presence_penalty", "frequency_penalty"):
            check(name, "a number in [-2, 2]", lambda value: checks.is_number(value, -2, 2))
        check(
            "repetition_penalty",
            "a number > 0",
            lambda value: 0.0 < value < math.inf and not isinstance(value, bool),
        )

    @property
    def penalises(self) -> bool:
        penalties = self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1
        return any(penalties)

    @property
    def has_token_rules(self) -> bool:
        """Whether rows of logits are changed, other than by `min_new_tokens`."""
        masks = self.allowed_token_ids, self.token_mask
        return bool(self.logit_bias) or self.penalises or masks != (None, None)

    def _make_tuple(self, name: str, kind: type) -> None:
        """One is as good as several, and None as none."""
        value = getattr(self, name)
        value = (value,) if isinstance(value, kind) else () if value is None else value
        if isinstance(value, Iterable):
            object.__setattr__(self, name, tuple(value))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SamplingParams":
        """Build from a mapping. An unknown name is a ValueError naming the nearest known one."""
        return checks.from_dict(cls, values)

    def to_dict(self) -> dict[str, Any]:
        """JSON-like; `from_dict` reads it back. ValueError with a `token_mask`, which is none."""
        if self.token_mask is not None:
            raise checks.error(_OWNER, "token_mask: expected None, a function cannot be written")
        values = dataclasses.asdict(self)
        for name, value in values.items():
            if isinstance(value, tuple):
                values[name] = list(map(list, value)) if name == "logit_bias" else list(value)
        return values
