"""Weights of experts in the order in which the kernels of a device read them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import formats
from . import pairs, panels
from .fused import ExpertWeights
from .huge_pages import ask_for_huge_pages

_LAYOUTS = {"pairs": pairs, "panels": panels}
_LAYOUT_OF_DEVICE = {"cpu": "pairs", "cuda": "panels"}
_FORMAT_OF = {dtype: format for format, dtype in formats.CODE_DTYPES.items()}
if hasattr(torch, "float4_e2m1fn_x2"):
    _FORMAT_OF[torch.float4_e2m1fn_x2] = "mxfp4"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_SCALES = (torch.uint8, *formats.SCALE_DTYPES)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def prepare_weights(
    weights: ExpertWeights, device: torch.device | str | None = None
) -> ExpertWeights:
    """The weights in the layout that the kernels of a device read fastest.

    What comes back goes wherever `ExpertWeights` go. It holds the same bits in another order, with
    zeros at the edges, so that `restore_weights` gives back the original. Rows of w13 lie in turns,
    a gate and its up, also where in the original the gates come first; `interleaved` keeps saying
    what the original has. Scales stay as they are, except where a layout packs them with their
    rows.

    Args:
        weights: on any device, in any layout; of a shared expert without the dimension E. Meta
            tensors give meta tensors.
        device: what they are prepared for, "cpu" or "cuda" (of either vendor); default that of the
            weights. They are not moved.

    Returns:
        Weights whose `layout` is "panels" (GPUs; `moe.panels` has the shapes) or "pairs" (CPUs;
        `moe.pairs`), and whose `sizes` are the original (N, K) of w13 and of w2. Tensors are new
        but for scales that stay as they are, and on a CPU in huge pages where the system gives
        them; a copy of them is not. What no layout can hold comes back itself, in the
        layout "rows": float32 weights; codes whose scales change within 32 columns.

    Raises:
        ValueError: an unknown device or layout, weights that do not belong together; the message
            names the argument.
    """
    layout = _layout_for("prepare_weights", weights, device)
    if layout == weights.layout:
        return weights
    weights = restore_weights(weights)
    if layout == "rows":
        return weights
    parts = _parts("prepare_weights", weights)
    packed = [_pack(part, layout) for part in parts]
    sizes = tuple((part.rows, part.columns) for part in parts)
    return _replaced(weights, packed)._replace(layout=layout, sizes=sizes)


def restore_weights(weights: ExpertWeights) -> ExpertWeights:
    """The weights in the layout "rows": what `prepare_weights` was given, bit by bit.

    Raises ValueError for an unknown layout and weights that do not belong together.
    """
    if weights.layout == "rows":
        return weights
    parts = _parts("restore_weights", weights)
    restored = [_unpack(part, weights.layout) for part in parts]
    return _replaced(weights, restored)._replace(layout="rows", sizes=None)


def prepared_bytes(weights: ExpertWeights, device: torch.device | str | None = None) -> int:
    """Bytes of weights and scales that `prepare_weights(weights, device)` would return.

    Nothing is computed, so that meta tensors tell the size of weights that are still to be loaded.
    At work, `prepare_weights` needs the memory of two more experts. Raises like it.
    """
    layout = _layout_for("prepared_bytes", weights, device)
    total = 0
    for part in _parts("prepared_bytes", weights):
        element_bytes = part.weight.element_size()
        count = math.prod(_shape(part, layout)) * element_bytes
        if part.scales is not None:
            count += math.prod(_scale_shape(part, layout)) * part.scales.element_size()
        total += count * math.prod(part.lead)
    return total


# ---- parts --------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """One of the two products."""

    weight: Tensor  # [*lead, ...]
    scales: Tensor | None  # [*lead, ...]
    lead: tuple[int, ...]  # (E,), or () of a shared expert
    rows: int  # N
    columns: int  # K
    width: int  # elements of the tensor that hold K weights
    per_element: int  # weights that one holds
    takes_turns: bool  # stored rows 2i, 2i + 1 are rows i, N / 2 + i of the original
    format: str | None
    block: tuple[int, int] | None


def _parts(op: str, weights: ExpertWeights) -> list[_Part]:
    """w13 and w2, checked."""
    if weights.layout != "rows" and weights.layout not in _LAYOUTS:
        names = ", ".join(("rows", *_LAYOUTS))
        raise _error(op, "layout", f"expected one of {names}", repr(weights.layout))
    format = weights.format or _FORMAT_OF.get(weights.w13.dtype)
    block = None
    for name in ("w13", "w2"):
        dtype = getattr(weights, name).dtype
        is_known = dtype.itemsize == 1 if format else dtype in _FLOATS
        if not is_known:
            wanted = f"codes of {format}" if format else "float32, bfloat16 or float16"
            raise _error(op, name, f"expected {wanted}", str(dtype).removeprefix("torch."))
    if format is not None:
        block = formats.check_format(format, weights.block, torch.float8_e8m0fnu)
    if weights.layout == "panels" and format == "mxfp4" and block != (1, 32):
        raise _error(op, "block", "expected (1, 32) of mxfp4 in panels", block)
    given = ((weights.w13, weights.w13_scales), (weights.w2, weights.w2_scales))
    per_element = 2 if format == "mxfp4" else 1
    if weights.layout == "rows":
        if not 2 <= weights.w13.dim() == weights.w2.dim() <= 3:
            shapes = f"{list(weights.w13.shape)} and {list(weights.w2.shape)}"
            raise _error(op, "w13", "expected w13 [E, 2N, d] and w2 [E, d, N]", shapes)
        sizes = [(w.shape[-2], w.shape[-1] * per_element) for w, _ in given]
    elif weights.sizes is None:
        raise _error(op, "sizes", "expected (N, K) of w13 and w2", "none")
    else:
        sizes = [tuple(size) for size in weights.sizes]
        if [len(size) for size in sizes] != [2, 2]:
            raise _error(op, "sizes", "expected (N, K) of w13 and w2", weights.sizes)
    dims = 2 if weights.layout == "rows" else _LAYOUTS[weights.layout].DIMS
    if not dims <= weights.w13.dim() <= dims + 1:
        shape = list(weights.w13.shape)
        raise _error(op, "w13", f"expected {dims + 1} dimensions of layout {weights.layout}", shape)
    lead = tuple(weights.w13.shape[: weights.w13.dim() - dims])
    parts = [
        _Part(
            weight, scales, lead, *size, size[1] // per_element, per_element, turns, format, block
        )
        for (weight, scales), size, turns in zip(
            given, sizes, (not weights.interleaved, False), strict=True
        )
    ]
    _check(op, parts, weights.layout)
    return parts


def _check(op: str, parts: list[_Part], layout: str) -> None:
    first, second = parts
    if first.rows % 2 != 0:
        raise _error(op, "w13", "expected an even number of rows, gates and ups", first.rows)
    if (second.rows, second.columns) != (first.columns, first.rows // 2):
        sizes = f"{first.rows} x {first.columns} and {second.rows} x {second.columns}"
        raise _error(op, "w2", "expected w13 of 2N x d and w2 of d x N", sizes)
    for name, part in zip(("w13", "w2"), parts, strict=True):
        wanted = (*part.lead, *_shape(part, layout))
        if tuple(part.weight.shape) != wanted:
            raise _error(op, name, f"expected shape {list(wanted)}", list(part.weight.shape))
        if part.format is None:
            if part.scales is not None:
                raise _error(op, f"{name}_scales", "expected none for float weights", "a tensor")
            continue
        if part.scales is not None and part.scales.dtype not in _SCALES:
            dtype = str(part.scales.dtype).removeprefix("torch.")
            raise _error(op, f"{name}_scales", "expected float8_e8m0fnu, uint8 or float32", dtype)
        wanted = (*part.lead, *_scale_shape(part, layout))
        got = None if part.scales is None else tuple(part.scales.shape)
        if got != wanted:
            raise _error(op, f"{name}_scales", f"expected shape {list(wanted)}", got and list(got))


def _shape(part: _Part, layout: str) -> tuple[int, ...]:
    """Of an expert's weights in a layout."""
    if layout == "rows":
        return part.rows, part.width
    size = part.weight.element_size()
    return _LAYOUTS[layout].weight_shape(part.rows, part.width, size, part.per_element)


