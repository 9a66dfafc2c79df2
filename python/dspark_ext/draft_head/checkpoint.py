"""Loads draft heads from released checkpoints, strictly: what does not fit is one error.

Weights stay in the format they are stored in. See docs/checkpoints.md for names and errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import formats
from .base import DSparkDraftHead
from .checkpoint_files import CheckpointError, CheckpointFiles, Entry, Findings, check_d2t
from .config import DEEPSEEK_FLAVOURS, DraftHeadConfig, read_config
from .config_files import flatten, recognise
from .names import (
    FIRST_NAMES,
    TARGET_NAMES,
    find_ambiguous,
    find_prefix,
    own_name,
    recognise_flavour,
)
from .quantized import FLOAT_DTYPES, QuantizedLinear

__all__ = ["CheckpointError", "check_draft_head", "load_draft_head", "read_checkpoint_config"]

# safetensors' word for the dtypes that a tensor of a kind may be stored in.
_FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_INTEGERS = ("I64", "I32")
_CODES = {"fp8_e4m3": ("F8_E4M3",), "mxfp4": ("I8", "U8", "F4")}
_SCALES = {"fp8_e4m3": ("F8_E8M0", "F32", "U8"), "mxfp4": ("F8_E8M0", "U8")}
_FORMAT_NAMES = {dtype: name for name, dtype in FLOAT_DTYPES.items()}


def load_draft_head(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    config: Mapping[str, Any] | DraftHeadConfig | None = None,
    target: tuple[Tensor, Tensor] | None = None,
) -> nn.Module:
    """A draft head from its checkpoint, in evaluation mode.

    Args:
        path: a safetensors file; a directory with one, or with shards and their index; a Hugging
            Face snapshot. A whole DeepSeek checkpoint will do: only files with tensors of the head
            are opened, and only its tensors are read.
        dtype: of float weights and activations. fp8 and mxfp4 weights stay as they are.
        device: where the tensors go.
        config: instead of the checkpoint's config.json.
        target: (embedding, lm_head weight), both [V, d], to share with the target. None: those in
            the checkpoint, if it has them; else `bind_target` must be called before drafting.

    Returns:
        A `DSparkDraftHead`, or the demo's `CompactDraftHead` for a file in its own format.

    Raises:
        CheckpointError: listing every tensor that is missing, unexpected, of another shape or
            dtype, in two shards, or ambiguous; every file that is missing, outside the directory
            or unreadable.
        ValueError: `dtype` is none of those that drafts can be drawn in, or a `config` for a file
            that has its own.
        ConfigError: the config is incomplete or contradicts itself.
    """
    from .compact import FORMAT, CompactDraftHead

    files = CheckpointFiles(path)
    if files.metadata.get("format") == FORMAT:
        if config is not None:
            raise ValueError(f"{path}: config: the file has its own in its header")
        head = CompactDraftHead.load(files.file, dtype).to(device)
        if target is not None:
            head.bind_target(*target)
        return head
    config, entries = _describe(files, config)
    head = _make_on_meta(path, config, entries, dtype=dtype)
    findings = _check(path, head, entries)
    own = {name: entry for name, entry in entries.items() if name not in TARGET_NAMES}
    _fill(head, files.read(own, device), findings)
    findings.raise_if_any()
    _finish(head, device)
    if target is None and getattr(config, "tie_word_embeddings", False):
        if "lm_head.weight" not in own and "embed_tokens.weight" in own:
            target = (head.embedding_weight, head.embedding_weight)
    if target is None and config.flavour in DEEPSEEK_FLAVOURS and set(TARGET_NAMES) <= set(entries):
        shared = dict(files.read({name: entries[name] for name in TARGET_NAMES}, device))
        target = tuple(shared[name].to(dtype) for name in TARGET_NAMES)
    if target is not None:
        head.bind_target(*target)
    return head.eval()


def read_checkpoint_config(
    path: str | Path, config: Mapping[str, Any] | None = None
) -> DraftHeadConfig:
    """The config of a checkpoint's draft head, with the weight formats that its tensors have.

    path    as for `load_draft_head`
    config  instead of the checkpoint's config.json

    Raises as `load_draft_head`."""
    return _describe(CheckpointFiles(path), config)[0]


def check_draft_head(path: str | Path, config: Mapping[str, Any] | None = None) -> DraftHeadConfig:
    """What `load_draft_head` finds out before it reads tensors: names, shapes, dtypes and files, by
    the headers alone. Arguments and errors are those of `read_checkpoint_config`."""
    config, entries = _describe(CheckpointFiles(path), config)
    _check(path, _make_on_meta(path, config, entries), entries)
    return config


def _make_on_meta(path, config: DraftHeadConfig, entries: Mapping[str, Entry], **options):
    """The head without its tensors. A checkpoint may map draft ids though they are all there."""
    from . import make_draft_head

    try:
        head = make_draft_head(config, device="meta", **options)
        if "d2t" in entries and config.flavour not in DEEPSEEK_FLAVOURS:
            head.d2t = torch.zeros(config.draft_vocab_size, dtype=torch.int64, device="meta")
        return head
    except RuntimeError as error:  # the product of two sizes is beyond int64
        reason = str(error).splitlines()[0]
        raise CheckpointError(str(path), {"contradictions": [f"sizes: {reason}"]}) from None


def _describe(files: CheckpointFiles, config) -> tuple[DraftHeadConfig, dict[str, Entry]]:
    """The config, and what the files say about the tensors of the head."""
    values = files.config if config is None else config
    by_names = recognise_flavour(files.names)
    findings = Findings(files.path)
    find_ambiguous(files.names, findings)
    if values is None:
        findings.add("missing files", "config.json: sizes are not told by tensor names")
    findings.raise_if_any()
    if isinstance(values, DraftHeadConfig):
        values = values.to_dict()
    flavour = _flavour(values, by_names)
    own = own_name(flavour)
    borrowed = TARGET_NAMES if flavour in DEEPSEEK_FLAVOURS else ()
    entries = files.entries(lambda name: own(name) or name in borrowed, findings)
    if not any(own(name) for name in entries):
        findings.add("missing", f"all tensors of a head of flavour {flavour}: no name is one's")
        find_prefix(FIRST_NAMES[flavour], files.names, findings)
    if by_names not in (None, flavour) and {by_names, flavour} & set(DEEPSEEK_FLAVOURS):
        findings.add(
            "contradictions", f"the config is of flavour {flavour}, the names are of {by_names}"
        )
    findings.raise_if_any()
    stored = _stored_formats(values, entries) if flavour in DEEPSEEK_FLAVOURS else {}
    config = read_config({**values, **stored}, flavour)
    _check_counts(config, len(entries), findings)
    findings.raise_if_any()
    return config, entries


def _check_counts(config: DraftHeadConfig, found: int, findings: Findings) -> None:
    """A config far beyond the files is refused before modules are made for it."""
    experts = config.dspark_n_routed_experts if config.flavour in DEEPSEEK_FLAVOURS else 1
    if config.num_layers * experts > 4 * found + 10_000:
        findings.add(
            "contradictions",
            f"the config asks for {config.num_layers} layers of {experts} experts, the files hold "
            f"{found} tensors",
        )


def _flavour(values: Mapping[str, Any], by_names: str | None) -> str:
    flat = flatten(values)
    try:
        return recognise(flat)
    except ValueError:
        if by_names is None:
            raise
        return by_names


def _stored_formats(values: Mapping[str, Any], entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The weight formats of a DeepSeek head, by the first tensor of either kind. All others are
    then expected to be like it."""
    stored: dict[str, Any] = {}
    dense, expert = "mtp.0.main_proj", "mtp.0.ffn.experts.0.w1"
    for key, layer in (("dense_format", dense), ("expert_format", expert)):
        entry = entries.get(f"{layer}.weight")
        format = entry and _format_of(entry)
        if not format:
            continue
        stored[key] = format
        scale = entries.get(f"{layer}.scale")
        if format == "fp8_e4m3" and "weight_block_size" not in stored and scale:
            stored["weight_block_size"] = _block(values, entry.shape, scale.shape)
    return {key: value for key, value in stored.items() if value}


