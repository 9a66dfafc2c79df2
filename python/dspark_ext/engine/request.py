"""One request on its way through the engine."""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Sequence

import torch

from .._upload import upload
from . import checks
from .sampling_params import SamplingParams
from .text import TextStream

Prompt = str | Sequence[int] | torch.Tensor
_INT32_MAX = 2**31 - 1


@dataclasses.dataclass(eq=False)
class Request:
    """A prompt, what was emitted so far and where its cache stands.

    index       what its events and errors call it
    token_ids   prompt, then emitted tokens
    num_cached  positions 0 .. num_cached-1 are in the caches; never more than len(token_ids) - 1,
                since the last token, the anchor, enters with the pass that verifies its successors
    limit       tokens it may emit
    speculative whether drafts are made for it
    priority    higher ones are admitted first
    text        its text as it comes, None without a tokenizer
    verified, reached, histogram
                steps by position in which x_{k+1} was verified, in which all before it were
                accepted as well, and by number of accepted drafts
    passes      (seconds of the engine, tokens emitted) of each pass that verified for it
    restore     called with the slot that it gets: fills the caches of a request that another engine
                began
    """

    index: int
    params: SamplingParams
    seed: int
    token_ids: list[int]
    prompt_length: int
    limit: int
    speculative: bool = True
    priority: int = 0
    text: TextStream | None = None
    slot: int = -1
    num_cached: int = 0
    submitted: float = 0.0
    finish_reason: str | None = None
    drafted: int = 0
    accepted: list[bool] = dataclasses.field(default_factory=list)
    logprobs: list["TokenLogprobs"] = dataclasses.field(default_factory=list)
    verified: list[int] = dataclasses.field(default_factory=list)
    reached: list[int] = dataclasses.field(default_factory=list)
    histogram: list[int] = dataclasses.field(default_factory=list)
    passes: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    restore: Callable[[int], None] | None = None

    @property
    def num_emitted(self) -> int:
        return len(self.token_ids) - self.prompt_length

    @property
    def output_left(self) -> int:
        return self.limit - self.num_emitted

    @property
    def prefill_left(self) -> int:
        """Tokens before the anchor that are not in the caches yet."""
        return len(self.token_ids) - 1 - self.num_cached

    @property
    def masked_left(self) -> int:
        """Tokens still to come in which a stop token is not allowed."""
        return max(0, self.params.min_new_tokens - self.num_emitted)

    def emit(self, token_ids: list[int], num_accepted: int) -> tuple[int, str]:
        """Take in what a pass emitted, the first `num_accepted` of it drafts; cut after a stop
        token, after the token that completes a stop string, or at the limit, which finishes the
        request. Returns how many tokens were taken and the text that they decided."""
        token_ids = token_ids[: self.output_left]
        for count, token in enumerate(token_ids, 1):
            if token in self.params.stop_token_ids:
                token_ids, self.finish_reason = token_ids[:count], "stop"
                break
        text = ""
        if self.text is not None:
            text, taken = self._push(token_ids)
            if self.text.stopped:
                token_ids, self.finish_reason = token_ids[:taken], "stop"
        self.accepted += [place < num_accepted for place in range(len(token_ids))]
        self.token_ids += token_ids
        if self.output_left == 0 and self.finish_reason is None:
            self.finish_reason = "length"
        if self.finish_reason is not None and self.text is not None:
            text += self.text.finish()
        return len(token_ids), text

    def count(self, num_verified: int, num_accepted: int) -> None:
        """Take in the counts of a pass."""
        missing = num_verified + 1 - len(self.histogram)
        if missing > 0:
            self.histogram += [0] * missing
            self.verified += [0] * (len(self.histogram) - 1 - len(self.verified))
            self.reached += [0] * (len(self.histogram) - 1 - len(self.reached))
        self.histogram[num_accepted] += 1
        for position in range(num_verified):
            self.verified[position] += 1
            self.reached[position] += position <= num_accepted

    def _push(self, token_ids: list[int]) -> tuple[str, int]:
        """Stop strings are looked for from the last of `min_new_tokens` on."""
        early = max(0, min(len(token_ids), self.params.min_new_tokens - self.num_emitted - 1))
        before = self.text.push(token_ids[:early], watch=False)[0] if early else ""
        after, taken = self.text.push(token_ids[early:])
        return before + after, early + taken


