"""Language models and tokenizers from directories, through transformers."""

from __future__ import annotations

from pathlib import Path

from .errors import UserError, told_of


def load_language_model(argument: str, path: Path):
    """(model, tokenizer) of a directory. Weights come from safetensors files only, and no code that
    is beside them is run."""
    if not (path / "config.json").is_file():
        raise UserError(f"{argument}: {path}: expected a model directory with a config.json")
    quieten(argument)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    safe = {"local_files_only": True, "trust_remote_code": False}
    failures = (OSError, ValueError, KeyError, ImportError, RuntimeError, TypeError)
    with told_of(f"{argument}: {path}", *failures):
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype="auto", use_safetensors=True, **safe
        )
        tokenizer = AutoTokenizer.from_pretrained(path, **safe)
    return model.eval(), tokenizer


def quieten(argument: str) -> None:
    """No progress bars of transformers; a `UserError` where it is missing."""
    try:
        from transformers.utils import logging
    except ImportError as error:
        raise UserError(f"{argument}: needs transformers: {error}") from error
    logging.disable_progress_bar()
