"""dspark_ext inside other engines (docs/integrations.md).

`layouts`: pure conversions between engines' tensors and those of `dspark_ext.sampling`.
`vllm`, `sglang`, `flashinfer`: functions with the signatures of those engines' own verification.
`vllm_plugin`, `sglang_plugin`: the entry points through which the engines load them.
`vllm_drafter`: a drafter class for vLLM whose blocks are as long as they pay.

None of them imports its engine before it is called.
"""

import importlib

_MODULES = (
    "flashinfer",
    "layouts",
    "sglang",
    "sglang_plugin",
    "vllm",
    "vllm_drafter",
    "vllm_plugin",
)

__all__ = [*_MODULES]


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
