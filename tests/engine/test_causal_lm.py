"""Any model of transformers as a target: what it computes is what the model computes."""

import sys

import pytest
import torch
import transformers
from random_models import SERVED, VOCAB, random_model, served_model
from torch.testing._internal.two_tensor import TwoTensor

from dspark_ext.engine import CausalLMTarget, TargetBatch, UnsupportedModelError
from dspark_ext.engine.identity import fingerprint

CACHES = {"dense": {}, "blocks of 4": {"block_size": 4}}
TAPS = [2, 0]


def text(seed: int, length: int) -> torch.Tensor:
    return torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(seed))


def batch_of(*parts, logit_rows=None) -> TargetBatch:
    """parts: (slot, first position, ids); the logits of all rows by default"""
    ids = torch.cat([ids for _, _, ids in parts])
    positions = torch.cat([first + torch.arange(len(ids)) for _, first, ids in parts])
    slots = torch.cat([torch.full((len(ids),), slot) for slot, _, ids in parts])
    rows = (
        torch.arange(len(ids))
        if logit_rows is None
        else torch.tensor(logit_rows, dtype=torch.int64)
    )
    return TargetBatch(ids, positions, slots, rows)


@torch.inference_mode()
def own_forward(model, ids):
    """The model's logits and the outputs of its tapped layers, without any cache."""
    count = model.config.num_hidden_layers
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    layers = next(module for module in lists if len(module) == count)
    seen = {}

    def keep(tap):
        return lambda _, __, output: seen.update(
            {tap: output[0] if isinstance(output, tuple) else output}
        )

    hooks = [layers[tap].register_forward_hook(keep(tap)) for tap in TAPS]
    logits = model(ids[None], use_cache=False).logits[0].float()
    for hook in hooks:
        hook.remove()
    return logits, torch.cat([seen[tap].reshape(len(ids), -1) for tap in TAPS], -1)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", SERVED)
def test_ragged_rows_of_several_requests_match_the_models_own_forward(name, cache):
    """Chunks of three requests in passes together, in rows that are mixed; then a rejection: rows
    of drafts that are not kept, and other tokens written in their place."""
    model = served_model(name)
    texts = [text(seed, length) for seed, length in ((1, 21), (2, 14), (3, 9))]
    wanted = [own_forward(model, ids) for ids in texts]
    target = CausalLMTarget(
        model, TAPS, max_requests=4, max_len=24, check_tolerance=1e-3, **CACHES[cache]
    )
    slots = (3, 0, 2)
    found = [[], [], []]

    def run(*parts):
        """parts: (request, start, stop, rejected tokens behind)"""
        rows = [
            (slots[r], start, torch.cat([texts[r][start:stop], text(9 + r, wrong)]))
            for r, start, stop, wrong in parts
        ]
        batch = batch_of(*rows)
        order = torch.randperm(len(batch.slots), generator=torch.Generator().manual_seed(4))
        output = target.forward(
            TargetBatch(*(x[order] for x in (batch.input_ids, batch.positions, batch.slots)),
                        torch.argsort(order))
        )  # fmt: skip
        features = output.features[torch.argsort(order)]
        first = 0
        for r, start, stop, wrong in parts:
            kept = slice(first, first + stop - start)
            found[r].append((output.logits[kept], features[kept]))
            first += stop - start + wrong

    run((0, 0, 8, 0), (1, 0, 3, 0))
    run((0, 8, 9, 4), (1, 3, 9, 2), (2, 0, 2, 5))
    run((2, 2, 3, 5), (0, 9, 15, 1), (1, 9, 10, 4))
    run((0, 15, 16, 5), (1, 10, 14, 0), (2, 3, 9, 0))
    run((0, 16, 21, 0))
    for (logits, features), parts in zip(wanted, found):
        ours = [torch.cat(each) for each in zip(*parts)]
        scale = logits.abs().max()
        torch.testing.assert_close(ours[0] / scale, logits / scale, rtol=0, atol=2e-5)
        scale = features.abs().max()
        torch.testing.assert_close(ours[1] / scale, features / scale, rtol=0, atol=2e-5)


