"""Tiny random models of many types of transformers."""

import torch
import transformers

VOCAB = 90
SIZES = dict(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
GROUPED = {"num_key_value_heads": 2, "head_dim": 12}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
USED = {"use_sliding_window": True}
SHARED = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 6,
    "vocab_size_per_layer_input": 90,
    "hidden_size_per_layer_input": 8,
    "global_head_dim": 16,
}
GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
LATENT = dict(
    kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=6, qk_nope_head_dim=10, v_head_dim=12,
    n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1,
    moe_intermediate_size=20, num_key_value_heads=4,
)  # fmt: skip
SERVED = {
    "llama": ("Llama", GROUPED),
    "mistral, window of 5": ("Mistral", {**GROUPED, "sliding_window": 5}),
    "qwen2": ("Qwen2", GROUPED),
    "qwen3, windows of 6": ("Qwen3", {**GROUPED, **WINDOWS, **USED, "sliding_window": 6}),
    "qwen3_moe": ("Qwen3Moe", {**GROUPED, **EXPERTS, "moe_intermediate_size": 24}),
    "gemma": ("Gemma", GROUPED),
    "gemma2, softcap, windows of 6": ("Gemma2", {**GROUPED, **WINDOWS, "sliding_window": 6}),
    "gemma3, windows of 6": ("Gemma3", {**GROUPED, **WINDOWS, "sliding_window": 6}),
    "gemma4, shared keys": ("Gemma4", {**GROUPED, **SHARED}),
    "llama4, chunks of 6": ("Llama4", {**GROUPED, **EXPERTS, "attention_chunk_size": 6}),
    "gpt_oss, sinks, windows of 6": ("GptOss", {**GROUPED, **EXPERTS, "sliding_window": 6}),
    "mixtral": ("Mixtral", {**GROUPED, **EXPERTS}),
    "deepseek_v3, latent attention": ("DeepseekV3", LATENT),
    "gpt2": ("GPT2", GPT2),
    "gpt_neox": ("GPTNeoX", {}),
    "gpt_bigcode": ("GPTBigCode", GPT2),
    "opt": ("OPT", {"ffn_dim": 80, "word_embed_proj_dim": 48}),
    "phi": ("Phi", {}),
    "phi3": ("Phi3", {"num_key_value_heads": 2}),
    "olmo2": ("Olmo2", {"num_key_value_heads": 2}),
    "cohere": ("Cohere", {"num_key_value_heads": 2}),
    "granite": ("Granite", {"num_key_value_heads": 2}),
    "starcoder2": ("Starcoder2", {"num_key_value_heads": 2}),
    "smollm3": ("SmolLM3", {"num_key_value_heads": 2}),
}
CONFIGS = {"Gemma3": "Gemma3Text", "Gemma4": "Gemma4Text", "Llama4": "Llama4Text"}
MODELS = {"GPT2": "GPT2LMHead"}


def random_config(family: str, **extra):
    config = getattr(transformers, f"{CONFIGS.get(family, family)}Config")(**{**SIZES, **extra})
    config._attn_implementation = "eager"
    return config


def random_model(family: str, extra: dict, seed: int = 5):
    name = MODELS.get(family, f"{family}ForCausal")
    model_class = getattr(transformers, f"{name}Model" if family in MODELS else f"{name}LM")
    torch.manual_seed(seed)
    model = model_class(random_config(family, **extra)).eval()
    with torch.no_grad():  # attention that matters, norms and biases too
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(4)
    return model


def served_model(name: str):
    return random_model(*SERVED[name])