def _scale_shape(part: _Part, layout: str) -> tuple[int, ...]:
    """Of an expert's scales."""
    shape = formats.scale_shape((part.rows, part.columns), part.block)
    if layout == "rows" or not _LAYOUTS[layout].has_scales_by_row(part.format):
        return shape
    return _LAYOUTS[layout].scale_shape(*shape)


def _replaced(weights: ExpertWeights, parts: list[_Part]) -> ExpertWeights:
    first, second = parts
    return weights._replace(
        w13=first.weight, w13_scales=first.scales, w2=second.weight, w2_scales=second.scales
    )


def _layout_for(op: str, weights: ExpertWeights, device) -> str:
    try:
        kind = weights.w13.device.type if device is None else torch.device(device).type
    except RuntimeError:  # torch knows no such device
        kind = device
    if kind == "meta" and device is None:
        raise _error(op, "device", "expected a device for meta tensors", "none")
    if kind not in _LAYOUT_OF_DEVICE:
        raise _error(op, "device", f"expected one of {', '.join(_LAYOUT_OF_DEVICE)}", repr(kind))
    held = all(_can_be_held(part) for part in _parts(op, weights))
    return _LAYOUT_OF_DEVICE[kind] if held else "rows"


def _can_be_held(part: _Part) -> bool:
    """Whether matrix units take these weights."""
    if part.format is None:
        return part.weight.dtype in (torch.bfloat16, torch.float16)
    if part.format == "mxfp4":
        return part.block == (1, 32) and part.scales.dtype != torch.float32
    return part.block[1] % 32 == 0


