"""What a user may set per engine: how it drafts and verifies."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..sampling import synthetic_acceptance_rates
from ..verify import CostTable
from . import checks, vllm_config
from .sampling_params import SamplingParams

__all__ = ["PRESETS", "SamplingParams", "SpeculativeConfig"]

_OWNER = "SpeculativeConfig"
_CHOICES = {
    "draft_sample_method": ("probabilistic", "greedy"),
    "rejection_sample_method": ("block", "token", "standard", "greedy", "synthetic"),
    "schedule": ("fixed", "threshold", "early_stop", "budget", "lagged", "uniform"),
}
WEIGHING_SCHEDULES = ("early_stop", "lagged", "uniform")  # those that read a cost table

# Every preset keeps the law of the output.
PRESETS: dict[str, dict[str, Any]] = {
    # one or a few users: verify what pays at the present load; short prefill chunks between tokens
    "low_latency": {"schedule": "early_stop", "prefill_chunk": 64},
    # many requests: rows are dear, and drafting itself may not pay
    "high_throughput": {"schedule": "lagged", "draft_gate": True, "prefill_chunk": 512},
    # what a request gets depends on its prompt, parameters and seed alone, never on its company
    "quality": {"schedule": "fixed", "draft_gate": False, "prefill_chunk": 64},
}


@dataclasses.dataclass(frozen=True)
class SpeculativeConfig:
    """How the engine drafts and verifies.

    Drafting
        method                  None, "dspark", "ngram" or "draft_model": what the drafter has to be
        model                   where the drafter comes from; for those who build it (command line)
        prompt_lookup_min, _max shortest and longest suffix that method "ngram" looks up
        num_speculative_tokens  drafts per block, 1 .. the drafter's block size; None = that size
        num_speculative_tokens_per_batch_size
                                (first, last, drafts) by number of decoding requests; the last
                                holds beyond, 0 drafts are plain decoding
        draft_sample_method     "probabilistic": drafts are drawn at the request's temperature and
                                judged with their distribution; "greedy": drafts are argmaxes,
                                judged as one-hot
        blocks_per_step         blocks drafted one behind the other before a pass verifies them
        continue_threshold      a request gets its next block if the product of its confidences so
                                far is at least this
    Verifying
        rejection_sample_method "block" (Sun et al., arXiv 2403.10444), "token" (alias "standard",
                                Leviathan et al., arXiv 2211.17192), "greedy" (temperature 0 only),
                                "synthetic" (accepts at given rates; not lossless, benchmarks only)
        synthetic_acceptance_rates, synthetic_acceptance_length
                                one of them with "synthetic": P(the first i drafts all stand) by
                                position, or the mean number of emitted tokens per pass
        allow_lossy             has to be True for "synthetic"; every output is then marked
        schedule                which drafts are verified (`dspark_ext.verify.schedule`): "fixed"
                                all; "threshold" those before the first confidence below
                                `confidence_threshold`; "early_stop" the hardware-aware prefixes of
                                the DSpark paper's algorithm 1; "budget" up to `verify_budget` rows;
                                "lagged" the rows that pay best by the confidences of the step
                                before; "uniform" one length for all
        confidence_threshold    in [0, 1], or one per position
        verify_budget           rows of a pass, anchors included
        cost_table              seconds of a step by the rows of its target pass (and by its
                                requests); None = the engine measures it when it needs one
        cost_table_cache        file that keeps measured tables by target, drafter and machine
    Switching off (plain decoding, with probes that bring it back)
        draft_gate              while drafting costs more than it brings (`verify.DraftGate`)
        min_acceptance          while fewer of the drafts verified are accepted than this share
        acceptance_window       blocks the share is taken over
        probe_interval          plain passes between two probes of `min_acceptance`
    The rest
        prefill_chunk           prompt tokens that enter one target pass beside the decoding rows
        seed                    where the seeds of requests that give none come from

    Raises ValueError for a setting that is out of range, contradicts another or is read by nothing.
    """

    method: str | None = None
    model: str | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    num_speculative_tokens: int | None = None
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] | None = None
    draft_sample_method: str = "probabilistic"
    blocks_per_step: int = 1
    continue_threshold: float | None = None
    rejection_sample_method: str = "block"
    synthetic_acceptance_rates: tuple[float, ...] | None = None
    synthetic_acceptance_length: float | None = None
    allow_lossy: bool = False
    schedule: str = "fixed"
    confidence_threshold: float | tuple[float, ...] = 0.0
    verify_budget: int | None = None
    cost_table: CostTable | None = None
    cost_table_cache: str | None = None
    draft_gate: bool = False
    min_acceptance: float = 0.0
    acceptance_window: int = 64
    probe_interval: int = 64
    prefill_chunk: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            "confidence_threshold",
            "synthetic_acceptance_rates",
            "num_speculative_tokens_per_batch_size",
        ):
            object.__setattr__(self, name, _frozen(getattr(self, name)))
        _check_ranges(self)
        _check_contradictions(self)
        _check_lossy(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SpeculativeConfig":
        """Build from a mapping, say parsed JSON, with our names, vLLM's, or "preset" and what
        differs from it. `cost_table` may be a table's JSON form or the name of its file. A name
        that is unknown or cannot be honoured is a ValueError saying so."""
        values = dict(values)
        preset = values.pop("preset", None)
        values = vllm_config.translate(values)
        if preset is not None:
            checks.require_choice(_OWNER, "preset", preset, tuple(PRESETS))
            values = {**PRESETS[preset], **values}
        table = values.get("cost_table")
        if isinstance(table, Mapping):
            values["cost_table"] = CostTable.from_dict(table)
        elif isinstance(table, str):
            values["cost_table"] = CostTable.load(table)
        return checks.from_dict(cls, values)

    @classmethod
    def from_json(cls, text_or_path: str | Path) -> "SpeculativeConfig":
        """Read JSON: a text that starts with a brace, else a file. ValueError names what is
        wrong, and the file."""
        text, where = str(text_or_path), "JSON"
        if not text.lstrip().startswith("{"):
            where, text = text, Path(text_or_path).read_text(encoding="utf-8-sig")
        try:
            values = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise checks.error(_OWNER, f"{where}: no JSON: {error}") from None
        if not isinstance(values, dict):
            raise checks.error(_OWNER, f"{where}: expected an object, got {type(values).__name__}")
        return cls.from_dict(values)

    @classmethod
    def preset(cls, name: str, **changes) -> "SpeculativeConfig":
        """ "low_latency", "high_throughput" or "quality" (`PRESETS`), and what differs from it."""
        return cls.from_dict({"preset": name, **changes})

    def to_dict(self) -> dict[str, Any]:
        """JSON-like, all names; `from_dict` reads it back."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.cost_table is not None:
            values["cost_table"] = self.cost_table.to_dict()
        return {name: _thawed(value) for name, value in values.items()}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @property
    def lossy(self) -> bool:
        """Whether speculative output may differ in law from the target's."""
        return self.rejection_sample_method == "synthetic"

    @property
    def needs_cost_table(self) -> bool:
        return self.schedule in WEIGHING_SCHEDULES or self.draft_gate

    def conditional_acceptance_rates(self, num_drafts: int) -> torch.Tensor:
        """What "synthetic" accepts by: float32 [num_drafts], P(draft i stands | those before)."""
        if self.synthetic_acceptance_length is not None:
            return synthetic_acceptance_rates(self.synthetic_acceptance_length, num_drafts)
        rates = self.synthetic_acceptance_rates
        if len(rates) != num_drafts:
            raise checks.error(
                _OWNER,
                f"synthetic_acceptance_rates: expected one for each of {num_drafts} drafts, got "
                f"{len(rates)}",
            )
        before = (1.0, *rates)
        conditional = [now / past if past else 0.0 for past, now in zip(before, rates)]
        return torch.tensor(conditional, dtype=torch.float32, device="cpu")


