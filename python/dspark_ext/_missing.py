"""Which operators this build serves on which device, and a clear error where it does not."""

import torch

from . import _C

_library = torch.library.Library("dspark_ext", "IMPL")
_refused: set[str] = set()  # operators whose CUDA kernel is the error below


def operators() -> list[str]:
    """Names of all registered operators, overloads included: 'sample', 'sample.out'."""
    prefix = "dspark_ext::"
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def has_kernel(operator: str, device_type: str) -> bool:
    """Whether this build has compiled code of `operator` for "cpu" or "cuda" tensors."""
    if device_type == "cuda" and (_C.gpu_backend() is None or operator in _refused):
        return False
    return _is_registered(operator, device_type)


def _is_registered(operator: str, device_type: str) -> bool:
    key = device_type.upper()
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"dspark_ext::{operator}", key)


def missing_backend(device_type: str) -> str:
    """One sentence: why tensors on `device_type` are not served, and what to do."""
    if device_type == "cpu":
        return "cpu backend has no kernels in this build"
    backend = _C.gpu_backend()
    if backend is None:
        return _C.missing_gpu_backend()
    return f"{backend} backend lacks this operator; move the tensors to the CPU (docs/install.md)"


def refuse(operator: str):
    """A kernel for `operator` that raises NotImplementedError."""
    name = operator.partition(".")[0]

    def refusal(*args, **kwargs):
        raise NotImplementedError(f"dspark_ext.{name}: {missing_backend('cuda')}")

    return refusal


def register() -> None:
    """Make every operator without a CUDA kernel raise an error that says how to go on."""
    for operator in operators():
        if not _is_registered(operator, "cuda"):
            _library.impl(operator, refuse(operator), "CUDA")
            _refused.add(operator)
