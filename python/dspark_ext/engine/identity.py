"""What a model is, in a few bytes: enough to tell two checkpoints apart."""

import hashlib
from collections.abc import Iterator

import torch

_SAMPLES = 64


def fingerprint(module: torch.nn.Module) -> str:
    """Hexadecimal SHA-256 over names, shapes and dtypes of all tensors of a module's state, and up
    to 64 evenly spaced values of each. Modules of equal weights have equal ones; other weights
    almost surely another. It is no proof against someone who wants a collision."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {type(tensor).__name__}".encode())
            continue
        for part, values in _parts(name, tensor.detach()):
            digest.update(f"{part} {values.dtype} {list(values.shape)}".encode())
            if values.is_quantized:
                values = values.int_repr()
            plain = values.layout == torch.strided and values.device.type != "meta"
            if plain and values.numel():
                digest.update(_sampled(values))
    return digest.hexdigest()


def _parts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that hold a tensor's values: of a wrapper, such as torchao's quantised weights,
    those inside (torch's `__tensor_flatten__` protocol)."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor
        return
    for attribute in tensor.__tensor_flatten__()[0]:
        yield from _parts(f"{name}.{attribute}", getattr(tensor, attribute))


def _sampled(tensor: torch.Tensor) -> bytes:
    """Bytes of evenly spaced values, whatever the dtype."""
    count, size = tensor.numel(), tensor.element_size()
    place = {"device": "cpu"}
    values = torch.linspace(0, count - 1, min(_SAMPLES, count), dtype=torch.float64, **place).long()
    index = (values[:, None] * size + torch.arange(size, **place)).flatten()
    raw = tensor.contiguous().reshape(-1).view(torch.uint8)
    return bytes(raw[index.to(raw.device)].tolist())
