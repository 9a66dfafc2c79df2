"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def replace_file(file: Path, write: Callable[[Path], object]) -> None:
    """Makes `file` by `write(another path)`. Whatever interrupts this leaves what was there before,
    and nothing beside it; a reader sees the old file or the new one. Raises OSError."""
    from safetensors import SafetensorError

    unfinished = file.with_name(file.name + ".part")
    try:
        write(unfinished)
        os.replace(unfinished, file)
    except SafetensorError as error:  # names no file
        raise OSError(f"{file}: {error}") from None
    finally:
        unfinished.unlink(missing_ok=True)
