"""What was built, and what a device can do with it."""

import torch

from . import _C
from ._missing import has_kernel, missing_backend, operators


def build_info() -> dict:
    """What this build contains. Touches no device.

    Returns:
        version: of dspark_ext.
        torch: `built_for` (the stable ABI's first release) and `found` (the one in this process).
        compiler, numerics_flags: of the C++ part.
        cpu: `architectures`, the instruction sets compiled in, lowest first, and `active`, the one
            in use (environment variable DSPARK_CPU_ISA forces a lower one; all give the same bits).
        cuda, hip: `built`, `architectures` (empty unless built) and `reason` (why it is not built).
    """
    facts = _C.build_facts()

    def gpu(state: str) -> dict:
        built = not state.startswith("not built")
        return {"built": built, "architectures": [], "reason": None if built else state}

    return {
        "version": facts["version"],
        "torch": {"built_for": "2.10", "found": str(torch.__version__)},
        "compiler": facts["compiler"],
        "numerics_flags": facts["numerics_flags"].split(),
        "cpu": {"architectures": facts["cpu_isas"].split(), "active": _C.cpu_isa()},
        "cuda": gpu(facts["cuda"]),
        "hip": gpu(facts["hip"]),
    }


def capabilities(device: torch.device | str = "cpu") -> dict:
    """Which operators run on `device`. Does not initialise it.

    Args:
        device: "cpu", "cuda" (ROCm builds of torch use this name too), or a torch.device.

    Returns:
        device: its type.
        available: whether any operator of this build runs there.
        reason: why not, and how to get it; None if available.
        operators: names of those that run there.
        isa, threads: the CPU's instruction set in use and torch's thread count (CPU only).

    Raises:
        ValueError: a device type dspark_ext knows nothing about.
    """
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"dspark_ext.capabilities: device: expected cpu or cuda, got {device}")
    runs = [name for name in operators() if has_kernel(name, kind)]
    result = {
        "device": kind,
        "available": bool(runs),
        "reason": None if runs else missing_backend(kind),
        "operators": runs,
    }
    if kind == "cpu":
        result |= {"isa": _C.cpu_isa(), "threads": torch.get_num_threads()}
    return result
