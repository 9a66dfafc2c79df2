"""Registration of fake kernels, with the check that all of them share."""

import functools
from collections.abc import Callable

import torch


def register_fake(operator: str) -> Callable:
    """Decorator: registers a fake kernel for "name" or "name.overload".

    A call whose tensors are on several devices, one of them meta, ends in the fake kernel too. It
    is refused here; otherwise its result would look real and never have been computed.
    """

    def register(fake: Callable) -> Callable:
        @functools.wraps(fake)
        def checked(*args, **kwargs):
            _check_one_device(operator, args, kwargs)
            return fake(*args, **kwargs)

        torch.library.register_fake(f"dspark_ext::{operator}")(checked)
        return fake

    return register


def _check_one_device(operator: str, args: tuple, kwargs: dict) -> None:
    name, _, overload = operator.partition(".")
    schema = getattr(getattr(torch.ops.dspark_ext, name), overload or "default")._schema
    named = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    tensors = [
        (key, value)
        for key, given in named.items()
        for value in (given if isinstance(given, (list, tuple)) else [given])
        if isinstance(value, torch.Tensor)
    ]
    expected = tensors[0][1].device
    for key, value in tensors:
        if value.device != expected:
            raise RuntimeError(
                f"dspark_ext.{name}: {key}: expected device {expected}, got {value.device}"
            )
