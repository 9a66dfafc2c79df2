"""One layer of a head without context is a layer of its target with a mask that hides nothing.

So the layers of transformers, which other people wrote, check the modules and the reference.
"""

import draft_heads
import pytest
import torch

from dspark_ext.draft_head import hyper_connections

pytest.importorskip("transformers")
from transformers import Qwen3Config  # noqa: E402
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

deepseek = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
gemma = pytest.importorskip("transformers.models.gemma4.modeling_gemma4")

ANCHOR, START, ROWS = 11, 7, 5
POSITIONS = torch.arange(START, START + ROWS)[None]
CLOSE = {"rtol": 1e-4, "atol": 2e-5}
SEES_ALL = torch.zeros(1, 1, ROWS, ROWS)


def block(head):
    """Embedded inputs [1, R, d] and the rows that come out, of a block that sees no context."""
    ids = torch.full((1, ROWS), head.config.mask_token)
    ids[0, 0] = ANCHOR
    return head.embed(ids), draft_heads.hidden(head, [ANCHOR], [START], [-1], ROWS)


def layer_weights(head, prefix):
    weights = head.state_dict()
    return {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}


def sizes(config):
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "head_dim", "rms_norm_eps", "vocab_size")  # fmt: skip
    return {name: getattr(config, name) for name in names}


@torch.no_grad()
def test_qwen3_layer():
    head = draft_heads.make(draft_heads.dense("qwen3", num_hidden_layers=1))
    rope = {"rope_type": "default", "rope_theta": head.config.rope_theta}
    config = Qwen3Config(**sizes(head.config), rope_parameters=rope, attn_implementation="eager")
    layer = Qwen3DecoderLayer(config, 0).eval()
    layer.load_state_dict(layer_weights(head, "layers.0."))
    x, rows = block(head)
    turn = Qwen3RotaryEmbedding(config)(x, POSITIONS)
    y = layer(x, attention_mask=SEES_ALL, position_embeddings=turn)
    y = y[0] if isinstance(y, tuple) else y
    torch.testing.assert_close(rows, y, **CLOSE)


@pytest.mark.parametrize("k_eq_v", [False, True])
@torch.no_grad()
def test_gemma4_layer(k_eq_v):
    head = draft_heads.make(
        draft_heads.dense(
            "gemma4", num_hidden_layers=1, attention_k_eq_v=k_eq_v, partial_rotary_factor=0.5
        )
    )
    rope = {
        "rope_type": "proportional",
        "rope_theta": head.config.rope_theta,
        "partial_rotary_factor": 0.5,
    }
    config = gemma.Gemma4TextConfig(
        **sizes(head.config),
        global_head_dim=head.config.head_dim,
        num_global_key_value_heads=head.config.num_key_value_heads,
        attention_k_eq_v=k_eq_v,
        layer_types=["full_attention"],
        rope_parameters={"full_attention": rope},
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
        enable_moe_block=False,
        attn_implementation="eager",
    )
    layer = gemma.Gemma4TextDecoderLayer(config, 0).eval()
    layer.load_state_dict(layer_weights(head, "layers.0."))
    x, rows = block(head)
    turn = gemma.Gemma4TextRotaryEmbedding(config)(x, POSITIONS, "full_attention")
    y = layer(
        x, shared_kv_states={}, position_embeddings=turn, attention_mask=SEES_ALL,
        position_ids=POSITIONS,
    )  # fmt: skip
    torch.testing.assert_close(rows, y[0] if isinstance(y, tuple) else y, **CLOSE)


def deepseek_names(head):
    """The stage's tensors under the names of transformers."""
    own = layer_weights(head, "mtp.0.")
    names = {
        "self_attn.q_a_proj.weight": own["attn.wq_a.weight"],
        "self_attn.q_a_norm.weight": own["attn.q_norm.weight"],
        "self_attn.q_b_proj.weight": own["attn.wq_b.weight"],
        "self_attn.kv_proj.weight": own["attn.wkv.weight"],
        "self_attn.kv_norm.weight": own["attn.kv_norm.weight"],
        "self_attn.o_a_proj.weight": own["attn.wo_a.weight"],
        "self_attn.o_b_proj.weight": own["attn.wo_b.weight"],
        "self_attn.sinks": own["attn.attn_sink"],
        "input_layernorm.weight": own["attn_norm.weight"],
        "post_attention_layernorm.weight": own["ffn_norm.weight"],
        "mlp.gate.weight": own["ffn.gate.weight"],
        "mlp.gate.e_score_correction_bias": own["ffn.gate.bias"],
    }
    for part in ("attn", "ffn"):
        names |= {f"{part}_hc.{name}": own[f"hc_{part}_{name}"] for name in ("fn", "base", "scale")}
    experts = range(head.config.dspark_n_routed_experts)
    w = {i: torch.stack([own[f"ffn.experts.{e}.w{i}.weight"] for e in experts]) for i in (1, 2, 3)}
    names["mlp.experts.gate_up_proj"] = torch.cat([w[1], w[3]], 1)
    names["mlp.experts.down_proj"] = w[2]
    for name, i in (("gate", 1), ("down", 2), ("up", 3)):
        names[f"mlp.shared_experts.{name}_proj.weight"] = own[f"ffn.shared_experts.w{i}.weight"]
    return names


@torch.no_grad()
def test_deepseek_v4_stage():
    c = draft_heads.deepseek("deepseek_v4", num_nextn_predict_layers=1)
    head = draft_heads.make(c)
    config = deepseek.DeepseekV4Config(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, num_hidden_layers=1,
        moe_intermediate_size=c.moe_intermediate_size, num_attention_heads=c.num_attention_heads,
        head_dim=c.head_dim, q_lora_rank=c.q_lora_rank, o_lora_rank=c.o_lora_rank,
        o_groups=c.o_groups, num_experts_per_tok=c.dspark_num_experts_per_tok,
        n_routed_experts=c.dspark_n_routed_experts, swiglu_limit=c.swiglu_limit,
        routed_scaling_factor=c.routed_scaling_factor, rms_norm_eps=c.rms_norm_eps,
        hc_mult=c.hc_mult, rope_theta=c.rope_theta, layer_types=["sliding_attention"],
        partial_rotary_factor=c.qk_rope_head_dim / c.head_dim, mlp_layer_types=["moe"],
        attn_implementation="eager",
    )  # fmt: skip
    layer = deepseek.DeepseekV4DecoderLayer(config, 0).eval()
    layer.load_state_dict(deepseek_names(head))
    collapse, weights = deepseek.DeepseekV4HyperHead(config), head.state_dict()
    parts = ("fn", "base", "scale")
    collapse.load_state_dict({f"hc_{name}": weights[f"mtp.0.hc_head_{name}"] for name in parts})
    x, rows = block(head)
    turn = {"main": deepseek.DeepseekV4RotaryEmbedding(config)(x, POSITIONS, "main")}
    streams = x[:, :, None].expand(-1, -1, c.hc_mult, -1).contiguous()
    streams = layer(
        streams, position_embeddings=turn, position_ids=POSITIONS, attention_mask=SEES_ALL
    )
    torch.testing.assert_close(rows, collapse(streams), **CLOSE)


@torch.no_grad()
def test_streams_are_mixed_by_a_doubly_stochastic_matrix():
    logits = torch.randn(50, 4, 4, generator=torch.Generator().manual_seed(0))
    matrix = hyper_connections.sinkhorn(logits, 20, 1e-6)
    torch.testing.assert_close(matrix.sum(-2), torch.ones(50, 4), rtol=0, atol=1e-5)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(50, 4), rtol=0, atol=1e-2)
