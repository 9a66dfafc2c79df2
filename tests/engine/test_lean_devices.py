"""Where there is no CPU: torch's forms of the lean operators, and which target takes which model.

The meta device stands for a GPU: it refuses tensors of another device and has no values to read.
"""

import pytest
import torch
from random_models import served_model
from replayed_graphs import ReplayedCapture
from torch.utils._python_dispatch import TorchDispatchMode

from dspark_ext import _missing, decoder
from dspark_ext.attention import attention
from dspark_ext.engine import (
    Bounds,
    CausalLMTarget,
    DraftBatch,
    DSparkDrafter,
    DSparkEngine,
    HuggingFaceTarget,
    SamplingParams,
    TargetBatch,
    lean,
    target_choice,
    target_for,
)

META = torch.device("meta")


@pytest.fixture
def elsewhere(monkeypatch):
    """Torch's forms, on the CPU."""
    monkeypatch.setattr(lean, "ours", lambda tensor: False)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_norms_and_experts_are_those_of_our_operators(elsewhere):
    x, weight = random(7, 48), random(48, seed=1)
    wanted = decoder.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(lean.rms_norm(x, weight, 1e-5), wanted, rtol=1e-5, atol=1e-6)
    for shared, limit in ((5, 0.7), (0, 9.0)):
        gate_up, logits = random(9, 2 * (4 * 6 + shared), seed=2), random(9, 4, seed=3)
        arguments = dict(expert_size=6, top_k=2, scaling=1.5, limit=limit)
        columns = gate_up, logits, random(4, seed=4)
        wanted = decoder.routed_silu_mul(*columns, **arguments)
        found = lean.routed_silu_mul(*columns, **arguments)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        assert torch.equal(found == 0, wanted == 0) and int((found == 0).sum()) == 9 * 2 * 6


@pytest.mark.parametrize("heads", [4, 0], ids=["queries", "keys and values alone"])
@pytest.mark.parametrize("normed", [True, False])
def test_rotated_keys_are_those_of_our_operators(elsewhere, heads, normed):
    qkv, cos, sin = random(5, heads + 4, 8), random(12, 8, seed=1), random(12, 8, seed=2)
    positions, slots = torch.tensor([3, 4, 0, 11, 5]), torch.tensor([0, 0, 2, 1, 0]).int()
    norms = dict(query_norm=random(8, seed=3), key_norm=random(8, seed=4), eps=1e-6)
    norms = norms if normed else {}
    caches = [[torch.zeros(3, 12, 2, 8) for _ in range(2)] for _ in range(2)]
    results = [
        form.rope_store(qkv, cos, sin, positions, slots, *cache, num_heads=heads, **norms)
        for form, cache in zip((decoder, lean), caches)
    ]
    for wanted, found in zip((results[0], *caches[0]), (results[1], *caches[1])):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_block_attention_is_that_of_our_operator(elsewhere):
    query, keys, values = random(6, 4, 8), random(3, 10, 2, 8, seed=1), random(3, 10, 2, 8, seed=2)
    keys[1, 9], values[1, 9] = 1e30, 1e30  # beyond the range
    ranges = [torch.tensor(each).repeat_interleave(2).int() for each in ([1, 0, 2], [0, 3, 6],
                                                                         [9, 5, 10])]  # fmt: skip
    wanted = attention(query, keys, values, *ranges, 0.3)
    found = lean.block_attention(query, keys, values, *ranges, 0.3, block=2, most_keys=9)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_drafter_of_torchs_forms_drafts_the_same(serve, tiny_pair, prompts, dtype, monkeypatch):
    target = serve(max_requests=3).target
    wanted = DSparkDrafter.for_target(tiny_pair[1], target, dtype)
    params = SamplingParams(temperature=0.0, max_new_tokens=20)
    texts = DSparkEngine(target, wanted).generate(prompts, params).outputs
    monkeypatch.setattr(lean, "ours", lambda tensor: False)
    monkeypatch.setattr("dspark_ext.engine.packing.ours", lambda tensor: False)
    drafter = DSparkDrafter.for_target(tiny_pair[1], target, dtype)
    assert drafter.capturable, drafter.capture_obstacle
    engine = DSparkEngine(target, drafter)
    for _ in range(2):
        outputs = engine.generate(prompts, params).outputs
        assert [each.token_ids for each in outputs] == [each.token_ids for each in texts]
        engine.use_graphs(ReplayedCapture)
    wanted.cache.keys, wanted.cache.values = drafter.cache.keys, drafter.cache.values
    batch = DraftBatch(*torch.tensor([[101, 32], [40, 33], [0, 2]]), torch.ones(2), torch.arange(2))
    found = drafter.draft(batch, drafter.block_size, "probabilistic")
    monkeypatch.undo()
    expected = wanted.draft(batch, drafter.block_size, "probabilistic")
    rows = [each.logits[:, 0] for each in (found, expected)]
    assert torch.equal(*(row.isfinite() for row in rows))
    rows = [row[row.isfinite()] for row in rows]
    error = (rows[0] - rows[1]).norm() / rows[1].norm()
    assert float(error) < (1e-5 if dtype == torch.float32 else 0.02)


