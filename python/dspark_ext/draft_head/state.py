"""The state of one request in a draft head's context, for hand-over between processes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .files import replace_file

FORMAT = "dspark_ext.draft_context.v1"


@dataclasses.dataclass
class ContextState:
    """What a block behind the last position needs, and what it belongs to.

    header     format, flavour, layers, entries, dtype, window: strings, all compared on import
    positions  int64 [n], ascending without gaps, the last n of the request
    tensors    name -> [num_layers, n, ...]
    """

    header: dict[str, str]
    positions: Tensor
    tensors: dict[str, Tensor]

    @property
    def length(self) -> int:
        """Positions of the request, those included that no window needs any more."""
        return int(self.positions[-1]) + 1 if len(self.positions) else 0

    def save(self, path: str | Path) -> None:
        """One safetensors file, whole or not at all."""
        from safetensors.torch import save_file

        tensors = {name: value.contiguous() for name, value in self.tensors.items()}
        tensors["positions"] = self.positions
        replace_file(Path(path), lambda file: save_file(tensors, file, metadata=self.header))

    @classmethod
    def load(cls, path: str | Path) -> ContextState:
        """What `save` wrote; `import_state` checks it."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}
                header = file.metadata() or {}
        except SafetensorError as error:
            raise ValueError(f"{path}: {error}") from None
        if "positions" not in tensors:
            raise ValueError(f"{path}: positions: missing, this is no draft context state")
        return cls(header, tensors.pop("positions"), tensors)

    def check(self, expected: Mapping[str, str], layers: Mapping[str, int], entries) -> None:
        """Raises ValueError naming the first field that does not fit."""
        for field, value in expected.items():
            if self.header.get(field) != value:
                raise _mismatch(field, value, self.header.get(field))
        window, positions = json.loads(expected["window"]), self.positions
        if positions.dtype != torch.int64 or positions.dim() != 1:
            found = f"{_dtype_name(positions.dtype)} {list(positions.shape)}"
            raise _mismatch("positions", "int64 [n]", found)
        count = len(positions)
        first = 0 if window is None else max(0, self.length - window)
        if count != self.length - first or not torch.equal(
            positions, torch.arange(first, first + count)
        ):
            expectation = f"{first}..{self.length - 1} in order" if count else "no position"
            raise _mismatch("positions", expectation, positions.tolist()[:8])
        if sorted(self.tensors) != sorted(entries):
            raise _mismatch("tensors", sorted(entries), sorted(self.tensors))
        for name, shape in entries.items():
            wanted, tensor = (layers[name], count, *shape), self.tensors[name]
            found = f"{_dtype_name(tensor.dtype)} {list(tensor.shape)}"
            if tuple(tensor.shape) != wanted or _dtype_name(tensor.dtype) != expected["dtype"]:
                raise _mismatch(f"tensors[{name!r}]", f"{expected['dtype']} {list(wanted)}", found)


def state_header(
    flavour: str, num_layers: int, entries: Mapping[str, tuple[int, ...]], window, dtype
) -> dict[str, str]:
    """The header of a state that a context of these sizes exports and accepts."""
    return {
        "format": FORMAT,
        "flavour": flavour,
        "num_layers": str(num_layers),
        "entries": json.dumps({name: list(shape) for name, shape in sorted(entries.items())}),
        "dtype": _dtype_name(dtype),
        "window": json.dumps(window),
    }


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _mismatch(field: str, expected, got) -> ValueError:
    return ValueError(
        f"dspark_ext.draft_head: import_state: {field}: expected {expected}, got {got}"
    )