def _check_ranges(config: SpeculativeConfig) -> None:
    is_int, is_number = checks.is_int, checks.is_number

    def check(name: str, expected: str, ok) -> None:
        checks.require(_OWNER, name, getattr(config, name), expected, ok)

    for name, choices in _CHOICES.items():
        checks.require_choice(_OWNER, name, getattr(config, name), choices)
    if config.method is not None:
        checks.require_choice(_OWNER, "method", config.method, vllm_config.METHODS)
    for name in ("model", "cost_table_cache"):
        check(name, "None or a text", lambda value: value is None or isinstance(value, str))
    for name in (
        "num_speculative_tokens",
        "prompt_lookup_min",
        "prompt_lookup_max",
        "verify_budget",
    ):
        check(name, "None or an integer >= 1", lambda value: value is None or is_int(value, 1))
    for name in ("blocks_per_step", "acceptance_window", "probe_interval", "prefill_chunk"):
        check(name, "an integer >= 1", lambda value: is_int(value, 1))
    check("seed", "an integer", lambda value: is_int(value, -(2**63)))
    for name in ("allow_lossy", "draft_gate"):
        check(name, "True or False", lambda value: isinstance(value, bool))
    check("min_acceptance", "a number in [0, 1]", lambda value: is_number(value, 0, 1))
    check(
        "continue_threshold",
        "None or a number in [0, 1]",
        lambda value: value is None or is_number(value, 0, 1),
    )
    check(
        "confidence_threshold",
        "a number in [0, 1], or one per position",
        lambda value: all(is_number(each, 0, 1) for each in _as_tuple(value)),
    )
    check(
        "cost_table",
        "None or a CostTable",
        lambda value: value is None or isinstance(value, CostTable),
    )
    check(
        "num_speculative_tokens_per_batch_size",
        "None or (first, last, drafts) that start at 1 and join without gaps",
        lambda value: value is None or _is_batch_table(value),
    )


