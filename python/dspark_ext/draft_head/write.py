"""Writes draft heads as released checkpoints: the same names, formats and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .base import DSparkDraftHead
from .checkpoint_files import CONFIG, INDEX, SINGLE
from .config import DEEPSEEK_FLAVOURS, DraftHeadConfig
from .files import replace_file
from .names import part_of
from .quantized import QuantizedLinear

_ARCHITECTURES = {
    "deepseek_v41": "DeepseekV41ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "qwen3": "Qwen3DSparkModel",
    "gemma4": "Gemma4DSparkModel",
}


def save_draft_head(
    head: DSparkDraftHead,
    directory: str | Path,
    *,
    max_shard_bytes: int = 5_000_000_000,
    embeddings: bool = True,
) -> list[Path]:
    """Writes model.safetensors and config.json; above a size, shards and their index.

    Tensors have their released names. Codes and scales are written as they are (packed fp4 as I8),
    float weights in their dtype, norms and `layer_scalar` in the head's dtype where that loses
    nothing; hyper-connections, routing biases, sinks and confidence in float32. `load_draft_head`
    gives back the same bits.

    Args:
        head: of any flavour. The demo's `CompactDraftHead` has its own `save`.
        directory: made if need be; must not hold a checkpoint yet.
        max_shard_bytes: a file takes tensors until the next would exceed this.
        embeddings: whether a dense head's embedding and output matrix are written, too. DeepSeek
            heads have none of their own.

    Returns:
        The safetensors files, in the order of their numbers.

    Raises:
        FileExistsError: the directory holds safetensors files.
        OSError: the files cannot be written, the disk is full, say. None of them is left.
        ValueError: a tensor has no data (it is on the meta device), or the head is of another kind.
    """
    from safetensors.torch import save_file

    if not isinstance(head, DSparkDraftHead):
        raise ValueError(
            f"save_draft_head: expected a DSparkDraftHead, got {type(head).__name__}; a "
            f"CompactDraftHead has its own `save`"
        )
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    present = sorted(directory.glob("*.safetensors*"))
    if present:
        raise FileExistsError(f"{directory} holds {present[0].name}; name an empty directory")
    shards = _shards(released_tensors(head, embeddings=embeddings), max_shard_bytes)
    names = _file_names(len(shards))
    files = [directory / name for name in names]
    try:
        for file, tensors in zip(files, shards):
            replace_file(file, lambda part, t=tensors: save_file(t, part, {"format": "pt"}))
        if len(shards) > 1:
            _write_json(directory / INDEX, _index(names, shards))
        _write_json(directory / CONFIG, released_config(head.config))
    except BaseException:
        for file in (*files, directory / INDEX):
            file.unlink(missing_ok=True)
        raise
    return files


def released_tensors(head: DSparkDraftHead, *, embeddings: bool = True) -> dict[str, Tensor]:
    """Name -> tensor on the CPU, as released."""
    packed = {
        f"{name}.weight"
        for name, module in head.named_modules()
        if isinstance(module, QuantizedLinear) and module.format == "mxfp4"
    }
    tensors = {}
    for name, tensor in head.state_dict().items():
        part = part_of(name)
        if part == "vocabulary" and name != "d2t" and not embeddings:
            continue
        if tensor.is_meta:
            raise ValueError(f"save_draft_head: {name} has no data; load or bind it first")
        tensor = tensor.detach().cpu()
        if name in packed:
            tensor = tensor.view(torch.int8)
        elif part == "norms":
            narrow = tensor.to(head.dtype)
            tensor = narrow if torch.equal(narrow.to(tensor.dtype), tensor) else tensor
        tensors[name] = tensor.contiguous()
    return tensors


def released_config(config: DraftHeadConfig) -> dict[str, Any]:
    """A config.json that `read_config` reads back, with the keys by which others know it."""
    values = config.to_dict()
    values["model_type"] = config.flavour
    values["architectures"] = [_ARCHITECTURES[config.flavour]]
    if config.flavour in DEEPSEEK_FLAVOURS:
        if config.dense_format == "fp8_e4m3":
            values["quantization_config"] = {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "scale_fmt": "ue8m0",
                "weight_block_size": list(config.weight_block_size),
            }
        if config.expert_format == "mxfp4":
            values["expert_dtype"] = "fp4"
    return values


def _shards(tensors: dict[str, Tensor], max_bytes: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    places: set[int] = set()  # safetensors refuses tensors that share memory: each is written whole
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > max_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.clone() if tensor.data_ptr() in places else tensor
        places.add(tensor.data_ptr())
        size += tensor.nbytes
    return shards


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE]
    return [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def _index(names: list[str], shards: list[dict[str, Tensor]]) -> dict[str, Any]:
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    weight_map = {key: name for name, shard in zip(names, shards) for key in shard}
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def _write_json(file: Path, values: dict[str, Any]) -> None:
    text = json.dumps(values, indent=2) + "\n"
    replace_file(file, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))
