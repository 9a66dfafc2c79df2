"""The arguments of sampling, and `SamplingParams` made of them."""

from __future__ import annotations

from .errors import told_of

FIELDS = {
    "temperature": (float, 0.0, "0 is greedy"),
    "top_k": (int, 0, "the k likeliest tokens only; 0 = off"),
    "top_p": (float, 1.0, "the likeliest tokens with this mass; 1 = off"),
    "min_p": (float, 0.0, "tokens at least so likely, relative to the likeliest; 0 = off"),
    "presence_penalty": (float, 0.0, "off the logits of emitted tokens, once"),
    "frequency_penalty": (float, 0.0, "off the logits of emitted tokens, each time"),
    "repetition_penalty": (float, 1.0, "divides logits of tokens of prompt and answer; 1 = off"),
    "seed": (int, None, "the same seed gives the same tokens"),
    "max_new_tokens": (int, 128, "most tokens of an answer"),
}


def add_arguments(parser, **defaults) -> None:
    """One option per field; `defaults` replaces default values."""
    group = parser.add_argument_group("sampling")
    for name, (kind, default, text) in FIELDS.items():
        default = defaults.get(name, default)
        shown = "" if default is None else f" (default: {default})"
        group.add_argument(
            "--" + name.replace("_", "-"), type=kind, default=default, help=text + shown
        )


def check(options) -> None:
    """Complain about the options before anything is loaded."""
    from ..engine import SamplingParams

    with told_of("sampling", ValueError, TypeError):
        SamplingParams(**{name: getattr(options, name) for name in FIELDS})


def read(options, served, own: dict | None = None, index: int | None = None):
    """`SamplingParams` of the options, or of a prompt's own values where it has them."""
    from ..engine import SamplingParams

    values = {name: getattr(options, name) for name in FIELDS} | (own or {})
    where = "sampling" if not own else f"PROMPT {index + 1}"
    with told_of(where, ValueError, TypeError):
        return SamplingParams(**values, stop_token_ids=served.stop_ids)


def read_all(options, served, prompts) -> list:
    """One for each prompt."""
    return [read(options, served, prompt.params, i) for i, prompt in enumerate(prompts)]
