"""How much faster speculative decoding is on given prompts: measured, both ways, in turns."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .request import Prompt
from .sampling_params import SamplingParams
from .stats import json_like

if TYPE_CHECKING:
    from .engine import DSparkEngine


@dataclasses.dataclass(frozen=True)
class SpeedupReport:
    """Plain and speculative decoding of the same prompts with the same parameters.

    rounds                  (plain, speculative) tokens per second of each round
    ratio                   median over the rounds of speculative / plain
    plain_tokens_per_second, speculative_tokens_per_second
                            medians
    tokens_per_pass         of the speculative runs
    identical               whether all greedy requests got the same tokens both ways, None if there
                            is no greedy one. Sampled requests agree in law, not in tokens, and so
                            perhaps not in length: rates count what each way emitted.
    lossy                   whether the speculative runs may differ in law (synthetic acceptance)
    """

    rounds: list[tuple[float, float]]
    ratio: float
    plain_tokens_per_second: float
    speculative_tokens_per_second: float
    tokens_per_pass: float
    identical: bool | None
    lossy: bool

    def to_dict(self) -> dict[str, Any]:
        return json_like(self)


def measure_speedup(
    engine: DSparkEngine,
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    rounds: int = 3,
    warmup: bool = True,
) -> SpeedupReport:
    """Run the prompts plain and speculative in turns, the order changing from round to round.

    warmup  run both ways once before anything counts
    """
    if rounds < 1:
        raise ValueError(f"dspark_ext.engine.measure_speedup: rounds: expected >= 1, got {rounds}")
    if not prompts:
        raise ValueError("dspark_ext.engine.measure_speedup: prompts: expected at least one")
    measured, passes, emitted, same = [], 0, 0, True
    for number in range(-1 if warmup else 0, rounds):
        order = (False, True) if number % 2 == 0 else (True, False)
        runs = {way: engine.generate(prompts, params, speculative=way) for way in order}
        for way, run in runs.items():
            _check_ended(run.outputs, way)
        if number < 0:
            continue
        measured.append(tuple(runs[way].stats.tokens_per_second for way in (False, True)))
        passes += runs[True].stats.passes
        emitted += runs[True].stats.emitted
        pairs = zip(runs[False].outputs, runs[True].outputs)
        same = same and all(
            plain.token_ids == drafted.token_ids
            for (plain, drafted), greedy in zip(pairs, _greedy(params, len(prompts)))
            if greedy
        )
    return SpeedupReport(
        rounds=measured,
        ratio=statistics.median(drafted / plain for plain, drafted in measured),
        plain_tokens_per_second=statistics.median(plain for plain, _ in measured),
        speculative_tokens_per_second=statistics.median(drafted for _, drafted in measured),
        tokens_per_pass=emitted / passes,
        identical=same if any(_greedy(params, len(prompts))) else None,
        lossy=engine.config.lossy,
    )


def _check_ended(outputs, speculative: bool) -> None:
    for index, output in enumerate(outputs):
        if output.finish_reason == "error":
            raise RuntimeError(
                f"dspark_ext.engine.measure_speedup: prompt {index}: ended with an error "
                f"(speculative={speculative}), so there is nothing to compare"
            )


def _greedy(params, count: int) -> list[bool]:
    if params is None or isinstance(params, SamplingParams):
        params = [params or SamplingParams()] * count
    return [each.temperature == 0 for each in params]
