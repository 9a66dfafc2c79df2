"""The state of one request, as it goes from one process to another.

One safetensors file, or the same bytes over a torch.distributed group: tensors, and a header of
JSON text. Nothing in it is executed when it is read.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

FORMAT = "dspark_ext.request"
VERSION = 1
MAX_BYTES = 1 << 36
_KEY = "dspark_ext.request"
_PARTS = ("target", "drafter")


class HandoverError(ValueError):
    """A request's state that cannot be read, or does not belong here; the message says why."""


@dataclasses.dataclass
class RequestState:
    """What another engine needs to go on with a request.

    request    numbers and settings: plain JSON values, see `handover.export_request`
    identity   part ("target", "drafter") -> what made it, by name; compared on import
    token_ids  int64 [n]: the prompt, then what was emitted
    tensors    part -> name -> tensor, on the CPU. No "target": the keys and values are not in it.
    """

    request: dict[str, Any]
    identity: dict[str, dict[str, str]]
    token_ids: torch.Tensor
    tensors: dict[str, dict[str, torch.Tensor]]

    def to_bytes(self) -> bytes:
        from safetensors.torch import save

        header = {
            "format": FORMAT,
            "version": VERSION,
            "request": self.request,
            "identity": self.identity,
            "parts": sorted(self.tensors),
        }
        tensors = {"token_ids": self.token_ids}
        for part, named in self.tensors.items():
            for name, tensor in named.items():
                tensors[f"{part}/{name}"] = tensor.detach().cpu().contiguous()
        return save(tensors, metadata={_KEY: json.dumps(header)})

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "state") -> RequestState:
        """What `to_bytes` gave. HandoverError, which begins with `name`, for anything else."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        except (SafetensorError, ValueError, KeyError, RecursionError) as error:
            raise HandoverError(f"{name}: not a safetensors file: {error}") from None
        text = header.get("__metadata__", {}).get(_KEY)
        if text is None:
            raise HandoverError(f"{name}: header: no {_KEY!r}: this is no state of a request")
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise HandoverError(f"{name}: header: not JSON: {error}") from None
        return cls(*_read(header, tensors, name))

    def save(self, path: str | Path) -> None:
        """Write a file; it has its name only when it is whole."""
        path = Path(path)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(self.to_bytes())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> RequestState:
        """What `save` wrote. HandoverError for another file, OSError for none."""
        return cls.from_bytes(Path(path).read_bytes(), str(path))

    def send(self, rank: int, group=None, device: torch.device | str = "cpu") -> None:
        """Send it to `rank` of torch.distributed, which calls `receive`. HandoverError if it is
        refused there.

        device  where the group's backend wants its tensors: "cpu" for gloo, a GPU for nccl
        """
        import torch.distributed as distributed

        data = torch.frombuffer(bytearray(self.to_bytes()), dtype=torch.uint8).to(device)
        distributed.send(torch.tensor([VERSION, len(data)], device=device), rank, group=group)
        accepted = torch.zeros(1, dtype=torch.int64, device=device)
        distributed.recv(accepted, rank, group=group)
        if not int(accepted):
            raise HandoverError(
                f"state for rank {rank}: refused there (version {VERSION}, {len(data)} bytes)"
            )
        distributed.send(data, rank, group=group)

    @classmethod
    def receive(
        cls,
        rank: int,
        group=None,
        device: torch.device | str = "cpu",
        max_bytes: int = MAX_BYTES,
    ) -> RequestState:
        """What `rank` sends. A state of more than `max_bytes` is a HandoverError, before any
        memory is taken for it."""
        import torch.distributed as distributed

        head = torch.zeros(2, dtype=torch.int64, device=device)
        distributed.recv(head, rank, group=group)
        version, size = head.tolist()
        fits = version == VERSION and 0 < size <= max_bytes
        distributed.send(torch.tensor([int(fits)], device=device), rank, group=group)
        name = f"state from rank {rank}"
        if version != VERSION:
            raise HandoverError(f"{name}: version: expected {VERSION}, got {version}")
        if not fits:
            raise HandoverError(f"{name}: size: expected 1..{max_bytes} bytes, got {size}")
        data = torch.empty(size, dtype=torch.uint8, device=device)
        distributed.recv(data, rank, group=group)
        return cls.from_bytes(data.cpu().numpy().tobytes(), name)

    def check_identity(self, part: str, expected: Mapping[str, str]) -> None:
        """HandoverError naming the first field in which the maker of a part is another."""
        found = self.identity.get(part, {})
        for field in [*expected, *(each for each in found if each not in expected)]:
            if expected.get(field) != found.get(field):
                raise HandoverError(
                    f"dspark_ext.engine.handover: {part}: {field}: expected "
                    f"{expected.get(field)!r}, got {found.get(field)!r}"
                )


def take(
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, tuple[torch.dtype, tuple]],
    part: str,
) -> list[torch.Tensor]:
    """The tensors of a part by name, checked: name -> (dtype, shape), -1 = any size."""
    for name in [*expected, *tensors]:
        if (name in expected) != (name in tensors):
            state = "missing" if name in expected else "unexpected"
            raise HandoverError(f"dspark_ext.engine.handover: {part}: tensor {name!r}: {state}")
    for name, (dtype, shape) in expected.items():
        tensor = tensors[name]
        fits = tensor.dim() == len(shape) and all(
            wanted in (-1, got) for wanted, got in zip(shape, tensor.shape)
        )
        if tensor.dtype != dtype or not fits:
            raise HandoverError(
                f"dspark_ext.engine.handover: {part}: tensor {name!r}: expected {dtype} "
                f"{list(shape)}, got {tensor.dtype} {list(tensor.shape)}"
            )
    return [tensors[name] for name in expected]


def _read(header: Any, tensors: dict[str, torch.Tensor], name: str) -> tuple:
    def require(field: str, expectation: str, found: Any, fits: bool) -> None:
        if not fits:
            raise HandoverError(f"{name}: {field}: expected {expectation}, got {str(found)[:80]}")

    require("header", "an object", header, isinstance(header, dict))
    found = header.get("format"), header.get("version")
    require("format", f"{FORMAT!r}", found[0], found[0] == FORMAT)
    require("version", str(VERSION), found[1], found[1] == VERSION)
    request, identity, parts = (header.get(key) for key in ("request", "identity", "parts"))
    require("request", "an object", request, isinstance(request, dict))
    named = isinstance(identity, dict) and all(
        part in _PARTS
        and isinstance(fields, dict)
        and all(isinstance(value, str) for value in fields.values())
        for part, fields in identity.items()
    )
    require("identity", "texts by part and field", identity, named)
    known = isinstance(parts, list) and all(part in _PARTS for part in parts)
    require("parts", f"some of {', '.join(_PARTS)}", parts, known)
    token_ids = tensors.pop("token_ids", None)
    expectation = "int64 [n], n >= 1"
    require("token_ids", expectation, None, token_ids is not None)
    fits = token_ids.dtype == torch.int64 and token_ids.dim() == 1 and len(token_ids) > 0
    require("token_ids", expectation, f"{token_ids.dtype} {list(token_ids.shape)}", fits)
    by_part: dict[str, dict[str, torch.Tensor]] = {part: {} for part in parts}
    for key, tensor in tensors.items():
        part, _, rest = key.partition("/")
        require("tensors", f"those of {', '.join(parts) or 'no part'}", key, part in by_part)
        by_part[part][rest] = tensor
    return request, identity, token_ids, by_part
