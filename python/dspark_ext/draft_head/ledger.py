"""What a draft head is made of: parameters and bytes of each part.

    python -m dspark_ext.draft_head.ledger CHECKPOINT_OR_CONFIG

takes a safetensors file, a checkpoint's directory or a config.json; only headers are read.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from .compact import CompactDraftHead
from .compact_files import FORMAT
from .config import DraftHeadConfig, read_config
from .names import PARTS, own_name, part_of
from .quantized import QuantizedLinear


@dataclass(frozen=True)
class LedgerRow:
    """One part. Scales of blocks are no parameters; their bytes count."""

    part: str
    tensors: int
    parameters: int
    weight_bytes: int
    scale_bytes: int

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.scale_bytes


@dataclass(frozen=True)
class Ledger:
    """Rows in the order of `names.PARTS`, those that the head has."""

    title: str
    rows: tuple[LedgerRow, ...]

    @property
    def total(self) -> LedgerRow:
        columns = ("tensors", "parameters", "weight_bytes", "scale_bytes")
        sums = (sum(getattr(row, column) for row in self.rows) for column in columns)
        return LedgerRow("total", *sums)

    def __getitem__(self, part: str) -> LedgerRow:
        return next(row for row in self.rows if row.part == part)

    def to_dict(self) -> dict[str, Any]:
        rows = {row.part: asdict(row) | {"bytes": row.bytes} for row in (*self.rows, self.total)}
        for row in rows.values():
            del row["part"]
        return {"title": self.title, "parts": rows}

    def cells(self) -> list[tuple[str, ...]]:
        """The table as text: headings, a row for each part, the total."""
        head = ("part", "tensors", "parameters", "weights, bytes", "scales, bytes", "bits a weight")
        lines = [head]
        for row in (*self.rows, self.total):
            bits = f"{8 * row.bytes / row.parameters:.2f}" if row.parameters else ""
            numbers = (row.tensors, row.parameters, row.weight_bytes, row.scale_bytes)
            lines.append((row.part, *(f"{number:,}" for number in numbers), bits))
        return lines

    def table(self):
        """A rich.table.Table."""
        from rich.table import Table

        head, *rows, total = self.cells()
        table = Table(title=self.title)
        for index, heading in enumerate(head):
            table.add_column(heading, justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        table.add_section()
        table.add_row(*total, style="bold")
        return table

    def __str__(self) -> str:
        lines = self.cells()
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        text = [
            "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, *text])


def ledger(source: nn.Module | DraftHeadConfig | Mapping[str, Any] | str | Path) -> Ledger:
    """Counts a draft head.

    source  a head; a config, or a parsed config.json (built on the meta device: no memory is
            needed); a path as for the command line

    Raises ConfigError or CheckpointError for what cannot be read."""
    if isinstance(source, nn.Module):
        return _of_head(source)
    if isinstance(source, DraftHeadConfig):
        return _of_config(source)
    if isinstance(source, Mapping):
        return _of_config(read_config(source))
    path = Path(source)
    if path.suffix == ".json" and not path.name.endswith(".index.json"):
        return _of_config(read_config(json.loads(path.read_text(encoding="utf-8"))))
    return _of_checkpoint(path)


def _of_config(config: DraftHeadConfig) -> Ledger:
    from . import make_draft_head

    return _of_head(make_draft_head(config, device="meta"))


def _of_compact(title: str, names: Iterable[str], sizes) -> Ledger:
    """By parts of a released head. sizes(name) -> (numbers, bytes)."""
    pieces = (
        ("experts", ".ffn.experts."), ("shared experts", ".ffn.shared_experts."),
        ("routers", ".ffn.gate."), ("norms", "norm."), ("attention", ".attn."),
        ("main_proj", ".main_proj."), ("Markov", ".markov_head."),
        ("confidence", ".confidence_head."),
        ("vocabulary", ""),  # d2t and the embedding of the noise token
    )  # fmt: skip

    def part(name: str) -> str:
        return next(part for part, piece in pieces if piece in name)

    return _sum(title, ((name, *sizes(name)) for name in names), part)


def _of_head(head: nn.Module) -> Ledger:
    if isinstance(head, CompactDraftHead):
        tensors = head.named_tensors()
        return _of_compact(
            "draft head, compact", tensors, lambda n: (tensors[n].numel(), tensors[n].nbytes)
        )
    packed = {
        name
        for name, module in head.named_modules()
        if isinstance(module, QuantizedLinear) and module.format == "mxfp4"
    }
    counted = (
        (name, tensor.numel() * (2 if name.rpartition(".")[0] in packed else 1), tensor.nbytes)
        for name, tensor in head.state_dict().items()
    )
    return _sum(f"draft head, {head.config.flavour}", counted)


def _of_checkpoint(path: Path) -> Ledger:
    """By the headers alone, whether or not the tensors make up a head."""
    from .checkpoint_files import CheckpointFiles, Findings
    from .names import recognise_flavour

    files, findings = CheckpointFiles(path), Findings(path)
    if files.metadata.get("format") == FORMAT:
        found = files.entries(lambda name: True, findings)
        return _of_compact(f"{path}, compact", found, lambda name: _stored(found[name]))
    flavour = recognise_flavour(files.names)
    if flavour is None:
        findings.add("unexpected", "no tensor names of a released draft head")
    findings.raise_if_any()
    entries = files.entries(own_name(flavour), findings)
    for name in entries:
        try:
            part_of(name)
        except ValueError as error:
            findings.add("unexpected", str(error))
    findings.raise_if_any()
    counted = []
    for name, entry in entries.items():
        stored, size = _stored(entry)
        is_packed = name.endswith(".weight") and entry.dtype in ("I8", "U8")
        counted.append((name, stored * (2 if is_packed else 1), size))
    return _sum(f"{path}, {flavour}", counted)


def _stored(entry) -> tuple[int, int]:
    """Numbers and bytes of a tensor in a file."""
    numbers = math.prod(entry.shape)
    return numbers, _BITS.get(entry.dtype, 0) * numbers // 8


_BITS = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    "F4": 4,
}


def _sum(
    title: str, counted: Iterable[tuple[str, int, int]], part: Callable[[str], str] = part_of
) -> Ledger:
    """From (name, numbers, bytes) of each tensor, and the part that a name belongs to."""
    sums = {part: [0, 0, 0, 0] for part in PARTS}
    for name, numbers, size in counted:
        row = sums[part(name)]
        row[0] += 1
        # hc_*_scale, unlike a layer's `.scale`, are parameters.
        if name.endswith(".scale"):
            row[3] += size
        else:
            row[1] += numbers
            row[2] += size
    rows = tuple(LedgerRow(part, *row) for part, row in sums.items() if row[0])
    return Ledger(title, rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dspark_ext.draft_head.ledger",
        description="Parameters and bytes of each part of a draft head.",
    )
    parser.add_argument("source", help="safetensors file, checkpoint directory, or config.json")
    parser.add_argument("--json", action="store_true", help="print numbers for other programs")
    options = parser.parse_args(arguments)
    try:
        result = ledger(options.source)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(result.to_dict(), indent=2))
        return 0
    try:
        from rich.console import Console
    except ImportError:
        print(result)
    else:
        console = Console()
        console.print(result.table() if console.width >= 90 else str(result), markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
