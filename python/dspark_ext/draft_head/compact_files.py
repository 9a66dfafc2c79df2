"""The file format of the compact draft head: one safetensors file, its config in the header."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .checkpoint_files import CheckpointError, Entry, Findings, check_d2t, read_header
from .files import replace_file

if TYPE_CHECKING:
    from .compact import CompactDraftHead

FORMAT = "dspark_ext.draft_head.v1"
FP8_MAX = 448.0

_FLOATS, _CODES = ("F32", "BF16", "F16"), ("F8_E4M3",)


def save(head: CompactDraftHead, path: Path, metadata: dict[str, str] | None) -> None:
    """See `CompactDraftHead.save`."""
    from safetensors.torch import save_file

    tensors = {}
    for name, value in head.named_tensors().items():
        value = value.detach().cpu()
        if is_quantised(name):
            value, scale = quantise_rows(value)
            tensors[scale_name(name)] = scale
        elif name != "d2t":
            value = value.float()
        tensors[name] = value.contiguous()
    header = {**(metadata or {}), "format": FORMAT, "config": head.config.to_json()}
    replace_file(path, lambda file: save_file(tensors, file, metadata=header))


def load(path: Path, dtype: torch.dtype) -> CompactDraftHead:
    """See `CompactDraftHead.load`. Headers are compared before any memory is taken."""
    from .compact import CompactDraftHead, CompactDraftHeadConfig

    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    findings = Findings(path)
    entries, metadata = read_header(path, findings)
    findings.raise_if_any()
    if metadata.get("format") != FORMAT or "config" not in metadata:
        found = f"{metadata.get('format')!r} and {sorted(metadata)}"
        findings.add("contradictions", f"header: expected format {FORMAT!r}, config; got {found}")
        findings.raise_if_any()
    config = CompactDraftHeadConfig.from_json(metadata["config"])
    parts = config.num_nextn_predict_layers * config.dspark_n_routed_experts
    if parts > 4 * len(entries) + 1000:
        findings.add("contradictions", f"the config asks for {parts} experts in all")
        findings.raise_if_any()
    try:
        with torch.device("meta"):
            expected = expected_tensors(CompactDraftHead(config, dtype))
    except RuntimeError as error:  # the product of two sizes is beyond int64
        reason = str(error).splitlines()[0]
        raise CheckpointError(str(path), {"contradictions": [f"sizes: {reason}"]}) from None
    _check(entries, expected, findings)
    findings.raise_if_any()
    head = CompactDraftHead(config, dtype)
    _fill(head, path, findings)
    findings.raise_if_any()
    return head.eval()


def expected_tensors(head: CompactDraftHead) -> dict[str, tuple[list[int], tuple[str, ...]]]:
    """Name in the file -> shape, and dtypes that it may have there."""
    expected = {}
    for name, value in head.named_tensors().items():
        shape = list(value.shape)
        if is_quantised(name):
            expected[name] = shape, _CODES
            expected[scale_name(name)] = shape[:1], ("F32",)
        else:
            expected[name] = shape, ("I64", "I32") if name == "d2t" else _FLOATS
    return expected


def _check(entries: Mapping[str, Entry], expected, findings: Findings) -> None:
    for name, (shape, dtypes) in expected.items():
        entry = entries.get(name)
        if entry is None:
            findings.add("missing", f"{name} {shape}")
            continue
        if list(entry.shape) != shape:
            findings.add("wrong shape", f"{name}: expected {shape}, found {list(entry.shape)}")
        if entry.dtype not in dtypes:
            wanted = " or ".join(dtypes)
            findings.add("wrong dtype", f"{name}: expected {wanted}, found {entry.dtype}")
    for name in sorted(entries.keys() - expected.keys()):
        findings.add("unexpected", f"{name} {entries[name]}")


@torch.no_grad()
def _fill(head: CompactDraftHead, path: Path, findings: Findings) -> None:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        for name, value in head.named_tensors().items():
            source = file.get_tensor(name)
            if is_quantised(name):
                source = source.float() * file.get_tensor(scale_name(name))[:, None]
            value.copy_(source)
    check_d2t(head.d2t, head.config.vocab_size, findings)


def quantise_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(fp8 e4m3 values, float32 scale per row)."""
    scale = weight.float().abs().amax(-1).clamp(min=1e-12) / FP8_MAX
    return (weight.float() / scale[:, None]).to(torch.float8_e4m3fn), scale


def scale_name(name: str) -> str:
    """Name of the scale of a quantised tensor."""
    return name.removesuffix(".weight") + ".scale"


def is_quantised(name: str) -> bool:
    """Whether a tensor is stored as fp8."""
    parts = name.split(".")
    return parts[-1] == "weight" and parts[-2] in {
        "main_proj", "q_proj", "k_proj", "v_proj", "o_proj", "w1", "w2", "w3",
        "markov_w1", "markov_w2",
    }  # fmt: skip
