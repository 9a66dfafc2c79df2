"""Small random draft heads on disk, for the tests of checkpoints."""

import json

import draft_heads
import torch
from draft_heads import deepseek, dense
from safetensors.torch import load_file, save_file

from dspark_ext.draft_head import make_draft_head
from dspark_ext.draft_head.quantized import QuantizedLinear
from dspark_ext.draft_head.write import save_draft_head

SIZES = {"hidden_size": 72, "moe_intermediate_size": 40, "q_lora_rank": 34}  # partial blocks

FORMATS = {
    "bf16": {},
    "fp16": {"dense_format": "fp16", "expert_format": "fp16"},
    "fp32": {"dense_format": "fp32", "expert_format": "fp32"},
    "fp8-128": {"dense_format": "fp8_e4m3", "weight_block_size": (128, 128)},
    "fp8-32": {"dense_format": "fp8_e4m3", "weight_block_size": (32, 32)},
    "mxfp8": {"dense_format": "fp8_e4m3", "weight_block_size": (1, 32)},
    "released": {
        "dense_format": "fp8_e4m3",
        "expert_format": "mxfp4",
        "weight_block_size": (32, 32),
    },
}
for _name in ("fp8-128", "fp8-32", "mxfp8"):
    FORMATS[_name]["expert_format"] = "fp8_e4m3"
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}

# id -> (config, dtype of the head): every flavour in every weight format
HEADS = {
    f"{flavour}-{name}": (
        deepseek(f"deepseek_{flavour}", **SIZES, **changes),
        DTYPES.get(name, torch.bfloat16),
    )
    for flavour in ("v41", "v4")
    for name, changes in FORMATS.items()
}
HEADS |= {
    f"{name}-{dtype}".replace("torch.", ""): (config, dtype)
    for name, config in draft_heads.CONFIGS.items()
    if not name.startswith("v4")
    for dtype in (torch.bfloat16, torch.float16, torch.float32)
}
HEADS["qwen3-gated"] = (dense("qwen3", markov_head_type="gated"), torch.bfloat16)
HEADS["qwen3-rnn"] = (dense("qwen3", markov_head_type="rnn"), torch.bfloat16)
V41 = HEADS["v41-released"]
V4 = HEADS["v4-released"]


def make(config, dtype=torch.bfloat16, seed=0):
    """A head with every tensor random, in the formats of its config; embeddings unbound."""
    head = make_draft_head(config, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    layers = {n: m for n, m in head.named_modules() if isinstance(m, QuantizedLinear)}
    for name, tensor in head.state_dict().items():
        if name == "d2t":
            ids = torch.randperm(config.vocab_size, generator=generator)[: len(tensor)]
            tensor.copy_(ids.sort().values - torch.arange(len(tensor)))
        elif name.rpartition(".")[0] in layers:
            layer = layers[name.rpartition(".")[0]]
            if name.endswith(".weight"):
                shape = (layer.out_features, layer.in_features)
                layer.set_weight(torch.randn(shape, generator=generator) / 8)
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return head.eval()


def saved(tmp_path, config, dtype=torch.bfloat16, **options):
    """(head, directory of its checkpoint)."""
    head = make(config, dtype)
    directory = tmp_path / "checkpoint"
    save_draft_head(head, directory, **options)
    return head, directory


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same_state(got, expected, but=()):
    got, expected = got.state_dict(), expected.state_dict()
    assert list(got) == list(expected)
    for name in set(expected) - set(but):
        assert got[name].dtype == expected[name].dtype, name
        assert got[name].shape == expected[name].shape, name
        assert torch.equal(bits(got[name]), bits(expected[name])), name


def edit(directory, change, file="model.safetensors"):
    """Rewrites one file after `change(tensors)`, which may return another dict."""
    tensors = load_file(directory / file)
    changed = change(tensors)
    tensors = changed if isinstance(changed, dict) else tensors
    save_file(tensors, directory / file, {"format": "pt"})


def edit_json(directory, change, file="config.json"):
    values = json.loads((directory / file).read_text())
    changed = change(values)
    values = changed if isinstance(changed, dict) else values
    (directory / file).write_text(json.dumps(values))
