"""Reading the fields of a JSON body, each once and checked; what is left over is an error."""

from __future__ import annotations

import difflib
import json
import math
from typing import Any

from .errors import ApiError, invalid

_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def parse_body(body: bytes) -> dict[str, Any]:
    """A JSON object; NaN and Infinity, which JSON does not have, are refused."""

    def refuse(word: str):
        raise ValueError(f"{word} is not JSON")

    try:
        values = json.loads(body, parse_constant=refuse)
        json.dumps(values, ensure_ascii=False).encode()  # what an answer may have to repeat
    except UnicodeEncodeError:
        raise ApiError(
            400, "the body has half a surrogate pair, which is no character", code="invalid_json"
        ) from None
    except (ValueError, RecursionError) as error:
        text = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"the body is not JSON: {text}", code="invalid_json") from None
    if not isinstance(values, dict):
        raise ApiError(
            400, f"the body has to be an object, got {type(values).__name__}", code="invalid_json"
        )
    return values


class Fields:
    """The fields of a body. A field that is null counts as absent."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._left = {name: value for name, value in body.items() if value is not None}
        self._known: set[str] = set()

    def take(self, name: str, kind: type, default=None, lowest=None, highest=None):
        """A value of the kind (an integer is a number, a boolean is neither), within bounds."""
        value = self.take_any(name)
        if value is None:
            return default
        fits = isinstance(value, int | float if kind is float else kind)
        if not fits or (kind is not bool and isinstance(value, bool)):
            raise invalid(name, f"expected {_NAMES[kind]}, got {shown(value)}", "invalid_type")
        if kind is float:
            value = _as_float(name, value)
        if (lowest is not None and value < lowest) or (highest is not None and value > highest):
            bounds = f"at least {lowest}" if highest is None else f"{lowest} to {highest}"
            raise invalid(name, f"expected {bounds}, got {shown(value)}")
        return value

    def take_any(self, name: str):
        """The value as it is; None if it is absent."""
        self._known.add(name)
        return self._left.pop(name, None)

    def refuse(self, name: str, *neutral, why: str) -> None:
        """A field that only its neutral values may be given for."""
        value = self.take_any(name)
        if value is not None and value not in neutral:
            raise invalid(name, f"{why}, got {shown(value)}", "unsupported_value")

    def ignore(self, *names: str) -> None:
        """Fields that say nothing about the answer."""
        for name in names:
            self.take_any(name)

    def end(self) -> None:
        for name in self._left:
            near = difflib.get_close_matches(name, self._known, n=1)
            hint = f" (nearest: {near[0]})" if near else ""
            raise invalid(name[:100], f"unknown field{hint}", "unknown_field")


def _as_float(name: str, value) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise invalid(name, "expected a finite number")
    return number


def shown(value) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "something nested deeply"
    return text if len(text) <= 60 else text[:57] + "..."
