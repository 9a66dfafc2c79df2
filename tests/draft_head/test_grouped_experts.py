"""The experts of a DeepSeek stage by grouped products: the numbers of the modules, which keep their
parameters."""

import copy

import draft_heads
import expert_sweep as sweep
import pytest
import torch
from kit import bits_equal

from dspark_ext import draft_head
from dspark_ext.draft_head.moe import MoE


def make_moe(format: str = "bf16", inner: int = 48, **changes) -> MoE:
    config = draft_heads.deepseek(
        "deepseek_v41", hidden_size=72, moe_intermediate_size=inner, expert_format=format,
        weight_block_size=(16, 32), **changes,
    )  # fmt: skip
    layer = MoE(config, dtype=torch.float32 if format == "fp32" else None)
    torch.manual_seed(3)
    for expert in (*layer.experts, layer.shared_experts):
        for part in (expert.w1, expert.w2, expert.w3):
            size = (part.out_features, part.in_features)
            part.set_weight(torch.randn(size) / part.in_features**0.5)
    torch.nn.init.normal_(layer.gate.weight)
    return layer


def grouped(layer: MoE, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out = layer(x)
    assert layer._stack._weights is not None
    return out


@pytest.mark.parametrize("limit", [0.0, 0.5])
@pytest.mark.parametrize("format", ["fp32", "bf16", "fp8_e4m3", "mxfp4"])
def test_the_numbers_of_the_modules(format, limit):
    layer = make_moe(format, swiglu_limit=limit)
    for dtype, bound in ((torch.float32, 2e-6), (torch.bfloat16, 1e-2)):
        x = sweep.make_rows(21, 72, dtype)
        alone = layer(x).detach()  # may be differentiated: module by module
        out = grouped(layer, x)
        assert out.dtype == dtype and sweep.relative_error(out, alone) < bound


@pytest.mark.parametrize("where", ["some experts", "one layer"])
def test_scales_of_two_dtypes_are_left_as_they_are(where):
    """A checkpoint may have E8M0 scales here and float32 ones, of any value, there."""
    layer, x = make_moe("fp8_e4m3"), sweep.make_rows(21, 72, torch.bfloat16)
    for expert in list(layer.experts)[2:] if where == "some experts" else layer.experts:
        for part in (expert.w3,) if where == "one layer" else (expert.w1, expert.w2, expert.w3):
            part.scale = torch.nn.Parameter(part.scale.float() * 1.4, requires_grad=False)
    alone = layer(x).detach()
    scales = [part.scale.clone() for expert in layer.experts for part in expert.children()]
    with torch.no_grad():
        out = layer(x)
    after = [part.scale for expert in layer.experts for part in expert.children()]
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(after, scales, strict=True))
    assert sweep.relative_error(out, alone) < 1e-2


def test_a_row_does_not_depend_on_the_others():
    layer, x = make_moe("mxfp4"), sweep.make_rows(21, 72, torch.bfloat16)
    with torch.no_grad():
        ids, weights = torch.randint(0, 6, (21, 3)), torch.rand(21, 3)
        whole = layer._routed(x, ids, weights)
        for t in (0, 20):
            one = slice(t, t + 1)
            assert bits_equal(layer._routed(x[one], ids[one], weights[one]), whole[one])


@pytest.mark.parametrize("format", ["bf16", "fp8_e4m3", "mxfp4"])
def test_parameters_stay_what_they_are(format):
    """They become views of the stacks: the same values, no memory besides."""
    layer, x = make_moe(format), sweep.make_rows(3, 72, torch.bfloat16)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    parameters = dict(layer.named_parameters())
    out = grouped(layer, x)
    for name, value in layer.state_dict().items():
        assert bits_equal(value, before[name]), name
    assert all(parameters[name] is value for name, value in layer.named_parameters())
    storages = {p.untyped_storage().data_ptr() for p in layer.experts.parameters()}
    assert len(storages) == (2 if format == "bf16" else 4)
    assert bits_equal(grouped(copy.deepcopy(layer), x), out)


def test_changes_are_seen():
    """Values set in place, loaded, replaced; a module that was moved; an expert exchanged."""
    layer, other = make_moe("mxfp4"), make_moe("mxfp4")
    for part in other.experts[2].modules():
        if hasattr(part, "set_weight"):
            part.set_weight(torch.ones(part.out_features, part.in_features))
    x = sweep.make_rows(9, 72, torch.bfloat16)
    want = grouped(other, x)
    first = grouped(layer, x)
    assert not bits_equal(first, want)
    original = copy.deepcopy(layer.state_dict())
    for change in (
        lambda: layer.load_state_dict(other.state_dict()),
        lambda: layer.load_state_dict(copy.deepcopy(other.state_dict()), assign=True),
        lambda: layer.experts[2].load_state_dict(other.experts[2].state_dict()),
        lambda: layer.experts.__setitem__(2, copy.deepcopy(other.experts[2])),
        lambda: (layer.load_state_dict(other.state_dict()), layer.to(torch.float32)),
    ):
        layer.load_state_dict(copy.deepcopy(original))
        assert bits_equal(grouped(layer, x), first)
        change()
        assert bits_equal(grouped(layer, x), want)