def _format_of(entry: Entry) -> str | None:
    for format, dtypes in _CODES.items():
        if entry.dtype in dtypes:
            return format
    return _FORMAT_NAMES.get(_FLOATS.get(entry.dtype))


def _block(values: Mapping[str, Any], shape, scale_shape) -> list[int] | None:
    """The fp8 block that fits a weight and its scales: the config's, or a usual one."""
    quantization = values.get("quantization_config") or {}
    named = values.get("weight_block_size") or quantization.get("weight_block_size")
    if named:
        return list(named)
    for block in ((128, 128), (32, 32), (1, 32), (64, 64), (256, 256)):
        if len(shape) == 2 and formats.scale_shape(shape, block) == tuple(scale_shape):
            return list(block)
    return None


def _check(path, head: DSparkDraftHead, entries: Mapping[str, Entry]) -> Findings:
    """Compares the names, shapes and dtypes of the head with those of the files. Returns the list
    that later findings join, so far empty."""
    findings = Findings(f"{path}: does not fit a draft head of flavour {head.config.flavour}")
    expected = head.state_dict()
    layers = {n: m for n, m in head.named_modules() if isinstance(m, QuantizedLinear)}
    for name, tensor in expected.items():
        entry = entries.get(name)
        shape = list(tensor.shape)
        if entry is None:
            if name not in head.optional_names:
                findings.add("missing", f"{name} {shape}")
            continue
        layer, _, leaf = name.rpartition(".")
        format = layers[layer].format if layer in layers else None
        dtypes = _dtypes(format, leaf, tensor)
        found = list(entry.shape)
        if entry.dtype == "F4" and found:
            found[-1] //= 2  # its header counts numbers, not bytes
        if found != shape:
            findings.add("wrong shape", f"{name}: expected {shape}, found {found}")
        if entry.dtype not in dtypes:
            wanted = " or ".join(dtypes)
            findings.add("wrong dtype", f"{name}: expected {wanted}, found {entry.dtype}")
    for name in sorted(set(entries) - set(expected) - set(TARGET_NAMES)):
        findings.add("unexpected", f"{name} {entries[name]}")
    needed = [name for name in expected if name not in head.optional_names]
    find_prefix(needed, entries, findings)
    _check_target_names(head, entries, findings)
    findings.raise_if_any()
    return findings


