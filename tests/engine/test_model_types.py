"""Every type of causal LM whose tiny random model compares itself well when it is served, and
which of them can be captured as graphs."""

import inspect

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from dspark_ext.engine import Bounds, CausalLMTarget, TargetBatch

TYPES = """
    afmoe apertus apertus1p5_text arcee aria_text beam bitnet codegen cohere cohere2
    cohere2_moe ctrl cwm ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe flex_olmo flint
    gemma gemma2 gemma3_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite gpt-sw3
    gpt2 gpt_bigcode gpt_neox gpt_oss gptj granite granite_swa granitemoe granitemoe_swa
    granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3
    iquestcoder jais2 jetmoe kolibri1 laguna llama llama4_text mellum mimo_v2_flash
    minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral modernbert-decoder
    moshi nanochat nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2
    qwen2_moe qwen3 qwen3_moe sarvam_moe seed_oss smollm3 solar_open starcoder2 vaultgemma
""".split()
READ_BY_THE_HOST = {"jetmoe": "reads a tensor (tolist), at modeling_jetmoe.py"}
SIZES = dict(
    vocab_size=90, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=12, max_position_embeddings=64,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, moe_intermediate_size=24, num_experts=4,
    num_local_experts=4, num_experts_per_tok=2, n_routed_experts=4, n_group=1, topk_group=1,
    sliding_window=5, n_embd=48, n_layer=2, n_head=4, n_positions=64, ffn_dim=80,
    word_embed_proj_dim=48, rotary_dim=8, d_model=48, n_layers=2, n_heads=4,
)  # fmt: skip


def make_model(model_type: str):
    """With those of SIZES that its configuration knows."""
    config_class = CONFIG_MAPPING[model_type]
    known = set(getattr(config_class, "__dataclass_fields__", ()))
    known = known or set(inspect.signature(config_class.__init__).parameters)
    config = config_class(**{name: size for name, size in SIZES.items() if name in known})
    torch.manual_seed(0)
    model = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", TYPES)
def test_the_target_compares_well_with_the_model(model_type):
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        pytest.skip(f"transformers {transformers.__version__} has no causal LM {model_type!r}")
    target = CausalLMTarget(
        make_model(model_type), [0], max_requests=2, max_len=32, block_size=4, check_tolerance=1e-2
    )
    assert target.num_features == 48

    reason = READ_BY_THE_HOST.get(model_type)
    obstacle = target.capture_obstacle
    assert (obstacle is None) if reason is None else (reason in obstacle), obstacle
    ids = torch.randint(90, (14,), generator=torch.Generator().manual_seed(2))
    index = torch.arange(8)
    for slot in (0, 1):
        target.reserve(slot, 14)
        target.forward(TargetBatch(ids[:8], index, torch.full_like(index, slot), index))
    rows = torch.tensor([8, 9, 10, 8, 9])
    columns = ids[[8, 9, 10, 11, 12]], rows, torch.tensor([1, 1, 1, 0, 0])
    wanted = target.forward(TargetBatch(*columns, torch.arange(5)))
    target.refill()
    found = target.forward_fixed(TargetBatch(*columns, torch.arange(5), Bounds(16, 3)))
    for name in ("logits", "features"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-4