@dataclasses.dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of the target's filtered law, where a token was emitted.

    logprob  of the token
    top      (token, log-probability) of the most probable ones, best first; those of probability 0
             are left out
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class SamplingTensors:
    """Sampling parameters of some requests as tensors [B] on `device`."""

    def __init__(self, requests: list[Request], device: torch.device | str | None = None) -> None:
        params = [request.params for request in requests]

        def column(values: list, dtype: torch.dtype) -> torch.Tensor:
            return upload(values, dtype, device)

        self.temperature = column([each.temperature for each in params], torch.float32)
        self.seeds = column([request.seed for request in requests], torch.int64)
        # A filter that nobody uses is left out.
        self.filters = {
            name: column([min(getattr(each, name), _INT32_MAX) for each in params], dtype)
            for name, off, dtype in (
                ("top_k", 0, torch.int32),
                ("top_p", 1, torch.float32),
                ("min_p", 0, torch.float32),
            )
            if any(getattr(each, name) != off for each in params)
        }

    def arguments(self) -> dict[str, torch.Tensor]:
        """Keyword arguments of `rejection_sample`."""
        return {"temperature": self.temperature, "seeds": self.seeds, **self.filters}

    def law(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Keyword arguments of `target_probs` for rows of the requests `rows`."""
        both = {"temperature": self.temperature, **self.filters}
        return {name: values[rows] for name, values in both.items()}


def make_request(
    index: int,
    prompt: Prompt,
    params: SamplingParams,
    *,
    tokenizer,
    vocab_size: int,
    max_len: int,
    engine_seed: int,
    speculative: bool,
    priority: int = 0,
) -> Request:
    """Tokenise and check. ValueError names the prompt and what is wrong with it."""
    if not isinstance(params, SamplingParams):
        raise ValueError(
            f"dspark_ext.engine: params {index}: expected SamplingParams, got "
            f"{type(params).__name__}; SamplingParams.from_dict reads a mapping"
        )
    token_ids = _token_ids(prompt, index, tokenizer)
    _check_ids(token_ids, index, "prompt", vocab_size)
    _check_ids(params.stop_token_ids, index, "stop_token_ids", vocab_size)
    _check_ids(params.allowed_token_ids or (), index, "allowed_token_ids", vocab_size)
    _check_ids([token for token, _ in params.logit_bias], index, "logit_bias", vocab_size)
    if not 1 <= len(token_ids) < max_len:
        raise ValueError(
            f"dspark_ext.engine: prompt {index}: expected 1 to {max_len - 1} tokens "
            f"(max_len {max_len}), got {len(token_ids)}"
        )
    if params.stop and tokenizer is None:
        raise ValueError(
            f"dspark_ext.engine: stop {index}: stop strings need an engine with a tokenizer"
        )
    if params.min_new_tokens and len(set(params.stop_token_ids)) >= vocab_size:
        raise ValueError(
            f"dspark_ext.engine: stop_token_ids {index}: with min_new_tokens, expected a token "
            "that is none of them"
        )
    if not checks.is_int(priority, -(2**63)):
        raise ValueError(
            f"dspark_ext.engine: priority {index}: expected an integer, got {priority!r}"
        )
    return Request(
        index=index,
        params=params,
        seed=derive_seed(engine_seed, index) if params.seed is None else params.seed,
        token_ids=token_ids,
        prompt_length=len(token_ids),
        limit=min(params.max_new_tokens, max_len - len(token_ids)),
        speculative=speculative,
        priority=priority,
        text=None if tokenizer is None else TextStream(tokenizer.decode, params.stop, token_ids),
    )


def derive_seed(engine_seed: int, index: int) -> int:
    """Seed of the index-th request: a SplitMix64 step, as a signed 64-bit integer."""
    mask = 2**64 - 1
    z = (engine_seed + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    z ^= z >> 31
    return z - 2**64 if z >= 2**63 else z


def _token_ids(prompt: Prompt, index: int, tokenizer) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError(
                f"dspark_ext.engine: prompt {index}: text needs an engine with a tokenizer"
            )
        return list(tokenizer.encode(prompt))
    if hasattr(prompt, "tolist"):  # a tensor or an array
        prompt = prompt.tolist()
    if not isinstance(prompt, Iterable):
        raise ValueError(
            f"dspark_ext.engine: prompt {index}: expected a text or token ids, got {prompt!r}"
        )
    return [_whole(each) for each in prompt]


def _whole(value):
    """Integers of other libraries as Python's; anything else as it is, to be refused."""
    try:
        return operator.index(value)
    except TypeError:
        return value


def _check_ids(ids: Sequence[int], index: int, name: str, vocab_size: int) -> None:
    for token in ids:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(
                f"dspark_ext.engine: {name} {index}: expected token ids in [0, {vocab_size}), "
                f"got {token!r}"
            )
