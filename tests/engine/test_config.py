"""`SpeculativeConfig`: what it reads, what it refuses and what it says then."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_ext.engine import PRESETS, DSparkEngine, SamplingParams, SpeculativeConfig
from dspark_ext.verify import CostTable

TABLE = CostTable([1, 24], [1.0, 4.0])
SYNTHETIC = {"rejection_sample_method": "synthetic", "allow_lossy": True}

# The fields of vllm.config.SpeculativeConfig of vLLM 0.32 and their defaults.
VLLM_DEFAULTS = {
    "enforce_eager": None,
    "num_speculative_tokens": None,
    "model": None,
    "method": None,
    "draft_tensor_parallel_size": None,
    "tensor_parallel_size": None,
    "quantization": None,
    "moe_backend": None,
    "attention_backend": None,
    "kv_cache_dtype": None,
    "max_model_len": None,
    "revision": None,
    "code_revision": None,
    "index_share_for_mtp_iteration": None,
    "disable_padded_drafter_batch": False,
    "disable_eagle_block_drop": False,
    "use_local_argmax_reduction": False,
    "use_heterogeneous_vocab": False,
    "prompt_lookup_max": None,
    "prompt_lookup_min": None,
    "parallel_drafting": False,
    "target_model_config": None,
    "target_parallel_config": None,
    "num_speculative_tokens_per_batch_size": None,
    "draft_model_config": None,
    "draft_parallel_config": None,
    "suffix_decoding_max_tree_depth": 24,
    "suffix_decoding_max_cached_requests": 10000,
    "suffix_decoding_max_spec_factor": 1.0,
    "suffix_decoding_min_token_prob": 0.1,
    "draft_load_config": None,
    "rejection_sample_method": "standard",
    "synthetic_acceptance_rates": None,
    "synthetic_acceptance_length": None,
    "enable_adaptive_verification": False,
    "draft_sample_method": "greedy",
    "dspark_draft_topk": None,
}


def test_the_defaults_of_vllm_are_read():
    config = SpeculativeConfig.from_dict(VLLM_DEFAULTS)
    assert config == SpeculativeConfig(
        rejection_sample_method="standard", draft_sample_method="greedy"
    )


@pytest.mark.parametrize("name", VLLM_DEFAULTS)
def test_no_key_of_vllm_is_ignored(name):
    """A value that is not the default shows in the settings, or is refused by name."""
    ours = {field.name for field in dataclasses.fields(SpeculativeConfig)}
    if name in ours or name == "enable_adaptive_verification":
        return  # read: test_what_vllm_says
    with pytest.raises(ValueError, match=rf"{name}=\S+ has no counterpart here: \w"):
        SpeculativeConfig.from_dict({name: "something"})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"method": "dspark", "num_speculative_tokens": 5}, {}),
        ({"method": "ngram_gpu", "prompt_lookup_max": 4}, {"method": "ngram"}),
        ({"method": "draft_model", "model": "some/model"}, {}),
        ({"rejection_sample_method": "block", "draft_sample_method": "probabilistic"}, {}),
        ({"enable_adaptive_verification": True}, {"schedule": "lagged"}),
        ({"enable_adaptive_verification": True, "schedule": "early_stop"}, {}),
        ({"enable_adaptive_verification": False}, {"schedule": "fixed"}),
        ({"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 0]]}, {}),
        ({**SYNTHETIC, "synthetic_acceptance_length": 2.5}, {}),
        ({**SYNTHETIC, "synthetic_acceptance_rates": [0.9, 0.5]}, {}),
        ({"draft_tensor_parallel_size": 1}, {}),
    ],
    ids=lambda values: ",".join(values) if isinstance(values, dict) else "",
)
def test_what_vllm_says(values, expected):
    config = SpeculativeConfig.from_dict(values).to_dict()
    expected = {**values, **expected}
    for name in ("enable_adaptive_verification", "draft_tensor_parallel_size"):
        expected.pop(name, None)
    assert {name: config[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "eagle3"}, "method='eagle3': its heads are not read here; use 'dspark'"),
        ({"method": "deepseek_mtp"}, "method='deepseek_mtp': its heads are not read"),
        ({"method": "suffix"}, "method='suffix': use 'ngram'"),
        ({"method": "dsparc"}, "method: expected one of dspark, .*nearest: 'dspark'"),
        ({"draft_tensor_parallel_size": 2}, "runs on one device"),
        ({"disable_by_batch_size": 32}, "give num_speculative_tokens_per_batch_size"),
        ({"rejection_sample_method": "fly"}, "'fly': it changes the law of the output"),
        ({"rejection_sample_method": "typical"}, "it changes the law"),
        (
            {"enable_adaptive_verification": True, "schedule": "fixed"},
            "enable_adaptive_verification=True contradicts schedule='fixed'",
        ),
        (
            {"enable_adaptive_verification": False, "schedule": "lagged"},
            "enable_adaptive_verification=False contradicts schedule='lagged'",
        ),
        ({"enable_adaptive_verification": 1}, "expected true or false, got 1"),
        # lossy
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2},
            "the text is not the target's: for benchmarks, give allow_lossy=True",
        ),
        (SYNTHETIC, "needs one of synthetic_acceptance_rates and"),
        (
            {
                **SYNTHETIC,
                "synthetic_acceptance_length": 2,
                "synthetic_acceptance_rates": [0.5],
            },
            "needs one of",
        ),
        ({**SYNTHETIC, "synthetic_acceptance_rates": [0.5, 0.6]}, "numbers .* do not rise"),
        ({**SYNTHETIC, "synthetic_acceptance_rates": [1.5]}, "numbers in .0, 1. that"),
        ({**SYNTHETIC, "synthetic_acceptance_length": 0.5}, "expected a number >= 1, got 0.5"),
        (
            {**SYNTHETIC, "synthetic_acceptance_length": 7, "num_speculative_tokens": 5},
            "synthetic_acceptance_length: .*expected 1 <= length <= num_drafts . 1 = 6, got 7",
        ),
        (
            {
                **SYNTHETIC,
                "synthetic_acceptance_rates": [0.5],
                "num_speculative_tokens": 2,
            },
            "expected one for each of 2 drafts, got 1",
        ),
        ({"synthetic_acceptance_length": 2}, "only read with rejection_sample_method 'synthetic'"),
        # contradictions
        ({"confidence_threshold": 0.5}, "only read with schedule 'threshold'"),
        ({"verify_budget": 8}, "verify_budget=8 is only read with schedule 'budget'"),
        ({"schedule": "budget"}, "schedule 'budget' needs verify_budget"),
        ({"cost_table": TABLE}, "cost_table=.* is only read with a schedule of early_stop"),
        ({"cost_table_cache": "x.json"}, "cost_table_cache='x.json' is only read with"),
        (
            {"schedule": "lagged", "cost_table": TABLE, "cost_table_cache": "x"},
            "cost_table and cost_table_cache exclude each other",
        ),
        ({"continue_threshold": 0.5}, "only read with blocks_per_step > 1"),
        ({"blocks_per_step": 2, "schedule": "lagged"}, "contradicts schedule 'lagged'"),
        ({"blocks_per_step": 2, "schedule": "uniform"}, "contradicts schedule 'uniform'"),
        ({"draft_gate": True, "min_acceptance": 0.5}, "exclude each other: both switch"),
        ({"draft_gate": True, "cost_table": TABLE}, "needs a cost_table with request_rows"),
        ({"probe_interval": 3}, "probe_interval=3 is only read with min_acceptance > 0"),
        ({"prompt_lookup_max": 3}, "only read with method 'ngram'"),
        (
            {"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3},
            "prompt_lookup_min=4 is above prompt_lookup_max=3",
        ),
        (
            {
                "schedule": "threshold",
                "confidence_threshold": [0.5, 0.6],
                "num_speculative_tokens": 3,
            },
            "one for each of 3 drafts, got 2",
        ),
        (
            {
                "num_speculative_tokens": 2,
                "num_speculative_tokens_per_batch_size": [[1, 8, 3]],
            },
            "expected at most num_speculative_tokens .2. drafts",
        ),
        # ranges
        ({"num_speculative_tokens_per_batch_size": [[2, 8, 3]]}, "that start at 1 and join"),
        ({"num_speculative_tokens_per_batch_size": [[1, 8, 3], [10, 12, 1]]}, "join without gaps"),
        ({"num_speculative_tokens_per_batch_size": [[1, 8]]}, "expected None or .first, last"),
        ({"schedule": "threshold", "confidence_threshold": [0.5, 2]}, "or one per position"),
        ({"schedule": "threshold", "confidence_threshold": True}, "a number in"),
        ({"min_acceptance": 1.5}, r"min_acceptance: expected a number in \[0, 1\], got 1.5"),
        ({"blocks_per_step": 0}, "blocks_per_step: expected an integer >= 1, got 0"),
        ({"allow_lossy": "yes"}, "allow_lossy: expected True or False, got 'yes'"),
        ({"cost_table": 3, "schedule": "lagged"}, "cost_table: expected None or a CostTable"),
        ({"preset": "fast"}, "preset: expected one of low_latency, .*got 'fast'"),
        ({"seed": "x"}, "seed: expected an integer"),
        ({"method": ["ngram"]}, "method: expected one of dspark, ngram, draft_model, got .'ngram'"),
    ],
    ids=lambda values: ",".join(values) if isinstance(values, dict) else "",
)
def test_what_cannot_be_honoured_is_named(values, message):
    with pytest.raises(ValueError, match=f"dspark_ext.engine.SpeculativeConfig: .*{message}"):
        SpeculativeConfig.from_dict(values)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_lossless_and_can_be_changed(name):
    config = SpeculativeConfig.preset(name)
    assert not config.lossy and config == SpeculativeConfig.from_dict({"preset": name})
    assert SpeculativeConfig.preset(name, seed=4).seed == 4
    changed = SpeculativeConfig.from_dict({"schedule": "fixed", "preset": name})
    assert changed.schedule == "fixed" and changed.prefill_chunk == config.prefill_chunk


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "num_speculative_tokens": st.integers(1, 9),
        "draft_sample_method": st.sampled_from(["probabilistic", "greedy"]),
        "rejection_sample_method": st.sampled_from(["block", "token", "standard", "greedy"]),
        "blocks_per_step": st.integers(1, 3),
        "min_acceptance": st.floats(0, 1),
        "prefill_chunk": st.integers(1, 500),
        "seed": st.integers(-5, 2**62),
        "method": st.sampled_from([None, "dspark", "ngram"]),
    },
)
SCHEDULES = st.sampled_from(
    [
        {},
        {"schedule": "threshold", "confidence_threshold": 0.25},
        {"schedule": "budget", "verify_budget": 33},
        {"schedule": "early_stop", "cost_table": TABLE.to_dict()},
        {"schedule": "early_stop", "cost_table_cache": "tables.json"},
    ]
)


@given(SETTINGS, SCHEDULES)
def test_round_trip(settings, schedule):
    config = SpeculativeConfig.from_dict({**settings, **schedule})
    again = SpeculativeConfig.from_json(config.to_json())
    assert again.to_dict() == config.to_dict()
    assert json.loads(json.dumps(config.to_dict())) == config.to_dict()


def test_files(tmp_path):
    path = tmp_path / "speculative.json"
    path.write_text('{"schedule": "threshold", "confidence_threshold": [0.5, 0.25]}')
    assert SpeculativeConfig.from_json(path).confidence_threshold == (0.5, 0.25)
    path.write_text("\ufeff" + '{"schedule": "fixed"}', encoding="utf-8")
    assert SpeculativeConfig.from_json(path) == SpeculativeConfig()
    for text in ("{", '{"a": ' + 100_000 * "["):
        path.write_text(text)
        with pytest.raises(ValueError, match="speculative.json: no JSON"):
            SpeculativeConfig.from_json(str(path))
    path.write_text("[1]")
    with pytest.raises(ValueError, match="speculative.json: expected an object, got list"):
        SpeculativeConfig.from_json(path)
    with pytest.raises(FileNotFoundError):
        SpeculativeConfig.from_json(tmp_path / "none.json")
    TABLE.save(tmp_path / "table.json")
    values = {"schedule": "lagged", "cost_table": str(tmp_path / "table.json")}
    assert SpeculativeConfig.from_dict(values).cost_table.rows == [1, 24]
    with pytest.raises(FileNotFoundError, match="no cost table at"):
        SpeculativeConfig.from_dict({**values, "cost_table": "none.json"})


# -- what the engine makes of them


def test_settings_must_fit_the_drafter(serve):
    with pytest.raises(ValueError, match="one for each of 5 drafts, got 2"):
        serve(schedule="threshold", confidence_threshold=(0.5, 0.5))
    with pytest.raises(ValueError, match="num_drafts . 1 = 6, got 6.5"):
        serve(**SYNTHETIC, synthetic_acceptance_length=6.5)
    target, drafter = serve().target, serve().drafter
    with pytest.raises(ValueError, match="the settings say 'ngram', the drafter is 'dspark'"):
        DSparkEngine(target, drafter, SpeculativeConfig(method="ngram"))
    assert DSparkEngine(target, drafter, SpeculativeConfig(method="dspark")).num_drafts == 5


def test_the_greedy_rule_is_for_greedy_requests(serve, prompts):
    engine = serve(rejection_sample_method="greedy")
    with pytest.raises(ValueError, match="temperature 1: .*expected 0, got 0.5"):
        engine.generate(
            prompts[:2], [SamplingParams(temperature=0), SamplingParams(temperature=0.5)]
        )
    greedy = SamplingParams(temperature=0, max_new_tokens=12)
    drafted, plain = (
        engine.generate(prompts[:1], greedy, speculative=way).outputs[0].token_ids
        for way in (True, False)
    )
    assert drafted == plain
    sampled = SamplingParams(temperature=0.5, max_new_tokens=3)
    assert engine.generate(prompts[:1], sampled, speculative=False).outputs[0].token_ids


@pytest.mark.parametrize(
    "settings",
    [
        {"synthetic_acceptance_length": 3.5},
        {"synthetic_acceptance_rates": (1.0, 0.75, 0.75, 0.0, 0.0)},
    ],
    ids=["length", "rates"],
)
def test_synthetic_acceptance_marks_everything(serve, prompts, settings):
    engine = serve(max_requests=4, **SYNTHETIC, **settings)
    params = SamplingParams(temperature=0.0, max_new_tokens=120)
    stream = engine.stream(prompts, params)
    events = list(stream)
    assert all(event.lossy for event in events)
    assert all(output.lossy for output in stream.outputs)
    assert stream.stats.acceptance.mean_length == pytest.approx(3.5, abs=0.35)
    plain = engine.generate(prompts[:1], params, speculative=False).outputs[0]
    expected = serve().generate(prompts[:1], params, speculative=False).outputs[0]
    assert plain.token_ids == expected.token_ids and not plain.lossy
    assert not serve().generate(prompts[:1], params).outputs[0].lossy
