"""Small draft heads of every flavour with random weights in which every step matters."""

import contextlib
import dataclasses
import errno
import pathlib

import pytest
import torch

from dspark_ext import draft_head
from dspark_ext.draft_head import DeepSeekDraftConfig, DenseDraftConfig

VOCAB = 37


def deepseek(flavour, **changes):
    values = {
        "flavour": flavour,
        "hidden_size": 24,
        "vocab_size": VOCAB,
        "num_attention_heads": 4,
        "head_dim": 12,
        "qk_rope_head_dim": 4,
        "q_lora_rank": 10,
        "o_lora_rank": 6,
        "o_groups": 2,
        "moe_intermediate_size": 14,
        "dspark_n_routed_experts": 6,
        "dspark_num_experts_per_tok": 3 if flavour == "deepseek_v41" else 2,
        "dspark_target_layer_ids": (1, 2, 3),
        "dspark_noise_token_id": VOCAB - 1,
        "dspark_markov_rank": 8,
        "sliding_window": 6,
        "swiglu_limit": 0.5,
        "rope_theta": 100.0,
        "rms_norm_eps": 1e-20 if flavour == "deepseek_v41" else 1e-6,
        **changes,
    }
    return DeepSeekDraftConfig(**values)


def dense(flavour, **changes):
    values = {
        "flavour": flavour,
        "hidden_size": 24,
        "vocab_size": VOCAB,
        "intermediate_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "target_layer_ids": (0, 2),
        "mask_token_id": 4,
        "block_size": 5,
        "markov_rank": 8,
        "rope_theta": 100.0,
        **changes,
    }
    return DenseDraftConfig(**values)


CONFIGS = {
    "v41": deepseek("deepseek_v41"),
    "v4": deepseek("deepseek_v4"),
    "qwen3": dense("qwen3"),
    "qwen3-1+K": dense("qwen3", sample_from_anchor=False, block_size=6),
    "qwen3-reduced": dense("qwen3", draft_vocab_size=20, confidence_head_with_markov=False),
    "qwen3-dflash": dense(
        "qwen3", sample_from_anchor=False, block_size=6, markov_rank=0, enable_confidence_head=False
    ),
    "gemma4": dense("gemma4", final_logit_softcapping=3.0),
    "gemma4-k=v": dense("gemma4", attention_k_eq_v=True, partial_rotary_factor=0.5),
}


def make(config, *, dtype=torch.float32, seed=0, max_requests=6, max_len=40, max_rollback=4):
    """A head with every tensor random, bound and with its context."""
    head = draft_head.make_draft_head(config, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, spread=1.0):
        return torch.randn(*shape, generator=generator) * spread

    for name, value in head.state_dict().items():
        if name == "d2t":
            ids = torch.randperm(config.vocab_size, generator=generator)[: len(value)].sort().values
            value.copy_(ids - torch.arange(len(value)))
        elif name.endswith(("norm.weight", "layernorm.weight", "layer_scalar")):
            value.copy_(1 + random(*value.shape, spread=0.3))
        elif value.dim() < 2:
            value.copy_(random(*value.shape, spread=0.7))
        else:
            value.copy_(random(*value.shape, spread=value.shape[-1] ** -0.5))
    size = (config.vocab_size, config.hidden_size)
    embedding, output = random(*size, spread=0.5).to(dtype), random(*size, spread=0.4).to(dtype)
    head.bind_target(embedding, output)
    head.allocate_context(max_requests, max_len, max_rollback=max_rollback)
    return head.eval()


def features(config, count, seed=1):
    """[count, F] of one request; the first n rows of more rows are the rows of n."""
    rows = [
        torch.randn(config.num_features, generator=torch.Generator().manual_seed(1000 * seed + i))
        for i in range(count)
    ]
    return torch.stack(rows) if rows else torch.empty(0, config.num_features)


def fill(head, slot, count, seed=1, start=0):
    """Append positions start .. count-1 of the request `seed` to `slot`."""
    positions = torch.arange(start, count)
    rows = features(head.config, count, seed)[start:]
    head.append(rows, positions, torch.full_like(positions, slot))


def draft(head, anchors, positions, slots, **changes):
    arguments = {
        "temperature": 0.8,
        "seeds": torch.arange(len(anchors)) + 5,
        **changes,
    }
    tensors = (torch.tensor(values, dtype=torch.int64) for values in (anchors, positions, slots))
    return head.draft(*tensors, **arguments)


def hidden(head, anchors, positions, slots, drafts=None):
    tensors = (torch.tensor(values, dtype=torch.int64) for values in (anchors, positions, slots))
    return head.block_hidden(*tensors, drafts or head.config.trained_drafts)


replace = dataclasses.replace


@contextlib.contextmanager
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check_full_disk(monkeypatch, path: pathlib.Path, save) -> None:
    """`save(path)` fails half way, and leaves the file that was there and nothing beside it."""
    before = path.read_bytes()

    def full(tensors, file, metadata):
        pathlib.Path(file).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
