"""One thing about a call made hostile: a size, a stride, a dtype, a device, a value, a type."""

from __future__ import annotations

import math
import random

import torch
from calls import Call

FOREIGN_DTYPES = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip
FLOAT_VALUES = (
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1e-45, 1e-38, 3e38, -3e38, 65504.0, 1e-8,
)  # fmt: skip
INTEGER_VALUES = (
    -1, 0, 1, -2, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**32 + 1, 2**40, 2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
# Of numbers that say how much to allocate: little, or more than there is.
ALLOCATING_VALUES = (-1, 0, 1, -2, 2, 3, 5, -(2**31), 2**62, 2**63 - 1, -(2**63))
NUMBERS = (math.nan, math.inf, -math.inf, -1.0, 0.0, -0.0, 0.5, 1.0, 1e-45, 1e300, -1e300, 2**40)
WORDS = ("", "blok", "block", "greedy", "rows", "panels", "pairs", "fp8_e4m3", "mxfp4", "\0", "é")
WRONG_TYPES = (None, "x", 1.5, 3, True, [1, 2], (), {}, object(), b"\0", torch.float32, 1j)
FORMERLY_WRONG = "a value of another type"


class Mutation:
    """What was done; `is_foreign`: a value of a type that the function does not take."""

    def __init__(self, name: str, detail: str, is_foreign: bool = False):
        self.name, self.detail, self.is_foreign = name, detail, is_foreign

    def __repr__(self) -> str:
        return f"{self.name}: {self.detail}"


def mutate(call: Call, rng: random.Random) -> tuple[Call, Mutation]:
    """The call with one argument (or a field of one) changed."""
    names = [name for name in call.arguments if name not in call.fixed]
    name = rng.choice(names)
    value = call.arguments[name]
    limits = (name in call.writes, name in call.at_most)
    fields = getattr(value, "_fields", None)
    if fields and rng.random() < 0.9:
        field = rng.choice(fields)
        path = f"{name}.{field}"
        inner, detail, foreign = _other(
            getattr(value, field), rng, limits[0], field in call.at_most
        )
        value = value._replace(**{field: inner})
    else:
        path = name
        value, detail, foreign = _other(value, rng, *limits)
    return call._replace(arguments=call.arguments | {name: value}), Mutation(path, detail, foreign)


def _other(value, rng: random.Random, is_written: bool, allocates: bool):
    """(another value, what it is, whether its type is foreign)"""
    if rng.random() < 0.06:
        wrong = rng.choice(WRONG_TYPES)
        return wrong, f"{FORMERLY_WRONG}, {wrong!r}", True
    if isinstance(value, torch.Tensor):
        return (*_other_tensor(value, rng, is_written), False)
    if isinstance(value, bool):
        return not value, "the other truth", False
    if isinstance(value, int):
        other = rng.choice(ALLOCATING_VALUES if allocates else INTEGER_VALUES)
        return other, f"{other}", False
    if isinstance(value, float):
        other = rng.choice(NUMBERS)
        return other, f"{other}", False
    if isinstance(value, str):
        other = rng.choice(WORDS)
        return other, repr(other), False
    if isinstance(value, torch.dtype):
        other = rng.choice(FOREIGN_DTYPES)
        return other, str(other), False
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        is_flat = all(isinstance(item, (int, float)) for item in value)
        return (*_other_list(value, rng), not is_flat)
    if value is None:
        wrong = rng.choice(
            (0, 1, -1, 0.5, math.nan, "", "rows", torch.zeros(1), torch.zeros(0, dtype=torch.int32))
        )
        return wrong, f"{wrong!r} instead of None", True
    wrong = rng.choice(WRONG_TYPES)
    return wrong, f"{FORMERLY_WRONG}, {wrong!r}", True


def _other_list(value, rng: random.Random):
    items = list(value)
    kind = rng.randrange(4)
    if kind == 0 and items:
        items.pop(rng.randrange(len(items)))
    elif kind == 1:
        items.append(items[-1] if items else 1)
    elif items:
        index = rng.randrange(len(items))
        is_float = isinstance(items[index], float)
        items[index] = rng.choice(NUMBERS if is_float else (-1, 0, 1, 2, 3, 2**31, 2**62, -(2**63)))
    return type(value)(items), f"{items}"


def _other_tensor(tensor: torch.Tensor, rng: random.Random, is_written: bool):
    kind = rng.choice(_KINDS)
    if is_written and kind is _wrapped:  # torch itself cannot write into a lazy negation
        kind = _strides
    try:
        return kind(tensor, rng)
    except (RuntimeError, NotImplementedError):  # torch cannot make such a tensor
        return tensor.clone(), f"{kind.__name__} not possible, a copy"


# ---- kinds of changes of a tensor ---------------------------------------------------------------


def _values(tensor, rng):
    """Some elements, a row or all of it hostile."""
    if tensor.is_floating_point() and tensor.dtype.itemsize > 1:
        value = rng.choice(FLOAT_VALUES)
    elif tensor.dtype.is_complex or tensor.dtype == torch.bool:
        value = True
    elif tensor.dtype.itemsize == 1:
        value = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x88))
    else:
        limits = torch.iinfo(tensor.dtype)
        value = rng.choice([v for v in INTEGER_VALUES if limits.min <= v <= limits.max])
    other = tensor.clone(memory_format=torch.contiguous_format)
    if not other.numel():
        return other, "a copy"
    flat = other.view(-1)
    if other.dtype.itemsize == 1 and other.dtype != torch.bool:
        flat, value = flat.view(torch.uint8), value & 0xFF
    kind = rng.randrange(4)
    if kind == 0:
        flat.fill_(value)
    elif kind == 1 and other.dim() > 1:
        width = other.shape[-1]
        row = rng.randrange(flat.numel() // max(width, 1)) * width
        flat[row : row + width] = value
    else:
        for _ in range(rng.randint(1, 3)):
            flat[rng.randrange(flat.numel())] = value
    return other, f"values {value} (kind {kind})"


def _order(tensor, rng):
    """The same values in another order: offsets that are not monotone."""
    return tensor.flip(0) if tensor.dim() else tensor + 1, "reversed"


def _size(tensor, rng):
    """One size is another."""
    if tensor.dim() == 0:
        return tensor.reshape(1), "[] as [1]"
    dim = rng.randrange(tensor.dim())
    size = tensor.shape[dim]
    kind = rng.randrange(4)
    if kind == 0 and size:
        return tensor.narrow(dim, 0, size - 1), f"dimension {dim} shorter"
    if kind == 1:
        return tensor.narrow(dim, 0, 0), f"dimension {dim} empty"
    if kind == 2 and size:
        return torch.cat([tensor, tensor], dim), f"dimension {dim} twice as long"
    if not size:
        return tensor.new_zeros([s or 1 for s in tensor.shape]), "empty as 1"
    return torch.cat([tensor, tensor.narrow(dim, 0, 1)], dim), f"dimension {dim} longer"


def _rank(tensor, rng):
    """Another number of dimensions."""
    kind = rng.randrange(5)
    if kind == 0 and tensor.dim() and tensor.shape[0]:
        return tensor[0], "first of it"
    if kind == 1 and tensor.numel():
        return tensor.reshape(-1)[0], "a number of it"
    if kind == 2:
        return tensor.unsqueeze(rng.randrange(tensor.dim() + 1)), "one more dimension"
    if kind == 3 and tensor.dim() > 1:
        return tensor.transpose(0, 1), "transposed"
    return tensor.reshape(-1), "flat"


def _strides(tensor, rng):
    """The same shape and values, laid out otherwise, NaN or 0x7f between."""
    if tensor.dim() == 0:
        return tensor.clone(), "a copy"
    kind = rng.randrange(4)
    dim = rng.randrange(tensor.dim())
    shape = list(tensor.shape)
    if kind == 0:
        shape[dim] = shape[dim] * 2 + 1
        wide = _garbage(tensor, shape)
        view = wide.narrow(dim, 1, tensor.shape[dim] * 2)
        view = view[(slice(None),) * dim + (slice(0, None, 2),)]
        what = f"every other of dimension {dim}"
    elif kind == 1:
        shape[dim] += 3
        view = _garbage(tensor, shape).narrow(dim, 2, tensor.shape[dim])
        what = f"a slice of dimension {dim}"
    elif kind == 2:
        order = list(range(tensor.dim()))
        rng.shuffle(order)
        view = _garbage(tensor, [shape[i] for i in order])
        view = view.permute([order.index(i) for i in range(tensor.dim())])
        what = "dimensions in another order in memory"
    else:
        view = _garbage(tensor, [tensor.numel() + 1])[1:].view(tensor.shape)
        what = "one element further"
    view.copy_(tensor)
    return view, what


def _garbage(tensor, shape):
    count = math.prod(shape) * tensor.element_size()
    return torch.full((count,), 0x7F, dtype=torch.uint8).view(tensor.dtype).view(shape)


def _expanded(tensor, rng):
    """Every row (or column) the first one, with stride 0."""
    if tensor.dim() == 0 or not tensor.numel():
        return tensor.clone(), "a copy"
    dim = rng.randrange(tensor.dim())
    return tensor.narrow(dim, 0, 1).expand(tensor.shape), f"dimension {dim} with stride 0"


def _dtype(tensor, rng):
    other = rng.choice(FOREIGN_DTYPES)
    return tensor.to(other), str(other)


def _device(tensor, rng):
    return tensor.to("meta"), "on the meta device"


def _wrapped(tensor, rng):
    """What autograd and lazy negation do to tensors."""
    kind = rng.randrange(3)
    if kind == 0 and tensor.is_floating_point():
        return tensor.detach().clone().requires_grad_(), "requires grad"
    if kind == 1 and tensor.is_floating_point() and tensor.dtype.itemsize > 1:
        return torch._neg_view(tensor), "negated, lazily"
    return torch.nn.Parameter(tensor, requires_grad=False), "a parameter"


_KINDS = (
    [_values] * 7 + [_order] + [_size] * 3 + [_rank] * 2 + [_strides] * 3 + [_expanded]
    + [_dtype] * 2 + [_device] + [_wrapped]
)  # fmt: skip