def _check_target_names(head, entries: Mapping[str, Entry], findings: Findings) -> None:
    config = head.config
    for name in TARGET_NAMES:
        if config.flavour in DEEPSEEK_FLAVOURS and name in entries:
            expected, found = [config.vocab_size, config.hidden_size], entries[name]
            if list(found.shape) != expected:
                findings.add("wrong shape", f"{name}: expected {expected}, found {found}")
            if found.dtype not in _FLOATS:
                findings.add("wrong dtype", f"{name}: expected a float, found {found.dtype}")


def _dtypes(format: str | None, leaf: str, tensor: Tensor) -> tuple[str, ...]:
    if format in _CODES:
        return _SCALES[format] if leaf == "scale" else _CODES[format]
    return tuple(_FLOATS) if tensor.is_floating_point() else _INTEGERS


def _fill(head: DSparkDraftHead, tensors, findings: Findings) -> None:
    """Puts tensors in the place of the head's, in the head's dtype; codes and scales as stored."""
    places = dict(head.state_dict())
    layers = {n: m for n, m in head.named_modules() if isinstance(m, QuantizedLinear)}
    loaded = {}
    for name, tensor in tensors:
        layer, _, leaf = name.rpartition(".")
        format = layers[layer].format if layer in layers else None
        if format in _CODES:
            tensor = _as_stored(tensor, leaf, places[name].dtype)
        else:
            tensor = tensor.to(places[name].dtype)
        if name == "d2t":
            check_d2t(tensor, head.config.vocab_size, findings)
        loaded[name] = tensor
    head.load_state_dict(loaded, strict=False, assign=True)


def _as_stored(tensor: Tensor, leaf: str, dtype: torch.dtype) -> Tensor:
    if leaf == "scale":
        return tensor if tensor.dtype == torch.float32 else tensor.view(torch.float8_e8m0fnu)
    return tensor.view(dtype)


def _finish(head: DSparkDraftHead, device) -> None:
    """What no checkpoint must hold: zeros for an absent `bias_vl`, which nothing reads, and for the
    factors of a head without a Markov bias. Absent embeddings wait for `bind_target`."""
    for module in head.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                module._buffers[name] = torch.zeros_like(buffer, device=device)