def test_gates_that_end_within_a_block_go_module_by_module():
    layer = make_moe("fp8_e4m3", inner=40)
    x = sweep.make_rows(5, 72, torch.bfloat16)
    with torch.no_grad():
        out = layer(x)
    assert layer._stack._weights is None and bits_equal(out, layer(x))


def test_trains_after_it_was_grouped():
    layer, x = make_moe("fp32"), sweep.make_rows(5, 72, torch.float32)
    with torch.inference_mode():
        layer(x)
    layer(x).square().sum().backward()
    assert (
        layer.experts[0].w1.weight.grad is not None or layer.experts[1].w1.weight.grad is not None
    )
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = grouped(layer, x)
    optimizer.step()
    after = grouped(layer, x)
    assert not bits_equal(before, after)
    assert sweep.relative_error(after, layer(x).detach()) < 2e-6


# ---- prepared weights ---------------------------------------------------------------------------


def prepared(layer: MoE, x: torch.Tensor) -> torch.Tensor:
    """The output, which has to come from prepared weights."""
    out = grouped(layer, x)
    assert layer._stack._prepared.layout == "pairs"
    return out


@pytest.mark.parametrize("format", ["bf16", "fp8_e4m3", "mxfp4"])
def test_prepared_experts(format):
    """Near the numbers of the modules; parameters stay; the bytes are told."""
    layer, x = make_moe(format), sweep.make_rows(21, 72, torch.bfloat16)
    if layer.experts[0].w1.is_quantized and layer.experts[0].w1.block[1] % 32:
        layer = make_moe(format, weight_block_size=(16, 64))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    alone = layer(x).detach()
    wrapped = torch.nn.Sequential(layer)
    size = draft_head.prepare_experts(wrapped)
    out = prepared(layer, x)
    assert sweep.relative_error(out, alone) < 1e-2
    tensors = [value for value in layer._stack._prepared if torch.is_tensor(value)]
    assert size == sum(value.nbytes for value in tensors) > 0
    assert all(bits_equal(value, before[name]) for name, value in layer.state_dict().items())
    assert layer._stack.prepared(layer.experts) is layer._stack._prepared  # made once
    assert bits_equal(prepared(copy.deepcopy(layer), x), out)
    assert draft_head.prepare_experts(wrapped, enabled=False) == 0
    grouped(layer, x)
    assert layer._stack._prepared is None


def test_prepared_experts_follow_changes():
    layer, other = make_moe("mxfp4"), make_moe("mxfp4")
    for part in other.experts[2].modules():
        if hasattr(part, "set_weight"):
            part.set_weight(torch.ones(part.out_features, part.in_features))
    for each in (layer, other):
        draft_head.prepare_experts(each)
    x = sweep.make_rows(9, 72, torch.bfloat16)
    want, first = prepared(other, x), prepared(layer, x)
    assert not bits_equal(first, want)
    original = copy.deepcopy(layer.state_dict())
    for change in (
        lambda: layer.load_state_dict(other.state_dict()),
        lambda: layer.load_state_dict(copy.deepcopy(other.state_dict()), assign=True),
        lambda: layer.experts[2].load_state_dict(other.experts[2].state_dict()),
        lambda: layer.experts.__setitem__(2, copy.deepcopy(other.experts[2])),
    ):
        layer.load_state_dict(copy.deepcopy(original))
        assert bits_equal(prepared(layer, x), first)
        change()
        assert bits_equal(prepared(layer, x), want)


def test_what_has_no_prepared_form_works_as_before():
    """Rows in float32, experts in float32, experts that cannot be stacked."""
    layer, x = make_moe("bf16"), sweep.make_rows(5, 72, torch.float32)
    want = grouped(layer, x)
    assert draft_head.prepare_experts(layer) > 0
    assert bits_equal(grouped(layer, x), want)
    assert draft_head.prepare_experts(make_moe("fp32")) == 0
    apart = make_moe("fp8_e4m3", inner=40)
    assert draft_head.prepare_experts(apart) == 0
    with torch.no_grad():
        x = x.bfloat16()
        assert bits_equal(apart(x), make_moe("fp8_e4m3", inner=40)(x))


def test_parameters_of_inference_mode_stay_in_rows():
    """Nobody counts what is written to them."""
    with torch.inference_mode():
        layer = make_moe("bf16")
    draft_head.prepare_experts(layer)
    grouped(layer, sweep.make_rows(5, 72, torch.bfloat16))
    assert layer._stack._prepared is None