def _check_contradictions(config: SpeculativeConfig) -> None:
    """A setting that nothing reads, or two that exclude each other."""

    def only(names: tuple[str, ...], condition: bool, when: str) -> None:
        for name in names:
            default = type(config).__dataclass_fields__[name].default
            if not condition and getattr(config, name) != default:
                raise checks.error(
                    _OWNER, f"{name}={getattr(config, name)!r} is only read with {when}"
                )

    schedule, several = config.schedule, config.blocks_per_step > 1
    only(("confidence_threshold",), schedule == "threshold", "schedule 'threshold'")
    only(("verify_budget",), schedule == "budget", "schedule 'budget'")
    only(
        ("cost_table", "cost_table_cache"),
        config.needs_cost_table,
        f"a schedule of {', '.join(WEIGHING_SCHEDULES)}, or with draft_gate",
    )
    only(("continue_threshold",), several, "blocks_per_step > 1")
    only(("prompt_lookup_min", "prompt_lookup_max"), config.method == "ngram", "method 'ngram'")
    only(("acceptance_window", "probe_interval"), config.min_acceptance > 0, "min_acceptance > 0")
    if schedule == "budget" and config.verify_budget is None:
        raise checks.error(_OWNER, "schedule 'budget' needs verify_budget, rows of a pass")
    if config.cost_table is not None and config.cost_table_cache is not None:
        raise checks.error(
            _OWNER, "cost_table and cost_table_cache exclude each other: a given table is used"
        )
    if config.draft_gate and config.min_acceptance > 0:
        raise checks.error(
            _OWNER, "draft_gate and min_acceptance exclude each other: both switch drafting off"
        )
    table = config.cost_table
    if config.draft_gate and table is not None and table.request_seconds is None:
        raise checks.error(
            _OWNER,
            "draft_gate needs a cost_table with request_rows and request_seconds, what drafting "
            "takes by number of requests",
        )
    if several and schedule in ("lagged", "uniform"):
        raise checks.error(
            _OWNER,
            f"blocks_per_step={config.blocks_per_step} contradicts schedule {schedule!r}, which "
            "chooses lengths before the blocks are known: use fixed, threshold, early_stop or "
            "budget (docs/losslessness.md)",
        )
    shortest, longest = config.prompt_lookup_min, config.prompt_lookup_max
    if shortest is not None and longest is not None and shortest > longest:
        raise checks.error(
            _OWNER, f"prompt_lookup_min={shortest} is above prompt_lookup_max={longest}"
        )
    if config.num_speculative_tokens is not None:
        check_positions(config, config.num_speculative_tokens)


def check_positions(config: SpeculativeConfig, num_drafts: int) -> None:
    """Settings by position must fit `num_drafts` drafts per block."""
    thresholds = config.confidence_threshold
    most = num_drafts * config.blocks_per_step
    if isinstance(thresholds, tuple) and len(thresholds) != most:
        raise checks.error(
            _OWNER,
            f"confidence_threshold: expected one number, or one for each of {most} drafts, got "
            f"{len(thresholds)}",
        )
    table = config.num_speculative_tokens_per_batch_size or ()
    if any(drafts > num_drafts for _, _, drafts in table):
        raise checks.error(
            _OWNER,
            "num_speculative_tokens_per_batch_size: expected at most num_speculative_tokens "
            f"({num_drafts}) drafts",
        )
    if config.lossy:
        try:
            config.conditional_acceptance_rates(most)
        except ValueError as error:
            raise checks.error(_OWNER, f"synthetic_acceptance_length: {error}") from None


def _check_lossy(config: SpeculativeConfig) -> None:
    rates, length = config.synthetic_acceptance_rates, config.synthetic_acceptance_length
    if not config.lossy:
        for name in ("synthetic_acceptance_rates", "synthetic_acceptance_length"):
            if getattr(config, name) is not None:
                raise checks.error(
                    _OWNER, f"{name} is only read with rejection_sample_method 'synthetic'"
                )
        return
    if not config.allow_lossy:
        raise checks.error(
            _OWNER,
            "rejection_sample_method='synthetic' accepts drafts whatever the target says, so the "
            "text is not the target's: for benchmarks, give allow_lossy=True as well",
        )
    if (rates is None) == (length is None):
        raise checks.error(
            _OWNER,
            "rejection_sample_method 'synthetic' needs one of synthetic_acceptance_rates and "
            "synthetic_acceptance_length",
        )
    checks.require(
        _OWNER,
        "synthetic_acceptance_rates",
        rates,
        "numbers in [0, 1] that do not rise",
        lambda value: (
            value is None or (all(checks.is_number(each, 0, 1) for each in value) and _falls(value))
        ),
    )
    checks.require(
        _OWNER,
        "synthetic_acceptance_length",
        length,
        "a number >= 1",
        lambda value: value is None or checks.is_number(value, 1, float("inf")),
    )


def _falls(rates: tuple[float, ...]) -> bool:
    return all(before >= after for before, after in zip(rates, rates[1:]))


def _is_batch_table(table: Any) -> bool:
    at = 1
    for first, last, drafts in table:
        if not (checks.is_int(last, first) and checks.is_int(drafts, 0) and first == at):
            return False
        at = last + 1
    return at > 1


def _as_tuple(value: Any) -> tuple:
    return value if isinstance(value, tuple) else (value,)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list | tuple) else value


def _thawed(value: Any) -> Any:
    return [_thawed(each) for each in value] if isinstance(value, tuple) else value
