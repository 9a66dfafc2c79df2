"""Lossless DSpark speculative decoding as one PyTorch extension.

`import dspark_ext` loads the compiled operators (torch.ops.dspark_ext.*) and nothing heavy besides
torch. The operator families are dspark_ext.sampling, .verify, .draft and .moe; dspark_ext.engine is
a complete serving loop on top of them. They are imported on first use.
"""

import importlib

from ._load import __version__  # loads the compiled part, which the others need

# isort: split
from . import _fake, _missing, ranges  # noqa: F401
from ._info import build_info, capabilities

_missing.register()

_FAMILIES = (
    "attention",
    "calibration",
    "decoder",
    "draft",
    "draft_head",
    "engine",
    "formats",
    "integrations",
    "linear",
    "metrics",
    "moe",
    "ranges",
    "reference",
    "sampling",
    "verify",
)

__all__ = ["__version__", "build_info", "capabilities", *_FAMILIES]


def __getattr__(name: str):
    if name in _FAMILIES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