class OurOperators(TorchDispatchMode):
    """Names of ours that were called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "dspark_ext":
            self.names.add(function._schema.name)
        return function(*args, **(kwargs or {}))


def has_gpu_kernel(name: str) -> bool:
    return name.removeprefix("dspark_ext::") not in _missing._refused


class MetaTarget:
    vocab_size = 256
    max_requests, max_len = 3, 40

    def __init__(self, target):
        self.embedding = target.embedding.to(META)
        self.lm_head_weight = target.lm_head_weight.to(META)


def test_a_drafter_elsewhere_puts_everything_there_and_calls_no_operator_of_the_cpu(
    serve, tiny_pair
):
    drafter = DSparkDrafter.for_target(tiny_pair[1], MetaTarget(serve().target))
    index = torch.zeros(4, dtype=torch.int64, device=META)
    features = torch.zeros(4, drafter.num_features, device=META)
    batch = DraftBatch(index, index, index, torch.ones(4, device=META), index)
    with OurOperators() as called:
        drafter.append(features, index, index)
        draft = drafter.draft(batch, 5, "probabilistic")
    assert draft.token_ids.device == draft.logits.device == draft.confidence.device == META
    assert "dspark_ext::markov_sample" in called.names
    assert all(map(has_gpu_kernel, called.names)) and not has_gpu_kernel("dspark_ext::linear")


@pytest.mark.parametrize("name", ["llama", "gemma2, softcap, windows of 6"])
@pytest.mark.parametrize("cache", [{}, {"block_size": 4}], ids=["dense", "blocks"])
def test_a_pass_in_fixed_shapes_stays_on_its_device(name, cache):
    model = served_model(name).to(META)
    sizes = dict(max_requests=3, max_len=20, check_tolerance=None)
    target = CausalLMTarget(model, [1], **sizes, **cache)
    target.refill()
    index = torch.zeros(5, dtype=torch.int64, device=META)
    with OurOperators() as called:
        output = target.forward_fixed(TargetBatch(index, index, index, index, Bounds(16, 4)))
    assert output.logits.device == output.features.device == META and not called.names
    assert output.logits.shape == (5, 90) and output.features.shape == (5, 48)


def test_a_lean_target_elsewhere_is_refused_with_what_to_use():
    with pytest.raises(ValueError, match="expected one on a CPU, got meta; .* use target_for"):
        HuggingFaceTarget(served_model("llama").to(META), [], max_requests=1, max_len=8)


def test_a_target_is_chosen_by_model_and_device(monkeypatch, caplog):
    sizes = dict(max_requests=2, max_len=16)
    assert isinstance(target_for(served_model("llama"), [1], **sizes), HuggingFaceTarget)
    assert isinstance(target_for(served_model("gpt2"), [1], **sizes), CausalLMTarget)
    asked = []
    monkeypatch.setattr(
        target_choice, "CausalLMTarget", lambda *args, **kwargs: asked.append((args, kwargs))
    )
    model = served_model("llama").to(META)
    target_for(model, [1], **sizes, block_size=4)
    assert asked == [((model, [1]), {**sizes, "block_size": 4, "num_blocks": None})]
    assert "a llama on meta is served by CausalLMTarget" in caplog.text