def test_the_caches_give_the_same_bits_and_padding_changes_nothing():
    model = served_model("gemma3, windows of 6")
    ids, other = text(1, 15), text(2, 15)
    results = []
    for cache in ({}, {"block_size": 4}, {"block_size": 3, "num_blocks": 11}):
        target = CausalLMTarget(model, TAPS, max_requests=2, max_len=16, **cache)
        target.forward(batch_of((0, 0, ids[:7]), (1, 0, other[:9])))
        results.append(target.forward(batch_of((1, 9, other[9:]), (0, 7, ids[7:]))))
        padded = target.forward(
            batch_of((1, 9, other[9:]), (-1, 0, ids[:3]), (0, 7, ids[7:]), (-1, 5, ids[:1]))
        )
        real = torch.tensor([*range(6), *range(9, 17)])
        torch.testing.assert_close(padded.logits[real], results[0].logits, rtol=1e-4, atol=1e-5)
    for again in results[1:]:
        assert torch.equal(again.logits, results[0].logits)
        assert torch.equal(again.features, results[0].features)


def test_only_the_wanted_logits_come_back():
    target = CausalLMTarget(served_model("qwen2"), max_requests=2, max_len=16)
    ids = text(1, 6)
    every = target.forward(batch_of((0, 0, ids))).logits
    some = target.forward(batch_of((0, 0, ids), logit_rows=[5, 2]))
    torch.testing.assert_close(some.logits, every[[5, 2]], rtol=1e-5, atol=1e-6)
    assert some.features.shape == (6, 0)
    none = target.forward(batch_of((0, 0, ids), logit_rows=[]))
    assert none.logits.shape == (0, VOCAB)
    empty = torch.empty(0, dtype=torch.int64)
    assert target.forward(TargetBatch(empty, empty, empty, empty)).logits.shape == (0, VOCAB)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_models_in_half_precision(dtype):
    model = served_model("qwen3, windows of 6").to(dtype)
    ids = text(1, 17)
    wanted, _ = own_forward(model, ids)
    target = CausalLMTarget(model, max_requests=1, max_len=20)
    parts = [target.forward(batch_of((0, s, ids[s:e]))).logits for s, e in ((0, 9), (9, 17))]
    distance = (torch.cat(parts) - wanted).norm() / wanted.norm()
    assert float(distance) < 0.02
    assert target.store.keys[0].dtype == dtype


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*quantize:UserWarning")
def test_a_model_quantised_to_int8_is_served_through_its_own_linears():
    """Activations are quantised by the range of a whole pass, so rows depend on their company a
    little; the distance to the model's own forward is that of int8."""
    model = served_model("qwen2")
    plain = own_forward(model, text(1, 17))[0]
    quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    layer = quantised.model.layers[0].mlp.gate_proj
    assert "quantized" in type(layer).__module__
    wanted, _ = own_forward(quantised, text(1, 17))
    target = CausalLMTarget(quantised, TAPS, max_requests=2, max_len=20, check_tolerance=0.2)
    ids = text(1, 17)
    whole = target.forward(batch_of((1, 0, ids))).logits
    torch.testing.assert_close(whole, wanted, rtol=1e-4, atol=1e-4)
    assert 0.001 < float((whole - plain).norm() / plain.norm()) < 0.2
    with pytest.raises(ValueError, match="lm_head_weight: expected .* floating-point weight"):
        getattr(target, "lm_head_weight")  # noqa: B009


def test_a_model_quantised_by_torchao_is_served():
    quantization = pytest.importorskip("torchao.quantization", reason="needs torchao")
    model = served_model("qwen2")
    plain = own_forward(model, text(1, 17))[0]
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    wanted, _ = own_forward(model, text(1, 17))
    target = CausalLMTarget(model, TAPS, max_requests=2, max_len=20)
    whole = target.forward(batch_of((1, 0, text(1, 17)))).logits
    torch.testing.assert_close(whole, wanted, rtol=1e-4, atol=1e-4)
    assert 0.0001 < float((whole - plain).norm() / plain.norm()) < 0.2


