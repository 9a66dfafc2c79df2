"""The served target and drafter against the models they were made from."""

import pytest
import torch
import transformers

from dspark_ext.engine import (
    DraftBatch,
    DSparkDrafter,
    HuggingFaceTarget,
    TargetBatch,
    UnsupportedModelError,
)

SIZES = dict(
    vocab_size=90,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    max_position_embeddings=64,
)
MODELS = {
    "llama": ("Llama", {}),
    "llama, linear RoPE, biases": (
        "Llama",
        {
            "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "llama, dynamic RoPE": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}},
    ),
    "mistral, window of 5": ("Mistral", {"sliding_window": 5}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3, window of 6 from layer 1": (
        "Qwen3",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
}


def random_model(name):
    family, extra = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**SIZES, **extra)
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():  # norms and biases that matter
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(4)
    return model


def rows_of(ids, start=0, slot=0):
    count = torch.arange(len(ids))
    return TargetBatch(ids, start + count, torch.full_like(count, slot), count)


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_features_match_transformers(name):
    model = random_model(name)
    target = HuggingFaceTarget(model, [2, 0], max_requests=2, max_len=32)
    ids = torch.arange(17) * 29 % 90
    with torch.inference_mode():
        expected = model(ids[None], output_hidden_states=True)
    layer_outputs = []
    hooks = [
        model.model.layers[tap].register_forward_hook(
            lambda _, __, output: layer_outputs.append(output)
        )
        for tap in (2, 0)
    ]
    with torch.inference_mode():
        model(ids[None])
    for hook in hooks:
        hook.remove()
    features = torch.cat(layer_outputs[::-1], -1)[0]
    chunks = [target.forward(rows_of(ids[:11])), target.forward(rows_of(ids[11:], 11))]
    torch.testing.assert_close(
        torch.cat([chunk.logits for chunk in chunks]), expected.logits[0], rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(
        torch.cat([chunk.features for chunk in chunks]), features, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_row_does_not_depend_on_its_company(name, dtype):
    target = HuggingFaceTarget(
        random_model(name), [0, 1, 2], max_requests=3, max_len=32, weight_dtype=dtype
    )
    ids = torch.arange(20) * 31 % 90
    together = target.forward(rows_of(ids))
    other = rows_of(ids.flip(0), slot=2)
    for start, stop in ((0, 1), (1, 2), (2, 8), (8, 19), (19, 20)):
        mine = rows_of(ids[start:stop], start, slot=1)
        mixed = TargetBatch(
            torch.cat([other.input_ids, mine.input_ids]),
            torch.cat([other.positions, mine.positions]),
            torch.cat([other.slots, mine.slots]),
            torch.arange(20, 20 + stop - start),
        )
        apart = target.forward(mixed)
        assert torch.equal(apart.logits, together.logits[start:stop])
        assert torch.equal(apart.features[20:], together.features[start:stop])


def test_unsupported_models_and_taps_are_refused():
    model = random_model("llama")
    with pytest.raises(ValueError, match=r"taps: expected layers in \[0, 3\), got 3"):
        HuggingFaceTarget(model, [3], max_requests=1, max_len=8)
    model.config.hidden_act = "gelu"
    with pytest.raises(ValueError, match="expected hidden_act 'silu', got 'gelu'"):
        HuggingFaceTarget(model, [0], max_requests=1, max_len=8)
    model.config.model_type = "gemma"
    with pytest.raises(ValueError, match="expected a model type of llama, .*, got 'gemma'"):
        HuggingFaceTarget(model, [0], max_requests=1, max_len=8)


def test_rope_that_follows_the_longest_request_is_refused():
    """Beyond its length one table of it would not be that of short requests."""
    model = random_model("llama, dynamic RoPE")
    with pytest.raises(UnsupportedModelError, match="type dynamic.* at most 64, got 65"):
        HuggingFaceTarget(model, [0], max_requests=1, max_len=65)


def test_drafter_matches_its_head(tiny_pair, serve):
    """Hidden rows of the block, against the head's own modules and plain softmax attention."""
    head, drafter = tiny_pair[1], serve(max_requests=4).drafter
    config, length = head.config, 150  # longer than the window
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(length, drafter.num_features, generator=generator)
    positions, slots = torch.arange(length), torch.full((length,), 2)
    drafter.append(features[:40], positions[:40], slots[:40])
    drafter.append(features[40:], positions[40:], slots[40:])
    anchor, position = torch.tensor([65]), torch.tensor([length])

    def attend(stage, query, key, value):
        context = head.context_kv(head.combine(features), positions)[stage]
        key, value = (
            torch.cat([cached[-config.sliding_window :], block[0]]).repeat_interleave(
                config.num_attention_heads // config.num_key_value_heads, 1
            )
            for cached, block in zip(context, (key, value))
        )
        scores = torch.einsum("khd,lhd->khl", query[0], key) * config.head_dim**-0.5
        return torch.einsum("khl,lhd->khd", scores.softmax(-1), value)[None]

    with torch.inference_mode():
        expected = head.backbone(anchor, position, attend)[0]
        batch = DraftBatch(anchor, position, torch.tensor([2]), torch.zeros(1), torch.zeros(1))
        torch.testing.assert_close(drafter._backbone(batch), expected, rtol=1e-4, atol=1e-4)


def test_drafter_names_a_wrong_target(tiny_pair):
    wrong = torch.zeros(90, 48)
    with pytest.raises(ValueError, match=r"embedding: expected shape \[256, 128\], got \[90, 48\]"):
        DSparkDrafter(tiny_pair[1], wrong, wrong, max_requests=1, max_len=8)
