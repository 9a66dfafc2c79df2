"""Prompts of the user: from arguments, files and standard input, as text or JSON lines."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

from .errors import UserError, told_of
from .sampling import FIELDS

FORMATS = ("auto", "text", "jsonl")


@dataclasses.dataclass(frozen=True)
class Prompt:
    """What was asked: a text, a conversation (messages) or token ids, one of them; `params` holds
    sampling parameters of this prompt alone."""

    text: str | None = None
    messages: list[dict] | None = None
    token_ids: list[int] | None = None
    params: dict = dataclasses.field(default_factory=dict)

    @property
    def given(self) -> str | list:
        """As it was given."""
        return next(x for x in (self.text, self.messages, self.token_ids) if x is not None)

    @property
    def label(self) -> str:
        """The prompt on one line, for tables."""
        if self.text is not None:
            return " ".join(self.text.split())
        if self.messages:
            return " ".join(str(self.messages[-1]["content"]).split())
        return f"{len(self.token_ids)} token ids"


def add_arguments(parser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument("prompts", nargs="*", metavar="PROMPT", help="a prompt; `-` reads stdin")
    group.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        help="prompts of a file: one a line, or JSON lines where it ends in .jsonl",
    )
    group.add_argument(
        "--format",
        choices=FORMATS,
        default="auto",
        help="of files and stdin; stdin that is text is one prompt, whole (default: auto)",
    )
    group.add_argument(
        "--raw", action="store_true", help="continue the text; no chat template around it"
    )


def read(options) -> list[Prompt]:
    """All prompts in the order of the arguments, then of the files; [] if none was given."""
    found = []
    for word in options.prompts:
        found += _of_stdin(options.format) if word == "-" else [Prompt(text=word)]
    for path in options.file:
        with told_of("--file"):
            source = path.read_text(encoding="utf-8-sig")
        lines = options.format == "jsonl" or (options.format == "auto" and path.suffix == ".jsonl")
        if lines:
            found += _of_lines(source, f"--file {path}")
        else:
            found += [Prompt(text=line) for line in source.split("\n") if line.strip()]
    for number, prompt in enumerate(found, 1):
        check_text(f"PROMPT {number}", prompt.text, *(m["content"] for m in prompt.messages or ()))
    if not found and (options.file or options.prompts):
        raise UserError("PROMPT: nothing but empty lines was given")
    return found


def check_text(where: str, *texts: str | None) -> None:
    """Complain about bytes that are no UTF-8, which arguments and stdin bring as surrogates."""
    for text in texts:
        at = re.search("[\ud800-\udfff]", text or "")
        if at is not None:
            raise UserError(
                f"{where}: expected UTF-8 text, got {at[0]!r} at character {at.start() + 1}"
            )


def built_in() -> list[Prompt]:
    """Three prompts the demo's drafter never saw."""
    from ..demo.prompts import DEMO

    return [Prompt(text=text) for text in DEMO.values()]


def encode(prompts: list[Prompt], served, raw: bool) -> list[list[int]]:
    """Token ids; texts and messages go through the chat template, where there is one and `raw` is
    False. Other texts begin with what the tokenizer begins a text with (a BOS token)."""
    encoded = []
    for index, prompt in enumerate(prompts):
        if prompt.token_ids is not None:
            encoded.append(prompt.token_ids)
            continue
        messages, text = prompt.messages, prompt.text
        if messages is None and served.chat is not None and not raw:
            messages = [{"role": "user", "content": text}]
        if messages is not None:
            if served.chat is None:
                raise UserError(f"PROMPT {index + 1}: messages: the target has no chat template")
            with told_of(f"PROMPT {index + 1}", ValueError):
                encoded.append(served.tokenizer.encode(served.chat(messages)))
        else:
            encoded.append(served.tokenizer.encode_text(text))
    return encoded


def _of_stdin(form: str) -> list[Prompt]:
    with told_of("stdin", ValueError):
        source = sys.stdin.read().removeprefix("\ufeff")
    if form == "jsonl":
        return _of_lines(source, "stdin")
    return [Prompt(text=source.rstrip("\n"))] if source.strip() else []


def _of_lines(source: str, where: str) -> list[Prompt]:
    found = []
    for number, line in enumerate(source.split("\n"), 1):  # other line ends may stand in texts
        if line.strip():
            found.append(_of_json(line, f"{where}, line {number}"))
    return found


def _of_json(line: str, where: str) -> Prompt:
    """A string, or an object with prompt (text or token ids) or messages, and sampling parameters
    under the names of `SamplingParams`."""
    with told_of(where, ValueError, RecursionError):
        value = json.loads(line)
    if isinstance(value, str):
        return Prompt(text=value)
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        raise UserError(f"{where}: expected a string or an object with `prompt` or `messages`")
    params = {name: each for name, each in value.items() if name not in ("prompt", "messages")}
    unknown = [name for name in params if name not in FIELDS]
    if unknown:
        raise UserError(f"{where}: unknown name {unknown[0]!r} (known: {', '.join(FIELDS)})")
    if "messages" in value:
        return Prompt(messages=_messages(value["messages"], where), params=params)
    prompt = value["prompt"]
    if isinstance(prompt, str):
        return Prompt(text=prompt, params=params)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return Prompt(token_ids=prompt, params=params)
    raise UserError(f"{where}: prompt: expected a text or a list of token ids")


def _messages(value, where: str) -> list[dict]:
    good = isinstance(value, list) and value
    for message in value if good else ():
        good = good and isinstance(message, dict)
        good = good and isinstance(message.get("content"), str)
        good = good and isinstance(message.get("role"), str)
    if not good:
        raise UserError(f"{where}: messages: expected a list of objects with role and content")
    return value
