"""A tiny model pair for tests: a byte-level llama-shaped target and its draft head.

Both were trained on the Python standard library's source, so prompts should look like Python. The
text they write is not meant to make sense; acceptance, identity and distributions are.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from ..draft_head.compact import CompactDraftHead, CompactDraftHeadConfig

PROMPTS = [
    'def get_name(self):\n    """Return the',
    "import os\nimport sys\n\nclass ",
    "    for key, value in self.",
    "        if not isinstance(",
    "    raise ValueError(",
]


def encode(text: str) -> list[int]:
    return list(text.encode())


def decode(token_ids: list[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


def target_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )


def draft_config() -> CompactDraftHeadConfig:
    return CompactDraftHeadConfig(
        hidden_size=128,
        vocab_size=256,
        draft_vocab_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        moe_intermediate_size=32,
        shared_intermediate_size=32,
        dspark_target_layer_ids=[1, 2, 3],
        num_nextn_predict_layers=2,
        dspark_markov_rank=32,
        dspark_n_routed_experts=4,
        dspark_num_experts_per_tok=2,
    )


def save_target(model: LlamaForCausalLM, path: str | Path) -> None:
    weights = {name: value.bfloat16().contiguous() for name, value in model.state_dict().items()}
    weights.pop("lm_head.weight")  # tied
    save_file(weights, path, metadata={"config": json.dumps(model.config.to_dict())})


def load_target(path: str | Path, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    with safe_open(path, "pt") as file:
        config = LlamaConfig.from_dict(json.loads(file.metadata()["config"]))
        weights = {name: file.get_tensor(name).float() for name in file.keys()}
    model = LlamaForCausalLM(config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True)
    model.tie_weights()
    return model.to(dtype).eval()


def load_pair(
    target_path: str | Path, drafter_path: str | Path, dtype: torch.dtype = torch.float32
) -> tuple[LlamaForCausalLM, CompactDraftHead]:
    """The target and its draft head, bound."""
    target = load_target(target_path, dtype)
    head = CompactDraftHead.load(drafter_path, dtype)
    head.bind_target(target.model.embed_tokens.weight, target.lm_head.weight)
    return target, head
