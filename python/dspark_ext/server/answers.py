"""Answers as OpenAI's clients read them: whole ones, and the chunks of a stream."""

from __future__ import annotations

import dataclasses
import math
import time
import uuid
from collections.abc import Callable

LOWEST_LOGPROB = -9999.0  # JSON has no minus infinity


@dataclasses.dataclass
class Choice:
    """What has come for one choice so far."""

    text: str = ""
    finish_reason: str | None = None
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list = dataclasses.field(default_factory=list)
    accepted: int = 0
    verified: int = 0

    def add(self, event) -> None:
        self.text += event.text
        self.finish_reason = event.finish_reason
        self.tokens += event.token_ids
        self.logprobs += event.logprobs or []
        self.accepted += sum(event.accepted)
        self.verified += len(event.confidences)


class Answer:
    """The envelope of one HTTP answer.

    chat           whether it is a chat completion
    decode         token ids -> text, for log-probabilities
    prompt_tokens  of all prompts
    lossy          whether the engine may change the law of the text, which is then marked
    """

    def __init__(
        self, model: str, chat: bool, decode: Callable, prompt_tokens: int, lossy: bool
    ) -> None:
        self._chat, self._decode = chat, decode
        self._prompt_tokens = prompt_tokens
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        if lossy:
            self._head["dspark_ext"] = {"lossy": True}

    def whole(self, choices: list[Choice]) -> dict:
        kind = "chat.completion" if self._chat else "text_completion"
        listed = []
        for index, choice in enumerate(choices):
            entry = {"index": index, "finish_reason": choice.finish_reason}
            if self._chat:
                entry["message"] = {"role": "assistant", "content": choice.text}
            else:
                entry["text"] = choice.text
            entry["logprobs"] = self._logprobs(choice.tokens, choice.logprobs, 0)
            listed.append(entry)
        return {**self._head, "object": kind, "choices": listed, "usage": self.usage(choices)}

    def first_chunk(self, index: int) -> dict:
        """Of a chat: who speaks."""
        return self._chunk(index, {"delta": {"role": "assistant", "content": ""}}, None)

    def chunk(self, index: int, event, offset: int) -> dict:
        """What a step added to a choice; `offset` is the number of characters before it."""
        if self._chat:
            entry = {"delta": {"content": event.text} if event.text else {}}
        else:
            entry = {"text": event.text}
        entry["logprobs"] = self._logprobs(event.token_ids, event.logprobs or [], offset)
        return self._chunk(index, entry, event.finish_reason)

    def usage_chunk(self, choices: list[Choice]) -> dict:
        return {**self._head, "object": self._kind, "choices": [], "usage": self.usage(choices)}

    def usage(self, choices: list[Choice]) -> dict:
        """Drafts are counted where OpenAI counts predicted tokens."""
        tokens = sum(len(choice.tokens) for choice in choices)
        accepted = sum(choice.accepted for choice in choices)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self._prompt_tokens + tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": sum(c.verified for c in choices) - accepted,
            },
        }

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _chunk(self, index: int, entry: dict, finish_reason: str | None) -> dict:
        choice = {"index": index, **entry, "finish_reason": finish_reason}
        return {**self._head, "object": self._kind, "choices": [choice]}

    def _logprobs(self, tokens: list[int], logprobs: list, offset: int) -> dict | None:
        if not logprobs:
            return None
        names = [self._decode([token]) for token in tokens]
        if self._chat:
            return {
                "content": [
                    self._entry(name, each.logprob)
                    | {
                        "top_logprobs": [
                            self._entry(self._decode([token]), value) for token, value in each.top
                        ]
                    }
                    for name, each in zip(names, logprobs)
                ]
            }
        offsets = [offset + sum(map(len, names[:index])) for index in range(len(names))]
        return {
            "tokens": names,
            "token_logprobs": [_finite(each.logprob) for each in logprobs],
            "top_logprobs": [self._by_name(each.top) for each in logprobs],
            "text_offset": offsets,
        }

    def _by_name(self, top) -> dict[str, float]:
        """Of tokens of one name (parts of characters, say) the most probable."""
        found: dict[str, float] = {}
        for token, value in top:
            found.setdefault(self._decode([token]), _finite(value))
        return found

    @staticmethod
    def _entry(name: str, logprob: float) -> dict:
        """A part of a character has no text, and its bytes are not known."""
        known = "\N{REPLACEMENT CHARACTER}" not in name
        data = list(name.encode()) if known else None
        return {"token": name, "logprob": _finite(logprob), "bytes": data}


def _finite(value: float) -> float:
    return value if math.isfinite(value) else LOWEST_LOGPROB
