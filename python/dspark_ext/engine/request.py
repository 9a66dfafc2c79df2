"""One request on its way through the engine."""

import dataclasses
from collections.abc import Sequence

import torch

from .config import SamplingParams

Prompt = str | Sequence[int] | torch.Tensor


@dataclasses.dataclass
class Request:
    """A prompt, what was emitted so far and where its cache stands.

    token_ids   prompt, then emitted tokens
    num_cached  positions 0 .. num_cached-1 are in the caches; never more than len(token_ids) - 1,
                since the last token, the anchor, enters with the pass that verifies its successors
    limit       tokens it may emit
    """

    index: int
    params: SamplingParams
    seed: int
    token_ids: list[int]
    prompt_length: int
    limit: int
    slot: int = -1
    num_cached: int = 0
    finish_reason: str | None = None
    accepted: list[bool] = dataclasses.field(default_factory=list)

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

    def emit(self, token_ids: list[int], num_accepted: int) -> int:
        """Take in what a pass emitted, the first `num_accepted` of it drafts; cut after a stop
        token or at the limit, which finishes the request. Returns how many tokens were taken."""
        taken = 0
        for token in token_ids[: self.output_left]:
            self.token_ids.append(token)
            self.accepted.append(taken < num_accepted)
            taken += 1
            if token in self.params.stop_token_ids:
                self.finish_reason = "stop"
                return taken
        if self.output_left == 0:
            self.finish_reason = "length"
        return taken


class SamplingTensors:
    """Sampling parameters of some requests as tensors [B]."""

    def __init__(self, requests: list[Request]) -> None:
        params = [request.params for request in requests]
        self.temperature = torch.tensor([each.temperature for each in params], dtype=torch.float32)
        self.top_k = torch.tensor([each.top_k for each in params], dtype=torch.int32)
        self.top_p = torch.tensor([each.top_p for each in params], dtype=torch.float32)
        self.min_p = torch.tensor([each.min_p for each in params], dtype=torch.float32)
        self.seeds = torch.tensor([request.seed for request in requests], dtype=torch.int64)

    def arguments(self) -> dict[str, torch.Tensor]:
        """Keyword arguments of `rejection_sample`; a filter that nobody uses is left out."""
        filters = {
            "top_k": (self.top_k, 0),
            "top_p": (self.top_p, 1),
            "min_p": (self.min_p, 0),
        }
        used = {name: value for name, (value, off) in filters.items() if (value != off).any()}
        return {"temperature": self.temperature, "seeds": self.seeds, **used}


def make_requests(
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams],
    *,
    tokenizer,
    vocab_size: int,
    max_len: int,
    engine_seed: int,
) -> list[Request]:
    """Tokenise and check. ValueError names the prompt and what is wrong with it."""
    if isinstance(params, SamplingParams):
        params = [params] * len(prompts)
    if len(params) != len(prompts):
        raise ValueError(
            f"dspark_ext.engine: params: expected one for all or {len(prompts)}, got {len(params)}"
        )
    requests = []
    for index, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
        token_ids = _token_ids(prompt, index, tokenizer)
        _check_ids(token_ids, index, "prompt", vocab_size)
        _check_ids(each.stop_token_ids, index, "stop_token_ids", vocab_size)
        if not 1 <= len(token_ids) < max_len:
            raise ValueError(
                f"dspark_ext.engine: prompt {index}: expected 1 to {max_len - 1} tokens "
                f"(max_len {max_len}), got {len(token_ids)}"
            )
        requests.append(
            Request(
                index=index,
                params=each,
                seed=derive_seed(engine_seed, index) if each.seed is None else each.seed,
                token_ids=token_ids,
                prompt_length=len(token_ids),
                limit=min(each.max_new_tokens, max_len - len(token_ids)),
            )
        )
    return requests


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
    if isinstance(prompt, torch.Tensor):
        prompt = prompt.tolist()
    return list(prompt)


def _check_ids(ids: Sequence[int], index: int, name: str, vocab_size: int) -> None:
    for token in ids:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(
                f"dspark_ext.engine: {name} {index}: expected token ids in [0, {vocab_size}), "
                f"got {token!r}"
            )
