"""What was built, and what a device can do with it."""

import torch

from . import _C
from ._missing import has_kernel, missing_backend, operators


def _architecture_names(architecture: str) -> list[str]:
    """Of an item of DSPARK_CUDA_ARCHITECTURES or DSPARK_HIP_ARCHITECTURES."""
    number, _, kind = architecture.partition("-")
    if number.startswith("gfx"):
        return [architecture]
    machine_code, ptx = [f"sm_{number}"], [f"compute_{number}"]
    return {"real": machine_code, "virtual": ptx}.get(kind, machine_code + ptx)


def _gpu_facts(facts: str) -> dict:
    state, architectures, compiler, flags = facts.split("|")
    names = [name for item in architectures.split() for name in _architecture_names(item)]
    return {
        "built": state == "built",
        "architectures": names,
        "compiler": compiler or None,
        "numerics_flags": flags.split(),
        "reason": None if state == "built" else state,
    }


def build_info() -> dict:
    """What this build contains. Touches no device.

    Returns:
        version: of dspark_ext.
        torch: `built_for` (the stable ABI's first release) and `found` (the one in this process).
        compiler, numerics_flags: of the C++ part.
        cpu: `architectures`, the instruction sets compiled in, lowest first; `active`, the one in
            use (environment variable DSPARK_CPU_ISA forces a lower one; all give the same bits);
            `pair_unit`, what multiplies 16-bit numbers where sums need not be exact:
            "avx512_bf16", "amx" (with bits of its own) or "fma".
        cuda, hip: `built`; `architectures`, "sm_80" and "gfx942" for machine code, "compute_80" for
            PTX; `compiler`; `numerics_flags`; `reason`, why it is not built, or None.
        gpu: which of the two serves GPU tensors in this process, "cuda", "hip" or None.
    """
    facts = _C.build_facts()
    return {
        "version": facts["version"],
        "torch": {"built_for": "2.10", "found": str(torch.__version__)},
        "compiler": facts["compiler"],
        "numerics_flags": facts["numerics_flags"].split(),
        "cpu": {
            "architectures": facts["cpu_isas"].split(),
            "active": _C.cpu_isa(),
            "pair_unit": _C.cpu_pair_unit(),
        },
        "cuda": _gpu_facts(facts["cuda"]),
        "hip": _gpu_facts(facts["hip"]),
        "gpu": _C.gpu_backend(),
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
        backend: "cuda" or "hip" (GPUs only).
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
    if kind == "cuda":
        result |= {"backend": _C.gpu_backend()}
    else:
        result |= {"isa": _C.cpu_isa(), "threads": torch.get_num_threads()}
    return result
