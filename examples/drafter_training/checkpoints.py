"""Where a run stands, in one safetensors file that is written whole or not at all.

Tensors are weights, averages and the optimizers' state; step, counters and settings are JSON in the
file's header. Batches are a function of seed and step, so there is no random state to keep.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT = "dspark_ext.training_checkpoint.v1"
STATE = ("step", "anchors", "tokens", "seconds", "window")


class ResumeError(ValueError):
    """There is nothing to continue, or not with these settings; the message lists every finding."""


def write(path: Path, tensors: dict[str, Tensor], state: dict) -> None:
    """Replaces `path`; whatever interrupts this leaves the old file or the new one."""
    partial = path.with_name(path.name + ".part")
    contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
    try:
        save_file(contiguous, partial, metadata={"format": FORMAT, "state": json.dumps(state)})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from None
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, Tensor], dict]:
    """What `write` got."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError) as error:
        raise ResumeError(f"resume: {path}: {error}") from error
    if metadata.get("format") != FORMAT:
        raise ResumeError(
            f"resume: {path}: format: expected {FORMAT!r}, got {metadata.get('format')!r}"
        )
    try:
        return tensors, dict(json.loads(metadata["state"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ResumeError(f"resume: {path}: state: {error!r}") from None


def check_whole(
    path: Path, found: dict[str, Tensor], state: dict, wanted: dict[str, Tensor]
) -> None:
    """Raises ResumeError naming what of `STATE` and of the tensors `wanted` the checkpoint lacks, and
    the tensors of another shape."""
    problems = [f"missing {name}" for name in (*STATE, *wanted) if name not in {**state, **found}]
    problems += [
        f"{name}: expected {list(value.shape)}, found {list(found[name].shape)}"
        for name, value in wanted.items()
        if name in found and found[name].shape != value.shape
    ]
    if problems:
        raise ResumeError(f"resume: {path}: " + "; ".join(problems))


def check_same(path: Path, found: dict, wanted: dict) -> None:
    """Raises ResumeError naming every key of `wanted` that the checkpoint has otherwise."""
    problems = []
    for name, value in wanted.items():
        value = json.loads(json.dumps(value))
        theirs = found.get(name)
        if isinstance(value, dict) and isinstance(theirs, dict):
            for key in sorted(value.keys() | theirs.keys()):
                if value.get(key) != theirs.get(key):
                    problems.append(
                        f"{name}.{key}: begun with {theirs.get(key)!r}, now {value.get(key)!r}"
                    )
        elif value != theirs:
            problems.append(f"{name}: begun with {theirs!r}, now {value!r}")
    if problems:
        raise ResumeError(f"resume: {path}: " + "; ".join(problems))
