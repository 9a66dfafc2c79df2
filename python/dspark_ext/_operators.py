"""The compiled operators under their names: what the package's functions call.

    from . import _operators as _ops
    _ops.pack(...), _ops.sample.out(...)

They are those of torch.ops.dspark_ext, unless `wrap` has put something around them.
"""

from collections.abc import Callable

import torch

from . import _load  # noqa: F401  registers them

_OPERATORS = {
    name.removeprefix("dspark_ext::"): getattr(
        torch.ops.dspark_ext, name.removeprefix("dspark_ext::")
    )
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("dspark_ext::") and "." not in name
}


def names() -> list[str]:
    return sorted(_OPERATORS)


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise AttributeError(
        f"dspark_ext.{name}: the compiled part has no such operator, it is older than the Python "
        "part; rebuild it with: pip install --force-reinstall --no-deps . (or make env)"
    )


def wrap(wrapper: Callable[[str, Callable], Callable]) -> None:
    """From now on each operator is `wrapper(name, operator)`, its variant `.out` too."""
    for name, operator in _OPERATORS.items():
        wrapped = wrapper(name, operator)
        if "out" in operator.overloads():
            wrapped.out = wrapper(name, operator.out)
        globals()[name] = wrapped


def unwrap() -> None:
    """The operators themselves."""
    globals().update(_OPERATORS)


unwrap()
