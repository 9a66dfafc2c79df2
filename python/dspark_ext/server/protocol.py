"""The bodies of /v1/completions and /v1/chat/completions, read into what the engine takes."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ..engine import SamplingParams
from .errors import ApiError, invalid
from .fields import Fields, shown
from .limits import ServerLimits

COMPLETION_MAX_TOKENS = 16  # OpenAI's default
ENGINE_NAMES = {"min_tokens": "min_new_tokens", "max_tokens": "max_new_tokens"}
_ROLES = ("system", "developer", "user", "assistant")


@dataclasses.dataclass
class Ask:
    """What a client wants.

    prompts        texts or token ids; a chat has one
    messages       of a chat, before the template; None for completions
    params         of the first choice; `max_new_tokens` 0 stands for what the context leaves
    choices        per prompt; choice i > 0 has the seed of the first plus i
    """

    prompts: list
    messages: list[dict[str, str]] | None
    params: dict[str, Any]
    choices: int
    stream: bool
    include_usage: bool

    def sampling_params(self, choice: int, stop_ids: tuple[int, ...], room: int) -> SamplingParams:
        """ValueError names the parameter."""
        values = {**self.params}
        ends = () if values.pop("ignore_eos") else stop_ids
        values["stop_token_ids"] = (*ends, *values["stop_token_ids"])
        values["max_new_tokens"] = values["max_new_tokens"] or room
        if values["seed"] is not None:
            values["seed"] = (values["seed"] + choice + 2**63) % 2**64 - 2**63
        return SamplingParams(**values)


def read_completion(body: dict[str, Any], limits: ServerLimits, models: tuple[str, ...]) -> Ask:
    fields = Fields(body)
    _check_model(fields, models)
    prompts = _prompts(fields.take_any("prompt"))
    logprobs = fields.take("logprobs", int, None, 0, limits.max_top_logprobs)
    params = _params(fields, limits) | {"logprobs": logprobs}
    params["max_new_tokens"] = fields.take("max_tokens", int, COMPLETION_MAX_TOKENS, 1)
    fields.refuse("echo", False, why="echoing the prompt is not supported")
    fields.refuse("suffix", "", why="filling in before a suffix is not supported")
    fields.refuse("best_of", body.get("n") or 1, why="expected best_of = n")
    return _finish(fields, limits, prompts, None, params)


def read_chat(body: dict[str, Any], limits: ServerLimits, models: tuple[str, ...]) -> Ask:
    fields = Fields(body)
    _check_model(fields, models)
    messages = _messages(fields.take_any("messages"))
    params = _params(fields, limits)
    wanted = fields.take("logprobs", bool, False)
    top = fields.take("top_logprobs", int, None, 0, limits.max_top_logprobs)
    if top is not None and not wanted:
        raise invalid("top_logprobs", "only read with logprobs = true")
    params["logprobs"] = (top or 0) if wanted else None
    newer = fields.take("max_completion_tokens", int, None, 1)
    older = fields.take("max_tokens", int, None, 1)
    if newer is not None and older not in (None, newer):
        raise invalid("max_tokens", f"contradicts max_completion_tokens {newer}")
    params["max_new_tokens"] = newer or older or 0
    for name in ("tools", "functions"):
        fields.refuse(name, [], why="tools are not supported")
    for name in ("tool_choice", "function_call"):
        fields.refuse(name, "none", "auto", why="tools are not supported")
    fields.refuse("response_format", {"type": "text"}, why="only plain text is supported")
    fields.refuse("modalities", ["text"], why="only text is supported")
    fields.ignore("parallel_tool_calls")
    return _finish(fields, limits, [None], messages, params)


def _finish(fields: Fields, limits: ServerLimits, prompts, messages, params) -> Ask:
    choices = fields.take("n", int, 1, 1, limits.max_choices)
    if choices * len(prompts) > limits.max_choices:
        raise invalid("n", f"{len(prompts)} prompts times {choices} exceeds {limits.max_choices}")
    stream = fields.take("stream", bool, False)
    include_usage = _stream_options(fields.take_any("stream_options"), stream)
    fields.ignore("user", "metadata", "store", "service_tier", "safety_identifier")
    fields.end()
    return Ask(prompts, messages, params, choices, stream, include_usage)


def _params(fields: Fields, limits: ServerLimits) -> dict[str, Any]:
    return {
        "temperature": fields.take("temperature", float, 1.0, 0, 100),
        "top_p": fields.take("top_p", float, 1.0),
        "top_k": max(0, fields.take("top_k", int, 0, -1, 2**31 - 1)),  # -1: off, as in vLLM
        "min_p": fields.take("min_p", float, 0.0),
        "seed": fields.take("seed", int, None, -(2**63), 2**63 - 1),
        "min_new_tokens": fields.take("min_tokens", int, 0, 0, 2**31 - 1),
        "stop": _stop(fields.take_any("stop"), limits),
        "stop_token_ids": _ids("stop_token_ids", fields.take_any("stop_token_ids")) or (),
        "ignore_eos": fields.take("ignore_eos", bool, False),
        "allowed_token_ids": _ids("allowed_token_ids", fields.take_any("allowed_token_ids")),
        "logit_bias": _bias(fields.take_any("logit_bias")),
        "presence_penalty": fields.take("presence_penalty", float, 0.0, -2, 2),
        "frequency_penalty": fields.take("frequency_penalty", float, 0.0, -2, 2),
        "repetition_penalty": fields.take("repetition_penalty", float, 1.0),
    }


def _bias(value) -> tuple[tuple[int, float], ...]:
    """{"token id": -100 .. 100}"""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise invalid("logit_bias", "expected an object of token ids and numbers", "invalid_type")
    pairs = []
    for token, bias in value.items():
        where = f"logit_bias.{token[:100]}"
        if not re.fullmatch("[0-9]{1,18}", token):
            raise invalid(where, "expected a token id as the name")
        fits = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not fits or not -100 <= bias <= 100:
            raise invalid(where, f"expected a number from -100 to 100, got {shown(bias)}")
        pairs.append((int(token), float(bias)))
    return tuple(pairs)


def _ids(name: str, value) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not _is_ids(value) and value != []:
        raise invalid(name, "expected a list of token ids", "invalid_type")
    return tuple(value)


def _check_model(fields: Fields, models: tuple[str, ...]) -> None:
    name = fields.take("model", str, models[0])
    if name not in models:
        message = f"model: expected one of {', '.join(models)}"
        raise ApiError(404, message, "model", "model_not_found")


def _stop(value, limits: ServerLimits) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise invalid("stop", "expected a string or a list of strings, none empty", "invalid_type")
    if len(stops) > limits.max_stop_strings:
        raise invalid("stop", f"expected at most {limits.max_stop_strings} strings")
    if any(len(each) > limits.max_stop_length for each in stops):
        raise invalid("stop", f"expected strings of at most {limits.max_stop_length} characters")
    return tuple(stops)


def _stream_options(value, stream: bool) -> bool:
    if value is None:
        return False
    if not stream:
        raise invalid("stream_options", "only read with stream = true")
    if not isinstance(value, dict):
        raise invalid("stream_options", "expected an object", "invalid_type")
    options = Fields(value)
    include_usage = options.take("include_usage", bool, False)
    options.end()
    return include_usage


def _prompts(value) -> list:
    """A string, token ids, or a list of either."""
    if isinstance(value, str) or _is_ids(value):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(each, str) for each in value) or all(_is_ids(each) for each in value):
            return value
    raise invalid("prompt", "expected a string, token ids, or a list of either", "invalid_type")


def _is_ids(value) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def _messages(value) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise invalid("messages", "expected a list of messages, not empty", "invalid_type")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _message(where: str, message) -> dict[str, str]:
    if not isinstance(message, dict):
        raise invalid(where, "expected an object", "invalid_type")
    role = message.get("role")
    if role not in _ROLES:
        raise invalid(f"{where}.role", f"expected one of {', '.join(_ROLES)}")
    for name in message:
        if name not in ("role", "content", "name") and message[name] not in (None, []):
            raise invalid(f"{where}.{name[:100]}", "not supported", "unsupported_value")
    content = _content(f"{where}.content", message.get("content"))
    return {"role": "system" if role == "developer" else role, "content": content}


def _content(where: str, content) -> str:
    """A string, or a list of parts that are text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(where, "expected a string or a list of text parts", "invalid_type")
    for part in content:
        good = isinstance(part, dict) and part.get("type") == "text"
        if not good or not isinstance(part.get("text"), str):
            raise invalid(where, "only parts of type text are supported", "unsupported_value")
    return "".join(part["text"] for part in content)