def _error(op: str, name: str, expected: str, got) -> ValueError:
    return ValueError(f"dspark_ext.{op}: {name}: {expected}, got {got}")


# ---- permutations -------------------------------------------------------------------------------


def _pack(part: _Part, name: str) -> _Part:
    layout, shape = _LAYOUTS[name], _shape(part, name)

    def pack_weight(rows: Tensor) -> Tensor:
        return layout.pack_weight(_in_turns(rows) if part.takes_turns else rows, shape)

    def pack_scales(rows: Tensor) -> Tensor:
        return layout.pack_scales(_in_turns(rows) if part.takes_turns else rows)

    weight, scales = _per_expert(part.weight, part.lead, pack_weight), part.scales
    if scales is not None and layout.has_scales_by_row(part.format):
        scales = _per_expert(scales, part.lead, pack_scales)
    return part._replace(weight=weight, scales=scales)


def _unpack(part: _Part, name: str) -> _Part:
    layout = _LAYOUTS[name]
    scale_shape = part.scales is not None and _scale_shape(part, "rows")

    def unpack_weight(packed: Tensor) -> Tensor:
        rows = layout.unpack_weight(packed, part.rows, part.width)
        return _out_of_turns(rows) if part.takes_turns else rows

    def unpack_scales(packed: Tensor) -> Tensor:
        rows = layout.unpack_scales(packed, *scale_shape)
        return _out_of_turns(rows) if part.takes_turns else rows

    weight, scales = _per_expert(part.weight, part.lead, unpack_weight), part.scales
    if scales is not None and layout.has_scales_by_row(part.format):
        scales = _per_expert(scales, part.lead, unpack_scales)
    return part._replace(weight=weight, scales=scales)


def _per_expert(tensor: Tensor, lead: tuple[int, ...], permute) -> Tensor:
    """permute() of the bits of each expert, one after the other: there is a copy of one only."""
    bits = tensor.resolve_neg().view(_BITS[tensor.element_size()])
    shape = permute(bits.new_empty(bits.shape[len(lead) :], device="meta")).shape
    out = bits.new_empty((*lead, *shape))
    ask_for_huge_pages(out)
    for target, expert in zip(out, bits, strict=True) if lead else [(out, bits)]:
        target.copy_(permute(expert))
    return out.view(tensor.dtype)


def _in_turns(rows: Tensor) -> Tensor:
    return rows.unflatten(0, (2, len(rows) // 2)).transpose(0, 1).flatten(0, 1)


def _out_of_turns(rows: Tensor) -> Tensor:
    return rows.unflatten(0, (len(rows) // 2, 2)).transpose(0, 1).flatten(0, 1)
