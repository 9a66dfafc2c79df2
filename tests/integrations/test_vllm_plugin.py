"""The vLLM plugin against modules with vLLM's names and parameters.

A real vLLM serves in test_vllm_engine.py.
"""

import importlib
import pathlib
import sys
import types

import pytest
import torch

from dspark_ext.integrations import vllm_plugin as plugin

CLASSIC = """
def rejection_sample(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens,
                     draft_probs, target_logits, bonus_token_ids, sampling_metadata,
                     synthetic_mode=False, use_fp64_gumbel=False):
    return "vllm"

def apply_sampling_constraints(logits, cu_num_draft_tokens, sampling_metadata):
    return "vllm"

def apply_top_k_top_p(logits, k, p):
    return logits

class RejectionSampler:
    def __init__(self, sampler, spec_config=None, device=None):
        self.sampler = sampler

    def forward(self, metadata, draft_probs, logits, sampling_metadata):
        logits = apply_sampling_constraints(logits, metadata["cu"], sampling_metadata)
        return logits, rejection_sample(
            metadata["ids"], metadata["counts"], 2, metadata["cu"], draft_probs, logits,
            metadata["bonus"], sampling_metadata, use_fp64_gumbel=True)
"""
V2 = """
def rejection_sample(target_logits, draft_logits, draft_sampled, cu_num_logits, pos, idx_mapping,
                     expanded_idx_mapping, expanded_local_pos, temperature, seed,
                     num_speculative_steps, synthetic_conditional_rates=None, use_fp64=False,
                     use_block_verification=False, watermark_key=None):
    return "vllm"
"""
BUDGET = """
def _assign_draft_token_budget(confidence_probs, idx_mapping, capacities, draft_budget, num_steps):
    pass

_assign_draft_token_budget_compiled = _assign_draft_token_budget
"""
PROJECT = pathlib.Path(__file__).parents[2] / "pyproject.toml"
SOURCES = {plugin._CLASSIC: CLASSIC, plugin._V2_FUNCTION: V2, plugin._V2_BUDGET: BUDGET}


def build(monkeypatch, sources):
    """Packages of these names; returns a module that had imported from them by name before."""
    for name, source in sources.items():
        parts = name.split(".")
        for depth in range(1, len(parts)):
            package = ".".join(parts[:depth])
            if package not in sys.modules or not package.startswith("vllm"):
                module = types.ModuleType(package)
                module.__path__ = []
                monkeypatch.setitem(sys.modules, package, module)
        module = types.ModuleType(name)
        module.__spec__ = types.SimpleNamespace(name=name)
        exec(source, vars(module))
        monkeypatch.setitem(sys.modules, name, module)
    runner = types.ModuleType("vllm.runner")
    runner.RejectionSampler = getattr(sys.modules[plugin._CLASSIC], "RejectionSampler", None)
    monkeypatch.setitem(sys.modules, runner.__name__, runner)
    monkeypatch.setattr(plugin, "_installed", None)
    plugin._announce.cache_clear()
    return runner


