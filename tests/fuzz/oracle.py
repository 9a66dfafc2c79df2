"""Runs a call and judges it: a result that the function may give, or an error that says what is
wrong; inputs as they were."""

from __future__ import annotations

import ctypes
import re
import traceback

import numpy as np
import torch
from calls import Call

# What torch says by itself, before the operator is reached or when there is no memory.
NO_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|Storage size calculation overflowed"
    r"|API call failed|invalid memory size|array is too big|numel: integer multiplication overflow"
)
NO_NUMBER = re.compile(
    r"Overflow when unpacking long|too large to convert|value cannot be converted to type"
    r"|int too (large|big) to convert|cannot convert float (NaN|infinity) to integer"
    r"|Python int too large"
)
NO_BACKEND = re.compile(r"Could not run 'dspark_ext::")
LARGEST_TAME = 1e4


class FindingError(Exception):
    """What a call did that no call may do."""


def tensors_of(value):
    """Every tensor in a value, named tuples and lists opened."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_of(item)


def bits(tensor: torch.Tensor) -> bytes | None:
    """All of its storage."""
    if tensor.is_meta or tensor.layout != torch.strided:
        return None
    storage = tensor.untyped_storage()
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def is_tame(call: Call) -> bool:
    """Whether every number is finite and moderate."""
    for name, value in call.arguments.items():
        if name in call.writes:
            continue
        for tensor in tensors_of(value):
            if tensor.is_meta:
                continue
            if tensor.dtype.itemsize == 1 or tensor.is_complex():
                if tensor.dtype not in (torch.bool, torch.uint8) or name in ("scale", "scales"):
                    values = tensor.float() if not tensor.is_complex() else tensor.real
                    if not bool((values.abs() <= LARGEST_TAME).all()):
                        return False
                if name.endswith(("scale", "scales", "weight", "w13", "w2")):
                    return False  # codes may stand for NaN
                continue
            if tensor.numel() and not bool((tensor.abs().float() <= LARGEST_TAME).all()):
                return False
        if isinstance(value, float) and not abs(value) <= LARGEST_TAME:
            return False
    return True


def words_of(call: Call) -> set[str]:
    words = {*call.arguments, *call.words}
    for value in call.arguments.values():
        words.update(getattr(value, "_fields", ()))
    return words


def names_what_is_wrong(call: Call, text: str) -> bool:
    found = re.search(r"dspark_ext(?:\.|::)(\w+)", text)
    names = {call.op, call.function.__name__, *call.ops}
    if found:
        return found[1] in names and any(
            re.search(rf"\b{re.escape(word)}\b", text) for word in words_of(call)
        )
    # functions of pure Python say their name without the package
    return text.startswith(f"{call.op}: ")


def judge_error(call: Call, mutations, error: Exception) -> None:
    text = str(error)
    kind = type(error)
    if kind in (RuntimeError, ValueError, NotImplementedError) and names_what_is_wrong(call, text):
        return
    if any(t.is_meta for v in call.arguments.values() for t in tensors_of(v)):
        # Without numbers there is only a rule of shapes, which takes what it is given for valid.
        if not issubclass(kind, (AssertionError, MemoryError)):
            return
    if any(m.is_foreign for m in mutations):
        # A value of a foreign type: Python and torch say so themselves.
        if kind in (TypeError, AttributeError, RuntimeError, ValueError, NotImplementedError):
            return
    allocating = any(m.name.split(".")[-1] in call.at_most for m in mutations)
    if NO_MEMORY.search(text) and (allocating or kind is MemoryError):
        return
    if kind in (RuntimeError, OverflowError, ValueError, TypeError) and NO_NUMBER.search(text):
        return
    if kind is NotImplementedError and NO_BACKEND.search(text):
        return
    raise FindingError(f"undocumented error {kind.__name__}: {text[:600]}\n{last_lines(error)}")


def last_lines(error: Exception) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-2:])


def run(call: Call, mutations=()) -> str:
    """ "result" or "error"; raises FindingError."""
    inputs = []
    for name, value in call.arguments.items():
        if name not in call.writes:
            inputs += [(name, tensor, bits(tensor)) for tensor in tensors_of(value)]
    result, error = None, None
    try:
        result = call.function(**call.arguments)
    except Exception as caught:  # judged below
        error = caught
    for name, tensor, before in inputs:
        if bits(tensor) != before:
            raise FindingError(f"{name}: the input was changed")
    if error is not None:
        if not mutations:
            raise FindingError(f"a valid call was refused: {error}")
        judge_error(call, mutations, error)
        return "error"
    on_meta = any(t.is_meta for v in call.arguments.values() for t in tensors_of(v))
    if mutations and (on_meta or any(m.is_foreign for m in mutations)):
        return "result"  # taken for what it stands for; a rule of shapes believes what it is given
    try:
        call.check(call.arguments, result, is_tame(call))
    except Exception as wrong:
        raise FindingError(
            f"wrong result: {type(wrong).__name__}: {wrong}\n{last_lines(wrong)}"
        ) from wrong
    return "result"


def describe(value) -> str:
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype)[6:]}{list(value.shape)} strides {list(value.stride())}"
        if value.is_meta:
            return f"{text} on meta"
        flat = value.detach().resolve_neg().reshape(-1)[:12]
        return f"{text} {np.array(flat.float() if flat.dtype.itemsize < 4 else flat).tolist()}"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = ", ".join(f"{k}={describe(v)}" for k, v in value._asdict().items())
        return f"{type(value).__name__}({fields})"
    return repr(value)
