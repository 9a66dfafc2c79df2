"""A pass recorded operation by operation: what a captured graph would replay, and what it cannot.

A graph replays launches. What the host did between them (a value it read, a branch it took, a
number it computed, a tensor it made elsewhere) is not replayed: it stays as it was at the capture.
"""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

_VALUE_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_READS = {
    getattr(torch.Tensor, name): name
    for name in (
        *("tolist", "item", "cpu", "numpy", "__array__", "__contains__"),
        *("__bool__", "__int__", "__float__", "__index__", "__complex__"),
    )
}
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index")
_active = threading.local()


class CaptureError(RuntimeError):
    """A pass does what a graph cannot replay; the message says what and where."""


@dataclasses.dataclass
class Call:
    """One operation with the tensors it was given and those it made, and who asked for it."""

    function: Any
    args: tuple
    kwargs: dict
    result: Any
    place: str


def is_recording() -> bool:
    """Whether this thread records a pass."""
    return getattr(_active, "count", 0) > 0


def reads_values(tensor: torch.Tensor) -> bool:
    """Whether the host may look at the values of `tensor`, to check them or to do less: on a CPU,
    where that waits for nothing, but in no pass that is recorded."""
    return tensor.device.type == "cpu" and not is_recording()


@contextlib.contextmanager
def recording() -> Iterator[list[Call]]:
    """Collects the operations of this thread on tensors, aten's and ours, in order. Raises
    CaptureError at the first that a graph cannot hold: a value read by the host, a shape that
    depends on values, a copy between devices. Code that asks whether its stream is captured is told
    that it is, as it may leave checks out then."""
    calls: list[Call] = []
    _active.count = getattr(_active, "count", 0) + 1
    try:
        with _said_to_be_captured(), _HostReads(), _Operations(calls):
            yield calls
    finally:
        _active.count -= 1


def capture_obstacle(run: Callable[[], Any], change: Callable[[], None]) -> str | None:
    """Why the pass `run` cannot be captured, None if it can.

    It is run once for what it makes but once, then recorded twice, with `change` in between, which
    gives its input tensors other values in place: a graph is right only if both recordings are the
    same operations, with the same numbers, on the same tensors.
    """
    try:
        run()
        with recording() as first:
            run()
        change()
        with recording() as second:
            run()
    except CaptureError as error:
        return str(error)
    return _difference(first, second)


@contextlib.contextmanager
def _said_to_be_captured() -> Iterator[None]:
    asked = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: is_recording() or asked()
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked


class _HostReads(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in _READS:
            raise CaptureError(f"the host reads a tensor ({_READS[function]}){_place()}")
        return function(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, calls: list[Call]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.namespace == "prim":  # a question to a kind of tensor, not an operation
            return function(*args, **kwargs)
        if function._can_decompose():  # what is inside may read values
            with self:
                result = function.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        reason = _obstacle(function, args, kwargs)
        if reason:
            raise CaptureError(f"{function} {reason}{_place()}")
        result = function(*args, **kwargs)
        _check_devices(function, args, kwargs, result)
        if tensors_of((args, kwargs, result)):  # else a range of a profiler
            self._calls.append(Call(function, args, kwargs, result, _place()))
        return result


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _obstacle(function, args, kwargs) -> str | None:
    if function._schema.name in _INDEXING:
        indices = tensors_of(args[1] if len(args) > 1 else kwargs["indices"])
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return "by a mask: how many are chosen depends on values"
    elif function._schema.name == "aten::lift_fresh" and args[0].device.type != "cpu":
        return "is a tensor that the host makes and copies to the device"
    elif any(tag in function.tags for tag in _VALUE_TAGS):
        return "depends on values: the host reads them"
    return None


def _check_devices(function, args, kwargs, result) -> None:
    read = {str(each.device) for each in tensors_of((args, kwargs)) if each.dim()}
    made = {str(each.device) for each in tensors_of(result)}
    if len(read | made) > 1 and read:
        raise CaptureError(
            f"{function} goes from {'/'.join(sorted(read))} to {'/'.join(sorted(made))}{_place()}"
        )


def _place() -> str:
    """File and line that asked for an operation, outside of torch and of this recorder."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename.replace("\\", "/")
        if "/torch/" not in path and not path.endswith(("/_recording.py", "/contextlib.py")):
            return f", at {path.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _difference(first: list[Call], second: list[Call]) -> str | None:
    made: tuple[dict, dict] = {}, {}
    for number, (one, other) in enumerate(zip(first, second)):
        if one.function is not other.function:
            return f"{one.function} is {other.function} with other values{one.place}"
        forms = [_form((call.args, call.kwargs), known) for call, known in zip((one, other), made)]
        if forms[0] != forms[1]:
            old, new = next(pair for pair in zip(*map(_parts, forms)) if pair[0] != pair[1])
            return f"{one.function} {_change(old, new)}{one.place}"
        for call, known in zip((one, other), made):
            for place, tensor in enumerate(tensors_of(call.result)):
                known.setdefault(storage_of(tensor), (number, place))
    if len(first) != len(second):
        return f"{len(first)} operations are {len(second)} with other values"
    return None


def _change(old: Any, new: Any) -> str:
    if isinstance(old, tuple) and isinstance(new, tuple) and old[1:] == new[1:]:
        return "reads a tensor that is another one in every pass"
    old, new = (list(each[2]) if isinstance(each, tuple) else each for each in (old, new))
    return f"is given {old}, with other values {new}"


def _parts(form: tuple) -> list:
    return [form[1], *form[0]]


def _form(tree: Any, known: dict[int, tuple[int, int]]) -> tuple:
    """Arguments with each tensor as where it comes from and how it lies there."""
    leaves, structure = tree_flatten(tree)
    return [_leaf(leaf, known) for leaf in leaves], str(structure)


def _leaf(leaf: Any, known: dict[int, tuple[int, int]]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    storage = storage_of(leaf)
    if leaf.dim() == 0 and leaf.device.type == "cpu" and storage not in known:
        return str(leaf.item())  # a number, which launches are given as it is
    origin = known.get(storage, storage)
    dtype = str(leaf.dtype).removeprefix("torch.")
    return origin, dtype, tuple(leaf.shape), leaf.stride(), leaf.storage_offset()