@pytest.fixture
def engine(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv(plugin.VARIABLE, raising=False)
    return build(monkeypatch, SOURCES)


def metadata(temperature):
    return types.SimpleNamespace(
        all_greedy=temperature is None,
        temperature=temperature,
        top_k=None,
        top_p=None,
        generators={},
    )


@pytest.fixture
def step(generator):
    """Three requests with 2, 0 and 1 drafts."""
    return {
        "ids": torch.tensor([1, 2, 3], dtype=torch.int32),
        "counts": [2, 0, 1],
        "cu": torch.tensor([2, 2, 3], dtype=torch.int32),
        "bonus": torch.tensor([[4], [5], [6]], dtype=torch.int32),
    }


def config(method):
    return types.SimpleNamespace(rejection_sample_method=method)


@pytest.mark.parametrize("value", [None, "", "0", "off"])
def test_installed_and_not_asked_for_it_changes_nothing(engine, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv(plugin.VARIABLE, value)
    before = {name: dict(vars(sys.modules[name])) for name in SOURCES}
    plugin.register()
    for name in SOURCES:
        assert vars(sys.modules[name]) == before[name]


@pytest.mark.parametrize(
    "value, method, rule",
    [
        ("1", "standard", "token"),
        ("config", "block", "block"),
        ("token", "block", "token"),
        ("block", "standard", "block"),
        ("block", "synthetic", None),
    ],
)
def test_the_rule_comes_from_the_variable_or_the_configuration(
    engine, monkeypatch, value, method, rule
):
    monkeypatch.setenv(plugin.VARIABLE, value)
    plugin.register()
    assert engine.RejectionSampler(None, config(method)).dspark_rule == rule


def test_a_step_is_served(engine, monkeypatch, step, generator, caplog):
    monkeypatch.setenv(plugin.VARIABLE, "block")
    caplog.set_level("INFO", logger="vllm.dspark_ext")
    theirs = engine.RejectionSampler
    plugin.register()
    plugin.register()  # vLLM may call it again
    assert issubclass(engine.RejectionSampler, theirs)
    assert not caplog.messages
    sampler = engine.RejectionSampler(None, config("standard"))
    assert caplog.messages == ["dspark_ext judges drafts by the block rule (classic runner)"]
    logits = torch.randn(3, 8, generator=generator)
    judged, emitted = sampler.forward(step, None, logits.clone(), metadata(torch.ones(3)))
    assert torch.equal(judged, logits) and emitted.shape == (3, 3)
    assert emitted[1].tolist() == [5, -1, -1]
    logits[:] = -9.0
    logits[[0, 1, 2], [1, 2, 3]] = 9.0
    _, emitted = sampler.forward(step, None, logits, metadata(None))
    assert emitted.tolist() == [[1, 2, 4], [5, -1, -1], [3, 6, -1]]


def test_samplers_made_before_and_synthetic_ones_stay_vllms(engine, monkeypatch, step):
    before = engine.RejectionSampler(None)
    monkeypatch.setenv(plugin.VARIABLE, "block")
    plugin.register()
    synthetic = engine.RejectionSampler(None, config("synthetic"))
    for sampler in (before, synthetic):
        assert sampler.forward(step, None, torch.zeros(3, 8), metadata(None)) == ("vllm", "vllm")


def test_v2_is_served_and_what_is_not_verification_stays_vllms(engine, monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, "1")
    plugin.register()
    call = {
        "target_logits": torch.eye(4)[[1, 2, 3]],
        "draft_logits": None,
        "draft_sampled": torch.tensor([0, 1, 3]),
        "cu_num_logits": torch.tensor([0, 3], dtype=torch.int32),
        "pos": torch.arange(3),
        "idx_mapping": torch.tensor([0]),
        "expanded_idx_mapping": None,
        "expanded_local_pos": None,
        "temperature": torch.zeros(1),
        "seed": torch.tensor([1]),
        "num_speculative_steps": 2,
    }
    function = sys.modules[plugin._V2_FUNCTION].rejection_sample
    sampled, count = function(*call.values(), use_block_verification=True)
    assert sampled.tolist() == [[1, 2, -1]] and count.tolist() == [2]
    assert function(**call, watermark_key=3) == "vllm"
    assert function(**call, synthetic_conditional_rates=torch.ones(2)) == "vllm"
    budget = sys.modules[plugin._V2_BUDGET]._assign_draft_token_budget_compiled
    assert budget is plugin.functions.assign_draft_token_budget


@pytest.mark.parametrize(
    "name, old, new, message",
    [
        (plugin._CLASSIC, "max_spec_len, cu_num", "max_drafts, cu_num", "max_drafts"),
        (plugin._CLASSIC, "self, metadata", "self, batch", "RejectionSampler.forward"),
        (plugin._CLASSIC, "class RejectionSampler", "class Other", "RejectionSampler"),
        (plugin._V2_FUNCTION, "pos, idx_mapping", "idx_mapping, pos", "rejection_sampler_utils"),
        (plugin._V2_BUDGET, "capacities", "limits", "_assign_draft_token_budget"),
    ],
)
def test_another_interface_stops_the_engine_and_names_it(
    engine, monkeypatch, name, old, new, message
):
    assert old in SOURCES[name]
    build(monkeypatch, {**SOURCES, name: SOURCES[name].replace(old, new)})
    monkeypatch.setenv(plugin.VARIABLE, "1")
    before = {name: dict(vars(sys.modules[name])) for name in SOURCES}
    with pytest.raises(plugin.IncompatibleEngineError, match=message) as error:
        plugin.register()
    assert plugin.VARIABLE in str(error.value)
    assert all(vars(sys.modules[name]) == before[name] for name in SOURCES)


def test_an_unknown_value_is_named(engine, monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, "blok")
    with pytest.raises(ValueError, match="off, config, token, block, got 'blok'"):
        plugin.register()


def test_a_change_of_mind_in_one_process_is_refused(engine, monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, "block")
    plugin.register()
    monkeypatch.setenv(plugin.VARIABLE, "token")
    with pytest.raises(RuntimeError, match="from block to token"):
        plugin.register()


def test_entry_points_name_functions_that_exist():
    try:
        import tomllib
    except ModuleNotFoundError:
        pytest.skip("reading pyproject.toml needs Python 3.11")
    project = tomllib.loads(PROJECT.read_text())["project"]
    points = project["entry-points"]
    assert set(points) == {"vllm.general_plugins", "sglang.srt.plugins"}
    for group in points.values():
        module, function = group["dspark_ext"].split(":")
        assert callable(getattr(importlib.import_module(module), function))
