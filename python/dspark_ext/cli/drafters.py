"""From the word after --drafter to a drafter."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from .errors import UserError, told_of
from .models import DEMO, weight_dtype

COMPACT, HEAD, NGRAM, MODEL, NONE = "compact", "head", "ngram", "model", "none"
NGRAM_DRAFTS, MODEL_DRAFTS = 5, 4  # drafts per block unless the settings say


@dataclasses.dataclass
class Opened:
    """A drafter before its target is there: its kind, its name, the target's layers it reads, and
    the draft head, where it is one."""

    kind: str
    name: str
    taps: list[int] = dataclasses.field(default_factory=list)
    head: object = None
    path: Path | None = None


def open_drafter(word: str, options) -> Opened:
    if word in (NONE, NGRAM):
        return Opened(word, word)
    if word == DEMO:
        from ..demo.loading import DRAFTER
        from ..draft_head.compact import CompactDraftHead

        return _compact(DRAFTER.stem, CompactDraftHead.load(DRAFTER))
    path = Path(word)
    if not path.exists():
        raise UserError(f"--drafter: {word}: no such file; expected a path, demo, ngram or none")
    if path.is_file() and path.suffix != ".safetensors":
        raise UserError(f"--drafter: {word}: expected a safetensors file or a directory")
    if _is_language_model(path):
        return Opened(MODEL, path.resolve().name, path=path)
    return _open_head(path, options)


def make_drafter(opened: Opened, target, options, settings, tokenizer):
    """The drafter for `target`; None for `none`. Of the settings it reads those that say how long
    blocks are and what an n-gram is."""
    with told_of("--drafter", OSError, ValueError, ImportError):
        drafter = _MAKERS[opened.kind](opened, target, options, settings, tokenizer)
    if options.calibration is None:
        return drafter
    if drafter is None:
        raise UserError("--calibration: needs a drafter with confidences")
    from ..calibration import Calibration
    from .calibrated import CalibratedDrafter

    with told_of("--calibration"):
        calibration = Calibration.load(options.calibration, drafter.block_size)
    return CalibratedDrafter(drafter, calibration)


def _make_compact(opened: Opened, target, options, settings, tokenizer):
    from ..engine import DSparkDrafter

    return DSparkDrafter.for_target(opened.head, target, weight_dtype(options))


def _make_head(opened: Opened, target, options, settings, tokenizer):
    from ..engine import HeadDrafter

    opened.head.to(options.device)
    return HeadDrafter.for_target(opened.head, target)


def _make_ngram(opened: Opened, target, options, settings, tokenizer):
    from ..engine import NGramDrafter

    shortest, longest = settings.prompt_lookup_min, settings.prompt_lookup_max
    return NGramDrafter.for_target(
        target,
        block_size=settings.num_speculative_tokens or NGRAM_DRAFTS,
        min_ngram=shortest or min(2, longest or 2),
        max_ngram=longest or max(4, shortest or 4),
    )


def _make_model(opened: Opened, target, options, settings, tokenizer):
    from ..engine import SmallModelDrafter
    from .language_models import load_language_model

    model, own = load_language_model("--drafter", opened.path)
    return SmallModelDrafter.for_target(
        model.to(options.device),
        target,
        block_size=settings.num_speculative_tokens or MODEL_DRAFTS,
        weight_dtype=weight_dtype(options),
        tokenizers=(tokenizer.transformers, own),
    )


_MAKERS = {
    NONE: lambda *arguments: None,
    COMPACT: _make_compact,
    HEAD: _make_head,
    NGRAM: _make_ngram,
    MODEL: _make_model,
}


def _compact(name: str, head) -> Opened:
    return Opened(COMPACT, name, head.config.dspark_target_layer_ids, head)


def _open_head(path: Path, options) -> Opened:
    from ..draft_head import load_draft_head
    from ..draft_head.compact import CompactDraftHead
    from ..engine import output_taps

    with told_of("--drafter"):
        head = load_draft_head(path, dtype=weight_dtype(options))
    name = path.resolve().stem if path.is_file() else path.resolve().name
    if isinstance(head, CompactDraftHead):
        return _compact(name, head)
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
