"""From the word after --drafter to a drafter."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from .errors import UserError, told_of
from .models import DEMO

COMPACT, HEAD, NGRAM, MODEL, NONE = "compact", "head", "ngram", "model", "none"


@dataclasses.dataclass
class Opened:
    """A drafter before its target is there: its kind, its name, the target's layers it reads, and
    the draft head, where it is one."""

    kind: str
    name: str
    taps: list[int] = dataclasses.field(default_factory=list)
    head: object = None
    path: Path | None = None


def open_drafter(word: str) -> Opened:
    if word in (NONE, NGRAM):
        return Opened(word, word)
    if word == DEMO:
        from ..demo.loading import DRAFTER

        return _open_compact(DRAFTER)
    path = Path(word)
    if not path.exists():
        raise UserError(f"--drafter: {word}: no such file; expected a path, demo, ngram or none")
    if path.is_file() and path.suffix != ".safetensors":
        raise UserError(f"--drafter: {word}: expected a safetensors file or a directory")
    if _is_language_model(path):
        return Opened(MODEL, path.resolve().name, path=path)
    return _open_head(path)


def make_drafter(opened: Opened, target, options):
    """The drafter for `target`; None for `none`."""
    import torch

    from ..engine import DSparkDrafter, HeadDrafter

    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    drafter = None
    with told_of("--drafter"):
        if opened.kind == COMPACT:
            drafter = DSparkDrafter.for_target(opened.head, target, dtype)
        elif opened.kind == HEAD:
            drafter = HeadDrafter.for_target(opened.head, target)
    if opened.kind in (NGRAM, MODEL):
        raise UserError(f"--drafter: {opened.name}: this version serves draft heads only")
    if options.calibration is None:
        return drafter
    if drafter is None:
        raise UserError("--calibration: needs a drafter with confidences")
    from ..calibration import Calibration
    from .calibrated import CalibratedDrafter

    with told_of("--calibration"):
        calibration = Calibration.load(options.calibration, drafter.block_size)
    return CalibratedDrafter(drafter, calibration)


def _open_compact(path: Path) -> Opened:
    from ..draft_head.compact import CompactDraftHead

    with told_of("--drafter"):
        head = CompactDraftHead.load(path)
    return Opened(COMPACT, path.stem, head.config.dspark_target_layer_ids, head)


def _open_head(path: Path) -> Opened:
    from ..draft_head import load_draft_head
    from ..draft_head.compact import CompactDraftHead
    from ..engine import output_taps

    with told_of("--drafter"):
        head = load_draft_head(path)
    name = path.resolve().stem if path.is_file() else path.resolve().name
    if isinstance(head, CompactDraftHead):
        return Opened(COMPACT, name, head.config.dspark_target_layer_ids, head)
    return Opened(HEAD, name, output_taps(head.config), head)


def _is_language_model(path: Path) -> bool:
    """Whether the directory holds a causal LM of transformers and no draft head."""
    from ..draft_head.checkpoint_files import CheckpointFiles
    from ..draft_head.names import recognise_flavour

    config = path / "config.json"
    if not path.is_dir() or not config.is_file():
        return False
    with told_of("--drafter"):
        architectures = json.loads(config.read_text(encoding="utf-8")).get("architectures") or [""]
        flavour = recognise_flavour(CheckpointFiles(path).names)
    return flavour is None and str(architectures[0]).endswith("ForCausalLM")
