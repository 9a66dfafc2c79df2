"""The safetensors files of a checkpoint: which tensors they hold, and reading the ones asked for.

Nothing here trusts the files. The safetensors library checks each header against its file; an index
names plain files of its own directory; JSON is only parsed. There is no pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"


class CheckpointError(ValueError):
    """All that is wrong with a checkpoint. `groups`: kind of finding -> list of findings."""

    def __init__(self, where: str, groups: Mapping[str, list[str]]) -> None:
        self.groups = {kind: list(found) for kind, found in groups.items() if found}
        lines = [f"{where}:"]
        for kind, found in self.groups.items():
            lines.append(f"  {kind} ({len(found)}):")
            lines += [f"    {finding}" for finding in found]
        super().__init__("\n".join(lines))


class Findings:
    """Collects what is wrong, so that one error can tell all of it."""

    def __init__(self, where: object) -> None:
        self.where, self.groups = str(where), {}

    def add(self, kind: str, finding: str) -> None:
        self.groups.setdefault(kind, []).append(finding)

    def raise_if_any(self) -> None:
        if self.groups:
            raise CheckpointError(self.where, self.groups)


@dataclass(frozen=True)
class Entry:
    """One tensor as a file's header describes it; dtype in safetensors' words ("BF16")."""

    file: Path
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class CheckpointFiles:
    """A safetensors file, or a directory with model.safetensors, a sharded model and its index, or
    any one safetensors file.

    names   of all tensors, by the index or by the one file; nothing else has been opened
    file    the one file, or None if there are shards
    config  the parsed config.json beside the file or in the directory, or None
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        findings = Findings(self.path)
        self._shards: dict[str, Path] | None = None  # name -> file, as the index has it
        self.file: Path | None = None
        self.metadata: dict[str, str] = {}  # in the header of the file opened last
        if self.path.is_dir():
            directory = self.path
            if (directory / INDEX).is_file():
                self._shards = _read_index(directory, findings)
                if (directory / SINGLE).is_file() and SINGLE not in {
                    file.name for file in self._shards.values()
                }:
                    findings.add("ambiguous", f"{SINGLE}, and shards that {INDEX} names without it")
            else:
                self.file = _only_file(directory, findings)
        elif self.path.is_file() and self.path.name.endswith(".index.json"):
            findings.add("missing files", f"{self.path.name} is an index; name its directory")
        elif self.path.is_file():
            directory, self.file = self.path.parent, self.path
        else:
            findings.add("missing files", f"{self.path} is no file and no directory")
        findings.raise_if_any()
        if self._shards is None:
            self.names = sorted(self._header(self.file, findings))
        else:
            self.names = sorted(self._shards)
        self.config = _read_config(directory / CONFIG, findings)
        findings.raise_if_any()

    def entries(self, wanted: Callable[[str], bool], findings: Findings) -> dict[str, Entry]:
        """Descriptions of the wanted tensors; only the files that hold one of them are opened."""
        if self._shards is None:
            header = self._header(self.file, findings)
            return {name: entry for name, entry in header.items() if wanted(name)}
        promised = {name: file for name, file in self._shards.items() if wanted(name)}
        found: dict[str, Entry] = {}
        for file in sorted(set(promised.values())):
            header = self._header(file, findings) if _exists(file, findings) else None
            if header is None:
                continue
            names = {name for name in header if wanted(name)}
            for name in sorted(names):
                if name not in promised:
                    findings.add("not in the index", f"{name} of {file.name}")
                elif promised[name] != file:
                    findings.add("duplicate", f"{name} in {promised[name].name} and {file.name}")
                else:
                    found[name] = header[name]
            for name in sorted(n for n, f in promised.items() if f == file and n not in names):
                findings.add("not in the shard", f"{name}: the index places it in {file.name}")
        return found

    def read(self, entries: Mapping[str, Entry], device="cpu") -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of `entries`, file by file."""
        from safetensors import safe_open

        for file in sorted({entry.file for entry in entries.values()}):
            with safe_open(file, "pt", device=str(device)) as opened:
                for name, entry in entries.items():
                    if entry.file == file:
                        yield name, opened.get_tensor(name)

    def _header(self, file: Path, findings: Findings) -> dict[str, Entry]:
        header, self.metadata = read_header(file, findings)
        return header


def read_header(file: Path, findings: Findings) -> tuple[dict[str, Entry], dict[str, str]]:
    """Name -> entry of a safetensors file, and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            slices = ((name, opened.get_slice(name)) for name in opened.keys())
            entries = {
                name: Entry(file, part.get_dtype(), tuple(part.get_shape()))
                for name, part in slices
            }
            return entries, dict(opened.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        findings.add("unreadable files", f"{file.name}: {error}")
        return {}, {}


def check_d2t(offsets: Tensor, vocab_size: int, findings: Findings) -> None:
    """Each draft id stands for one target id inside the vocabulary, no two for the same."""
    targets = torch.arange(len(offsets), device=offsets.device) + offsets
    outside = ((targets < 0) | (targets >= vocab_size)).nonzero()[:, 0]
    if len(outside):
        first = int(outside[0])
        findings.add(
            "d2t",
            f"{len(outside)} draft ids lead outside [0, {vocab_size}), the first is "
            f"{first}: {first} + {int(offsets[first])}",
        )
    elif len(targets.unique()) != len(targets):
        values, counts = targets.unique(return_counts=True)
        twice = int(values[counts > 1][0])
        drafts = (targets == twice).nonzero()[:2, 0].tolist()
        findings.add("d2t", f"draft ids {drafts[0]} and {drafts[1]} both lead to {twice}")


def names_below(prefixes: Iterable[str]) -> Callable[[str], bool]:
    """Whether a name starts with one of the prefixes."""
    prefixes = tuple(prefixes)
    return lambda name: name.startswith(prefixes)


def _exists(file: Path, findings: Findings) -> bool:
    if file.is_file():
        return True
    findings.add("missing files", f"{file.name}: named by {INDEX}")
    return False


def _only_file(directory: Path, findings: Findings) -> Path | None:
    if (directory / SINGLE).is_file():
        return directory / SINGLE
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    found = ", ".join(file.name for file in files) or "no *.safetensors"
    findings.add("missing files", f"{directory} has neither {SINGLE} nor {INDEX}, but {found}")
    return None


def _read_index(directory: Path, findings: Findings) -> dict[str, Path]:
    values = _read_json(directory / INDEX, findings)
    if values is None:
        return {}
    weight_map = values.get("weight_map")
    if not isinstance(weight_map, dict):
        findings.add("unreadable files", f"{INDEX}: weight_map: expected an object")
        return {}
    shards = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file or Path(file).name != file or "\\" in file:
            findings.add(
                "outside the directory", f"{name}: {file!r} is not the plain name of a file"
            )
        elif not file.endswith(".safetensors"):
            findings.add("outside the directory", f"{name}: {file!r} is no safetensors file")
        else:
            shards[name] = directory / file
    return shards


def _read_config(file: Path, findings: Findings) -> dict | None:
    return _read_json(file, findings) if file.is_file() else None


def _read_json(file: Path, findings: Findings) -> dict | None:
    """A JSON object. A key that occurs twice is a finding: readers would differ on its value."""

    def unique(pairs: list[tuple[str, object]]) -> dict:
        values = dict(pairs)
        if len(values) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise ValueError(f"these keys occur twice: {', '.join(twice)}")
        return values

    try:
        values = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=unique)
        if not isinstance(values, dict):
            raise ValueError("expected an object")
        return values
    except (OSError, ValueError, RecursionError) as error:
        findings.add("unreadable files", f"{file.name}: {error}")
        return None