def test_wrapped_weights_are_told_apart_by_what_is_inside():
    """As those of torchao, whose classes answer few operations."""

    def of(inner: torch.Tensor) -> str:
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(TwoTensor(torch.ones(3, 4), inner), requires_grad=False)
        return fingerprint(module)

    assert of(torch.zeros(3, 4)) == of(torch.zeros(3, 4)) != of(torch.ones(3, 4))


def test_the_model_stays_usable_beside_the_target():
    model = served_model("gemma2, softcap, windows of 6")
    ids = text(1, 19)
    wanted, _ = own_forward(model, ids)
    target = CausalLMTarget(model, max_requests=1, max_len=20)
    first = target.forward(batch_of((0, 0, ids[:10]))).logits
    torch.testing.assert_close(own_forward(model, ids)[0], wanted, rtol=1e-4, atol=1e-4)
    rest = target.forward(batch_of((0, 10, ids[10:]))).logits
    torch.testing.assert_close(torch.cat([first, rest]), wanted, rtol=1e-4, atol=1e-4)


STATE = {"num_hidden_layers": 3}
REFUSED = {
    "mamba": ("Mamba", {}, "keeps a recurrent state .*cannot be rolled back"),
    "recurrent_gemma": ("RecurrentGemma", {}, "keeps a recurrent state"),
    "qwen3_next": ("Qwen3Next", {}, "recurrent state .layers of type linear_attention"),
    "lfm2": (
        "Lfm2",
        {"layer_types": ["conv", "full_attention", "conv"]},
        "recurrent state .layers of type conv",
    ),
    "bloom": ("Bloom", {}, "attention is code of its own"),
    "dynamic RoPE": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        "RoPE is of type dynamic, .* beyond 64 positions: expected max_len at most 64, got 80",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_cannot_be_served_is_refused_with_the_reason(name):
    family, extra, reason = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=f"cannot serve {family}.*{reason}"):
        CausalLMTarget(random_model(family, extra), max_requests=1, max_len=80)


def test_an_encoder_decoder_is_refused():
    config = transformers.T5Config(vocab_size=90, d_model=16, d_kv=4, d_ff=8, num_layers=1)
    model = transformers.T5ForConditionalGeneration(config)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        CausalLMTarget(model, max_requests=1, max_len=8)


def test_a_model_that_computes_something_else_with_our_cache_is_refused():
    """Say a layer that mixes neighbouring rows of the sequence, which are not one request's."""
    model = served_model("llama")

    def mix(_, __, output):
        return output + torch.nn.functional.pad(output, (0, 0, 1, 0))[:, :-1]

    model.model.norm.register_forward_hook(mix)
    with pytest.raises(UnsupportedModelError, match="logits with our cache differ from its own"):
        CausalLMTarget(model, max_requests=2, max_len=16)


def test_attention_that_is_not_causal_is_refused():
    config = transformers.BertConfig(
        vocab_size=90, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(5)
    model = transformers.BertLMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    with pytest.raises(UnsupportedModelError, match="its attention is not causal"):
        CausalLMTarget(model, max_requests=1, max_len=16)


def test_a_transformers_without_a_place_for_our_attention_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "dspark_ext.engine.adapted_attention", raising=False)
    monkeypatch.delattr("dspark_ext.engine.adapted_attention", raising=False)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", None)
    with pytest.raises(UnsupportedModelError, match="lets no attention be registered"):
        CausalLMTarget(served_model("llama"), max_requests=1, max_len=16)


def test_a_tap_that_is_no_layer_is_refused():
    with pytest.raises(ValueError, match=r"taps: expected layers in \[0, 3\), got 3"):
        CausalLMTarget(served_model("llama"), [3], max_requests=1, max_len=8)
