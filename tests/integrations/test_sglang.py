"""SGLang's chain verification on ours: decision by decision with the caller's numbers."""

import enum
import sys
import types

import pytest
import torch

from dspark_ext.integrations import sglang, sglang_plugin

BATCH, SLOTS, VOCAB = 64, 5, 17


def rows(*shape, generator):
    return torch.randn(*shape, VOCAB, generator=generator).softmax(-1)


@pytest.fixture
def call(generator):
    candidates = torch.randint(VOCAB, (BATCH, SLOTS), generator=generator)
    draft_probs = rows(BATCH, SLOTS - 1, generator=generator)
    drawn = torch.multinomial(draft_probs.view(-1, VOCAB), 1, generator=generator)
    candidates[:, 1:] = drawn.view(BATCH, SLOTS - 1)
    return {
        "predicts": torch.full((BATCH * SLOTS,), -7, dtype=torch.int32),
        "accept_index": torch.full((BATCH, SLOTS), -7, dtype=torch.int32),
        "accept_token_num": torch.full((BATCH,), -7, dtype=torch.int32),
        "candidates": candidates,
        "retrive_index": torch.randperm(BATCH * SLOTS, generator=generator).view(BATCH, SLOTS),
        "retrive_next_token": None,
        "retrive_next_sibling": None,
        "uniform_samples": torch.rand(BATCH, SLOTS, generator=generator),
        "uniform_samples_for_final_sampling": torch.rand(BATCH, generator=generator),
        "target_probs": rows(BATCH, SLOTS, generator=generator),
        "draft_probs": draft_probs,
        "threshold_single": 1.0,
        "threshold_acc": 1.0,
        "deterministic": True,
    }


def accepted_length(p, q, ids, coins, block):
    """Both rules as their papers state them, in float64."""
    count = len(ids)
    if not block:
        for i, x in enumerate(ids):
            if not coins[i] * q[i, x] < p[i, x]:
                return i, 1.0
        return count, 1.0
    prefix, length, scale = 1.0, 0, 1.0
    for i, x in enumerate(ids):
        prefix = min(1.0, prefix * float(p[i, x] / q[i, x]))
        if i + 1 < count:
            mass = float((prefix * p[i + 1] - q[i + 1]).clamp(min=0).sum())
            total = mass + 1 - prefix
            accept = mass / total if total > 0 else 1.0
        else:
            accept = prefix
        if coins[i] < accept:
            length, scale = i + 1, prefix
    return length, scale


@pytest.mark.parametrize("block", [False, True])
def test_results_are_those_of_the_rule(call, block):
    sglang.chain_speculative_sampling(**call, block_verification=block)
    p, q = call["target_probs"].double(), call["draft_probs"].double()
    lengths = set()
    for b in range(BATCH):
        ids = call["candidates"][b, 1:].tolist()
        coins = call["uniform_samples"][b].tolist()
        length, scale = accepted_length(p[b], q[b], ids, coins, block)
        residual = p[b, length]
        if length < SLOTS - 1:
            residual = (scale * p[b, length] - q[b, length]).clamp(min=0)
        share = call["uniform_samples_for_final_sampling"][b].double() * residual.sum()
        last = int((residual.cumsum(0) <= share).sum())
        tokens = [*ids[:length], last]
        index = call["retrive_index"][b].tolist()
        assert call["accept_token_num"][b] == length
        assert call["accept_index"][b].tolist() == [
            *index[: length + 1],
            *[-1] * (SLOTS - 1 - length),
        ]
        assert call["predicts"][index].tolist() == [*tokens, *[-7] * (SLOTS - 1 - length)]
        lengths.add(length)
    assert lengths == set(range(SLOTS)), "not every length occurred"


def test_a_cap_by_the_caller_still_finds_its_token(call):
    """DSPARK cuts the length to its cap and emits predicts[accept_index[cap]]."""
    sglang.chain_speculative_sampling(**call)
    correct = call["accept_token_num"].clamp(max=2).long()
    at = call["accept_index"][torch.arange(BATCH), correct].long()
    bonus = call["predicts"][at]
    cut = call["accept_token_num"] > 2
    assert cut.any() and torch.equal(bonus[cut].long(), call["candidates"][cut, 3])


