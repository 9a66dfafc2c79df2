"""state_dict() has the names and shapes of the released checkpoints."""

import pytest
import released_configs as files

from dspark_ext.draft_head import make_draft_head, read_config

ATTENTION = {
    "attn.wq_a.weight": (1280, 5120),
    "attn.wq_b.weight": (32768, 1280),
    "attn.wkv.weight": (512, 5120),
    "attn.wo_a.weight": (8192, 4096),
    "attn.wo_b.weight": (5120, 8192),
    "attn.q_norm.weight": (1280,),
    "attn.kv_norm.weight": (512,),
    "attn.attn_sink": (64,),
    "attn_norm.weight": (5120,),
    "ffn_norm.weight": (5120,),
}
ROUTER = {"ffn.gate.weight": (128, 5120), "ffn.gate.bias": (128,)}
STREAMS = {
    f"hc_{part}_{name}": shape
    for part in ("attn", "ffn")
    for name, shape in (("fn", (24, 20480)), ("base", (24,)), ("scale", (3,)))
}


def expert(name):
    return {
        f"ffn.{name}.w1.weight": (2304, 5120),
        f"ffn.{name}.w2.weight": (5120, 2304),
        f"ffn.{name}.w3.weight": (2304, 5120),
    }


def stage():
    names = {**ATTENTION, **ROUTER, **STREAMS, **expert("shared_experts")}
    for index in range(128):
        names |= expert(f"experts.{index}")
    return names


def v41():
    names = {f"mtp.{i}.{name}": shape for i in range(3) for name, shape in stage().items()}
    names |= {f"mtp.{i}.ffn.gate.bias_vl": (128,) for i in range(3)}
    return {
        **names,
        "mtp.0.main_proj.weight": (5120, 15360),
        "mtp.0.main_norm.weight": (5120,),
        "mtp.2.norm.weight": (5120,),
        "mtp.2.markov_head.embed.weight": (129280, 256),
        "mtp.2.markov_head.head.weight": (129280, 256),
        "mtp.2.confidence_head.proj.weight": (1, 5376),
    }


def v4():
    names = {name: shape for name, shape in v41().items() if "bias_vl" not in name}
    for new, old in (("markov_w1", "embed"), ("markov_w2", "head")):
        shape = names.pop(f"mtp.2.markov_head.{old}.weight")
        names[f"mtp.2.markov_head.{new}.weight"] = shape
    return {
        **names,
        "mtp.2.hc_head_fn": (4, 20480),
        "mtp.2.hc_head_base": (4,),
        "mtp.2.hc_head_scale": (1,),
    }


def qwen3(layers=5):
    names = {
        "embed_tokens.weight": (151936, 2560),
        "lm_head.weight": (151936, 2560),
        "fc.weight": (2560, 12800),
        "hidden_norm.weight": (2560,),
        "norm.weight": (2560,),
        "markov_head.markov_w1.weight": (151936, 256),
        "markov_head.markov_w2.weight": (151936, 256),
        "confidence_head.proj.weight": (1, 2816),
        "confidence_head.proj.bias": (1,),
    }
    for i in range(layers):
        names |= {
            f"layers.{i}.self_attn.q_proj.weight": (4096, 2560),
            f"layers.{i}.self_attn.k_proj.weight": (1024, 2560),
            f"layers.{i}.self_attn.v_proj.weight": (1024, 2560),
            f"layers.{i}.self_attn.o_proj.weight": (2560, 4096),
            f"layers.{i}.self_attn.q_norm.weight": (128,),
            f"layers.{i}.self_attn.k_norm.weight": (128,),
            f"layers.{i}.mlp.gate_proj.weight": (9728, 2560),
            f"layers.{i}.mlp.up_proj.weight": (9728, 2560),
            f"layers.{i}.mlp.down_proj.weight": (2560, 9728),
            f"layers.{i}.input_layernorm.weight": (2560,),
            f"layers.{i}.post_attention_layernorm.weight": (2560,),
        }
    return names


def shapes(values):
    head = make_draft_head(read_config(values), device="meta")
    return {name: tuple(value.shape) for name, value in head.state_dict().items()}, head


def plain(values):
    """The V4.1 file in bf16, so that no weight has a scale beside it."""
    return {**values["text_config"], "model_type": "deepseek_v4.1"}


def test_v41():
    found, head = shapes(plain(files.V41))
    assert found == v41()
    assert set(head.optional_names) == {f"mtp.{i}.ffn.gate.bias_vl" for i in range(3)}


def test_v4():
    found, _ = shapes({**plain(files.V41), "model_type": "deepseek_v4"})
    assert found == v4()


def test_quantized_weights_have_scales():
    found, _ = shapes(files.V41)
    scales = {name for name in found if name.endswith(".scale")}
    linears = {name for name in v41() if ".wq_" in name or ".wkv." in name or ".wo_" in name}
    linears |= {name for name in v41() if name.split(".")[-2] in ("w1", "w2", "w3", "main_proj")}
    assert scales == {name.replace(".weight", ".scale") for name in linears}
    assert found["mtp.0.ffn.experts.0.w1.weight"] == (2304, 2560)
    assert found["mtp.0.ffn.experts.0.w1.scale"] == (2304, 160)
    assert found["mtp.0.attn.wq_a.scale"] == (40, 160)


def test_qwen3():
    found, head = shapes(files.QWEN3)
    assert found == qwen3()
    assert set(head.optional_names) == {"embed_tokens.weight", "lm_head.weight"}


@pytest.mark.parametrize(
    "kind,more",
    [
        ("gated", {"gate_proj.weight": (256, 2816), "gate_proj.bias": (256,)}),
        ("rnn", {"joint_proj.weight": (768, 3072), "joint_proj.bias": (768,)}),
    ],
)
def test_markov_heads(kind, more):
    found, _ = shapes({**files.QWEN3, "markov_head_type": kind})
    assert found == {**qwen3(), **{f"markov_head.{name}": size for name, size in more.items()}}


def test_reduced_vocabulary():
    found, _ = shapes({**files.QWEN3, "draft_vocab_size": 32000})
    assert found["d2t"] == (32000,) and found["lm_head.weight"] == (32000, 2560)
    assert found["markov_head.markov_w1.weight"] == (151936, 256)
    assert found["markov_head.markov_w2.weight"] == (32000, 256)


def test_gemma4():
    found, _ = shapes(files.GEMMA4)
    layer = {name[9:] for name in found if name.startswith("layers.0.")}
    assert layer == {
        "layer_scalar",
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        "pre_feedforward_layernorm.weight",
        "post_feedforward_layernorm.weight",
        *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
        *(f"self_attn.{name}_proj.weight" for name in "qko"),
        *(f"self_attn.{name}_norm.weight" for name in "qk"),
    }
    both, _ = shapes({**files.GEMMA4, "attention_k_eq_v": False})
    assert set(both) - set(found) == {f"layers.{i}.self_attn.v_proj.weight" for i in range(5)}
    assert found["layers.0.self_attn.k_proj.weight"] == (512, 3840)
    assert both["layers.0.self_attn.k_proj.weight"] == (4096, 3840)
