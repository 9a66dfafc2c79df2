"""Entry point `sglang.srt.plugins`: dspark_ext's verification in SGLang (docs/integrations.md).

SGLang calls `register` in each of its processes and applies the hooks it leaves in its registry.
Without DSPARK_EXT_SGLANG=1 in the environment none is left.
"""

from __future__ import annotations

import inspect
import os

from . import sglang as functions

VARIABLE = "DSPARK_EXT_SGLANG"
TARGET = "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton"


def register() -> None:
    """Registers the replacement with SGLang's hook registry, if DSPARK_EXT_SGLANG asks for it."""
    value = os.environ.get(VARIABLE, "").strip().lower()
    if value in ("", "0", "off"):
        return
    if value not in ("1", "on"):
        raise ValueError(f"{VARIABLE}: expected off, 0, on or 1, got {value!r}")
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, verify, HookType.AROUND)


def verify(original, *args, **kwargs) -> None:
    """The hook around SGLang's chain kernel: `chain_speculative_sampling`, after a check that the
    kernel takes the parameters it takes."""
    _check(original)
    functions.chain_speculative_sampling(*args, **kwargs)


_checked: set[int] = set()


def _check(original) -> None:
    if id(original) in _checked:
        return
    ours = set(inspect.signature(functions.chain_speculative_sampling).parameters)
    found = set(inspect.signature(original).parameters)
    if not found <= ours:
        raise RuntimeError(
            f"dspark_ext cannot serve this SGLang: {TARGET} also takes "
            f"{', '.join(sorted(found - ours))}. Unset {VARIABLE} to serve with SGLang's own; "
            "docs/integrations.md lists the versions read."
        )
    _checked.add(id(original))
