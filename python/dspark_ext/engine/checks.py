"""Errors that name the setting, what was expected and what came."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def error(owner: str, text: str) -> ValueError:
    return ValueError(f"dspark_ext.engine.{owner}: {text}")


def is_int(value: Any, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest


def is_number(value: Any, lowest: float, highest: float) -> bool:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return good and lowest <= value <= highest


def require(owner: str, name: str, value: Any, expected: str, ok: Callable[[Any], bool]) -> None:
    try:
        passed = ok(value)
    except (TypeError, ValueError):
        passed = False
    if not passed:
        raise error(owner, f"{name}: expected {expected}, got {value!r}")


def require_choice(owner: str, name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise error(
            owner,
            f"{name}: expected one of {', '.join(choices)}, got {value!r} "
            f"(nearest: {nearest(value, choices)!r})",
        )


def nearest(name: Any, known: Sequence[str]) -> str:
    return difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)[0]


def require_known(owner: str, values: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in values:
        if name not in known:
            raise error(owner, f"unknown name {name!r} (nearest: {nearest(name, known)!r})")


def from_dict(cls, values: Mapping[str, Any]):
    """A dataclass from a mapping; an unknown name is an error that names the nearest."""
    require_known(cls.__name__, values, [field.name for field in dataclasses.fields(cls)])
    return cls(**values)