def test_a_draft_outside_the_vocabulary_ends_the_block(call):
    call["candidates"][:, 2] = -1
    sglang.chain_speculative_sampling(**call)
    assert call["accept_token_num"].max() == 1


def judge_one(target, draft, drafted, coins, block):
    """One request with one draft; the tokens that follow the root."""
    predicts = torch.full((2,), -7, dtype=torch.int32)
    accept_index, length = torch.empty(1, 2, dtype=torch.int32), torch.empty(1, dtype=torch.int32)
    sglang.chain_speculative_sampling(
        *(predicts, accept_index, length, torch.tensor([[0, drafted]]), torch.tensor([[0, 1]])),
        *(None, None, torch.tensor([[coins[0]]]), torch.tensor([coins[1]])),
        torch.tensor([[target, target]]),
        torch.tensor([[draft]]),
        block_verification=block,
    )
    return predicts[: int(length) + 1].tolist()


@pytest.mark.parametrize("block", [False, True])
def test_where_it_differs_from_the_engine(block):
    """The table of docs/integrations.md."""
    above_one = 1.0 + 2.0**-23
    assert judge_one([0.1, 0.8, 0.1], [0.0, above_one, 0.0], 1, (0.7, 0.5), block) == [1, 1]
    assert judge_one([0.2, 0.3, 0.5], [0.5, 0.5, 0.0], 2, (0.5, 0.1), block) == [2, 0]
    nan = float("nan")
    assert judge_one([0.2, 0.3, 0.5], [0.5, 0.5, nan], 2, (0.0, 0.1), block) == [0]
    # p = q, and the token has no mass under either: nothing remains to redraw from.
    assert judge_one([0.0, 1.0, 0.0], [0.0, 1.0, 0.0], 0, (0.5, 0.9), block) == [1]


class HookType(enum.Enum):
    AROUND = "around"


class Registry:
    registered: list

    @classmethod
    def register(cls, target, hook, hook_type):
        cls.registered.append((target, hook, hook_type))


@pytest.fixture
def registry(monkeypatch):
    """SGLang's hook registry, reduced to what is called of it."""
    Registry.registered = []
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = types.ModuleType("sglang.srt.plugins.hook_registry")
    module.HookRegistry, module.HookType = Registry, HookType
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Registry


@pytest.mark.parametrize("value", [None, "", "0", "off"])
def test_without_the_variable_no_hook_is_left(registry, monkeypatch, value):
    monkeypatch.delenv(sglang_plugin.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(sglang_plugin.VARIABLE, value)
    sglang_plugin.register()
    assert registry.registered == []


def test_the_hook_serves_in_place_of_the_kernel(registry, monkeypatch, call):
    monkeypatch.setenv(sglang_plugin.VARIABLE, "1")
    sglang_plugin.register()
    [(target, hook, kind)] = registry.registered
    assert target == sglang_plugin.TARGET and kind is HookType.AROUND
    names = [*call]

    def kernel(*, block_verification=False, **arguments):
        raise AssertionError("the engine's own kernel ran")

    namespace = {"kernel": kernel}
    exec(f"def original({', '.join(names)}, *, block_verification=False): kernel()", namespace)
    expected = {name: value.clone() for name, value in call.items() if torch.is_tensor(value)}
    hook(namespace["original"], **call, block_verification=True)
    sglang.chain_speculative_sampling(
        **{**call, **{n: expected[n] for n in ("predicts", "accept_index", "accept_token_num")}},
        block_verification=True,
    )
    for name in ("predicts", "accept_index", "accept_token_num"):
        assert torch.equal(call[name], expected[name])


def test_a_kernel_with_other_parameters_is_refused():
    def original(predicts, sampling_seed=None):
        raise AssertionError("the engine's own kernel ran")

    with pytest.raises(RuntimeError, match="also takes sampling_seed"):
        sglang_plugin.verify(original, None)


def test_an_unknown_value_is_named(monkeypatch):
    monkeypatch.setenv(sglang_plugin.VARIABLE, "yes please")
    with pytest.raises(ValueError, match="yes please"):
        sglang_plugin.register()
