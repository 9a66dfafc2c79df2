"""vLLM's speculative-config read as ours: every key is taken over, or refused with what to use.

Names and defaults: vllm/config/speculative.py of vLLM 0.32 (Apache-2.0).
"""

from collections.abc import Mapping
from typing import Any

from . import checks

OWNER = "SpeculativeConfig"
METHODS = ("dspark", "ngram", "draft_model")

_METHODS = {
    "dspark": "dspark",
    "ngram": "ngram",
    "ngram_gpu": "ngram",
    "draft_model": "draft_model",
}
_OTHER_METHODS = {
    "suffix": "use 'ngram', which looks its drafts up in the request itself",
    "custom_class": "give your drafter to DSparkEngine; it needs the methods of engine.Drafter",
    "extract_hidden_states": "read TargetOutput.features, which every target pass returns",
    **dict.fromkeys(
        ("eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "dflash"),
        "its heads are not read here; use 'dspark', 'draft_model' or 'ngram', or write an "
        "engine.Drafter",
    ),
}
_LOSSY_METHODS = {
    "fly": "it changes the law of the output; use 'block' or 'token'",
    "typical": "it changes the law of the output; use 'block' or 'token'",
    "typical_acceptance_sampler": "it changes the law of the output; use 'block' or 'token'",
    "probabilistic": "vLLM's old name of 'standard'; whether drafts are drawn is "
    "draft_sample_method",
    "rejection_sampler": "vLLM's old name of 'standard'",
    "strict": "SGLang's name of an exact match; use 'greedy' with temperature 0, else 'token'",
}

# Keys that have no counterpart: values that say nothing (vLLM's defaults), and what to do else.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "enforce_eager": ((None,), "give DSparkEngine(graphs=False)"),
    "draft_tensor_parallel_size": ((None, 1), "the engine runs on one device"),
    "tensor_parallel_size": ((None,), "the engine runs on one device"),
    "quantization": ((None,), "quantise the drafter before it is given to the engine"),
    "moe_backend": ((None,), "the drafter's own modules run; there is nothing to choose"),
    "attention_backend": ((None, "auto"), "the drafter's own attention runs"),
    "kv_cache_dtype": ((None,), "the drafter allocates its cache; choose its dtype there"),
    "max_model_len": ((None,), "make the drafter with this max_len"),
    "revision": ((None,), "load the drafter of this revision and give its directory as 'model'"),
    "code_revision": ((None,), "no code is loaded from a model directory"),
    "index_share_for_mtp_iteration": ((None,), "there is no mtp drafter here"),
    "disable_padded_drafter_batch": ((False,), "drafts are ragged anyway; leave it out"),
    "disable_eagle_block_drop": ((False,), "there is no prefix cache whose block is dropped"),
    "use_local_argmax_reduction": (
        (False,),
        "give draft_sample_method 'greedy'; shards of a vocabulary: dspark_ext.draft.draw_shard",
    ),
    "use_heterogeneous_vocab": ((False,), "drafter and target must share a vocabulary"),
    "parallel_drafting": (
        (False,),
        "whether drafts are made in one pass is the drafter's; give blocks_per_step for more "
        "blocks",
    ),
    "suffix_decoding_max_tree_depth": ((24,), "there is no suffix drafter; use method 'ngram'"),
    "suffix_decoding_max_cached_requests": (
        (10000,),
        "there is no suffix drafter; use method 'ngram'",
    ),
    "suffix_decoding_max_spec_factor": ((1.0,), "there is no suffix drafter; use method 'ngram'"),
    "suffix_decoding_min_token_prob": ((0.1,), "there is no suffix drafter; use method 'ngram'"),
    "draft_load_config": ((None,), "load the drafter yourself and give it to the engine"),
    "dspark_draft_topk": ((None,), "the drafter's candidates are set where it is made"),
    "target_model_config": ((None,), "the engine is given a target"),
    "target_parallel_config": ((None,), "the engine runs on one device"),
    "draft_model_config": ((None,), "the engine is given a drafter"),
    "draft_parallel_config": ((None,), "the engine runs on one device"),
    # keys of older versions, of SGLang and of transformers
    "speculative_model": ((), "give 'model'"),
    "disable_by_batch_size": ((None,), "give num_speculative_tokens_per_batch_size or draft_gate"),
    "speculative_disable_by_batch_size": (
        (None,),
        "give num_speculative_tokens_per_batch_size or draft_gate",
    ),
    "acceptance_method": ((), "give rejection_sample_method"),
    "posterior_threshold": ((None,), "typical acceptance changes the law of the output"),
    "posterior_alpha": ((None,), "typical acceptance changes the law of the output"),
    "speculative_num_steps": ((), "give num_speculative_tokens, and blocks_per_step"),
    "speculative_num_draft_tokens": ((), "give num_speculative_tokens"),
    "assistant_confidence_threshold": (
        (),
        "give schedule 'threshold' and confidence_threshold",
    ),
    "fly_window_size": ((None,), "'fly' changes the law of the output"),
    "fly_entropy_threshold": ((None,), "'fly' changes the law of the output"),
    "fly_entropy_top_k": ((None,), "'fly' changes the law of the output"),
}


def translate(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of vLLM replaced by ours; our own pass. ValueError for what cannot be honoured."""
    taken = {}
    for name, value in values.items():
        if name not in _REFUSED:
            taken[name] = value
            continue
        silent, advice = _REFUSED[name]
        if not any(value is each or value == each for each in silent):
            raise checks.error(OWNER, f"{name}={value!r} has no counterpart here: {advice}")
    _adaptive(taken)
    _methods(taken)
    return taken


def _adaptive(taken: dict[str, Any]) -> None:
    """vLLM's adaptive verification spends the rows that earlier confidences say pay best."""
    if "enable_adaptive_verification" not in taken:
        return
    adaptive = taken.pop("enable_adaptive_verification")
    checks.require(
        OWNER,
        "enable_adaptive_verification",
        adaptive,
        "true or false",
        lambda value: isinstance(value, bool),
    )
    schedule = taken.setdefault("schedule", "lagged" if adaptive else "fixed")
    if adaptive == (schedule == "fixed"):
        raise checks.error(
            OWNER,
            f"enable_adaptive_verification={adaptive} contradicts schedule={schedule!r}: true is "
            "'lagged' (or early_stop, budget, uniform, threshold), false is 'fixed'",
        )


def _methods(taken: dict[str, Any]) -> None:
    method = taken.get("method")
    if isinstance(method, str):
        if method in _OTHER_METHODS:
            raise checks.error(OWNER, f"method={method!r}: {_OTHER_METHODS[method]}")
        if method.endswith("_mtp"):
            raise checks.error(OWNER, f"method={method!r}: {_OTHER_METHODS['mtp']}")
        taken["method"] = _METHODS.get(method, method)
    rule = taken.get("rejection_sample_method")
    if isinstance(rule, str) and rule in _LOSSY_METHODS:
        raise checks.error(OWNER, f"rejection_sample_method={rule!r}: {_LOSSY_METHODS[rule]}")
