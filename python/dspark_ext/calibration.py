"""Calibrating a confidence head: fitting, judging, storing; and doing without a head.

Everywhere here N is a number of drafted blocks, K their length, and a confidence is CONDITIONAL:
the probability that x_k is accepted if x_1..x_{k-1} were. Its running product over 1..k is the
survival of x_k, the probability that all of x_1..x_k are accepted. docs/calibration.md.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .acceptance_estimator import AcceptanceEstimator
from .calibration_file import LARGEST as _LARGEST
from .calibration_file import SMALLEST as _SMALLEST
from .calibration_file import Calibration
from .draft import calibrate
from .reliability_plot import plot_reliability

__all__ = [
    "AcceptanceEstimator",
    "Calibration",
    "CalibrationReport",
    "calibrate",
    "calibration_report",
    "fit_calibration",
    "fit_sts",
    "plot_reliability",
]

_OBJECTIVES = ("ece", "log_loss")
_KINDS = ("survival", "conditional")
_MOST_BINS = 1 << 20
_ON_HOST = {"dtype": torch.float64, "device": "cpu"}  # whatever torch's defaults are
_EPSILON = 1e-12  # probabilities are kept this far from 0 and 1 in the log loss


@dataclass(frozen=True)
class CalibrationReport:
    """How well confidences predicted acceptance, by position. A value without data is NaN.

    Attributes:
        kind: `"survival"` or `"conditional"`, what was predicted (see `calibration_report`).
        num_samples: int64 [K], blocks that say something about the position.
        predicted, observed: float64 [K], mean prediction and share that came true.
        ece: float64 [K], expected calibration error: the mean distance between prediction and share
            over bins of equal width, weighted by their counts.
        auc: float64 [K], chance that an accepted draft was given a higher prediction than a
            rejected one (ties count half): how well the order is, whatever the scale.
        brier: float64 [K], mean squared error.
        bin_count: int64 [K, num_bins]; bin_predicted, bin_observed: float64 [K, num_bins].
    """

    kind: str
    num_samples: torch.Tensor
    predicted: torch.Tensor
    observed: torch.Tensor
    ece: torch.Tensor
    auc: torch.Tensor
    brier: torch.Tensor
    bin_count: torch.Tensor
    bin_predicted: torch.Tensor
    bin_observed: torch.Tensor

    def __str__(self) -> str:
        lines = [f"{self.kind}: position, blocks, predicted, observed, ECE, AUC, Brier"]
        columns = (self.predicted, self.observed, self.ece, self.auc, self.brier)
        for k, count in enumerate(self.num_samples.tolist()):
            numbers = "  ".join(f"{float(column[k]):6.4f}" for column in columns)
            lines.append(f"{k + 1:3d}  {count:8d}  {numbers}")
        return "\n".join(lines)


def fit_sts(
    conf_logits: torch.Tensor,
    accepted: torch.Tensor,
    *,
    verify_lens: torch.Tensor | None = None,
    objective: str = "ece",
    num_bins: int = 15,
    grid: Sequence[float] | None = None,
) -> torch.Tensor:
    """Temperatures of sequential temperature scaling: float32 [K], for `calibrate`.

    Position by position: with T_1..T_{k-1} fixed, T_k is the value of the grid for which the
    survival prod_{i<=k} sigmoid(logit_i / T_i) predicts best whether x_1..x_k were all accepted.
    Ties go to the temperature nearest to 1. Float64 throughout.

    Args:
        conf_logits: [N, K] logits of the confidence head, uncalibrated.
        accepted: int [N], drafts accepted of each block (`RejectionOutput.num_accepted`), or
            [N, K] ones and zeros, 1 while x_1..x_k were all accepted.
        verify_lens: int [N], drafts verified of each block, default all K. A block cut before
            position k says nothing about it, whatever became of its earlier drafts, and is left
            out there. Blocks collected uncut are better: cut ones are missing where confidence is
            low.
        objective: `"ece"`, as in the paper; or `"log_loss"`, which is slower to be fooled: it
            rewards telling blocks apart, while the ECE of a constant is 0 if the constant is right.
        num_bins: bins of the ECE.
        grid: temperatures to try, default 41 from 0.1 to 10, evenly spaced in the logarithm.

    A position without data keeps temperature 1; that, and a best value at the edge of the grid (too
    little data, or drafts that are always or never accepted), is reported by a UserWarning.

    Raises ValueError naming the argument. Source: DSpark paper section 5.
    """
    name = "fit_sts"
    blocks = _Blocks.check(name, "conf_logits", conf_logits, accepted, verify_lens)
    if objective not in _OBJECTIVES:
        raise _error(name, f"objective: expected one of {_OBJECTIVES}, got {objective!r}")
    if not 1 <= num_bins <= _MOST_BINS:
        raise _error(name, f"num_bins: expected >= 1 and <= {_MOST_BINS}, got {num_bins}")
    values = torch.logspace(-1, 1, 41, **_ON_HOST) if grid is None else grid
    grid = sorted(float(value) for value in values)
    if not grid or not all(_SMALLEST <= value <= _LARGEST for value in grid):
        raise _error(name, f"grid: expected finite temperatures > 0, got {grid}")
    grid.sort(key=lambda value: abs(math.log(value)))  # the first of equals is the nearest to 1
    survival = torch.ones(blocks.num_blocks, **_ON_HOST)
    temperatures, edges, empty = [], [], []
    for k in range(blocks.num_drafts):
        seen = blocks.verified[:, k]
        logits, event, before = blocks.values[seen, k], blocks.accepted[seen, k], survival[seen]
        if not len(logits):
            empty.append(k + 1)
            temperatures.append(1.0)
        else:
            losses = [
                _loss(before * torch.sigmoid(logits / t), event, objective, num_bins) for t in grid
            ]
            temperatures.append(grid[losses.index(min(losses))])
            if len(grid) > 1 and temperatures[-1] in (min(grid), max(grid)):
                edges.append(k + 1)
        survival = survival * torch.sigmoid(blocks.values[:, k] / temperatures[-1])
    for positions, problem in (
        (empty, "no block was verified that far; their temperature stays 1"),
        (edges, "the best temperature is at the edge of the grid"),
    ):
        if positions:
            warnings.warn(
                f"dspark_ext.{name}: positions {positions}: {problem}", UserWarning, stacklevel=2
            )
    return torch.tensor(temperatures, dtype=torch.float32, device=conf_logits.device)


def fit_calibration(
    conf_logits: torch.Tensor,
    accepted: torch.Tensor,
    *,
    verify_lens: torch.Tensor | None = None,
    dataset: str = "",
    conditions: dict | None = None,
    num_bins: int = 15,
    **arguments,
) -> Calibration:
    """`fit_sts` with its ECE before and after, as a `Calibration` that can be saved.

    Args:
        dataset: where the blocks came from.
        conditions: what the calibration is good for (sampling temperature, filters, rule, target
            and its quantisation), kept in the file.
        arguments: see `fit_sts`.
    """
    temperatures = fit_sts(
        conf_logits, accepted, verify_lens=verify_lens, num_bins=num_bins, **arguments
    )
    ece = []
    for scale in (torch.ones_like(temperatures), temperatures):
        confidence = torch.sigmoid(conf_logits.double() / scale)
        report = calibration_report(
            confidence, accepted, verify_lens=verify_lens, num_bins=num_bins
        )
        ece.append(tuple(report.ece.tolist()))
    return Calibration(
        tuple(temperatures.tolist()),
        dataset=dataset,
        num_samples=conf_logits.shape[0],
        ece_before=ece[0],
        ece_after=ece[1],
        conditions=conditions or {},
    )


def calibration_report(
    confidence: torch.Tensor,
    accepted: torch.Tensor,
    *,
    verify_lens: torch.Tensor | None = None,
    kind: str = "survival",
    num_bins: int = 15,
) -> CalibrationReport:
    """Compares confidences with what was accepted.

    Args:
        confidence: [N, K] CONDITIONAL confidences, calibrated or not; NaN counts as 0, values are
            clamped to [0, 1], as `schedule` reads them.
        accepted, verify_lens: see `fit_sts`.
        kind: `"survival"`: the running product against "x_1..x_k all accepted", over all blocks
            verified that far: what the scheduler reads. `"conditional"`: the confidence itself
            against "x_k accepted", over the blocks whose earlier drafts were all accepted.
        num_bins: bins of equal width over [0, 1]; a value on a border belongs to the upper one.

    Raises ValueError naming the argument.
    """
    name = "calibration_report"
    blocks = _Blocks.check(name, "confidence", confidence, accepted, verify_lens, nan=True)
    if kind not in _KINDS:
        raise _error(name, f"kind: expected one of {_KINDS}, got {kind!r}")
    if not 1 <= num_bins <= _MOST_BINS:
        raise _error(name, f"num_bins: expected >= 1 and <= {_MOST_BINS}, got {num_bins}")
    predicted = blocks.values.nan_to_num(nan=0.0).clamp(0.0, 1.0)
    seen = blocks.verified
    if kind == "survival":
        predicted = predicted.cumprod(1)
    else:
        reached = torch.ones_like(seen)
        reached[:, 1:] = blocks.accepted[:, :-1]
        seen = seen & reached
    columns = {field: [] for field in CalibrationReport.__dataclass_fields__ if field != "kind"}
    for k in range(blocks.num_drafts):
        row, event = predicted[seen[:, k], k], blocks.accepted[seen[:, k], k]
        count, sum_predicted, sum_observed = _bins(row, event, num_bins)
        whole = torch.tensor(len(row), device="cpu")
        for field, value in {
            "num_samples": whole,
            "predicted": row.mean(),
            "observed": event.double().mean(),
            "ece": (sum_predicted - sum_observed).abs().sum() / whole,
            "auc": _auc(row, event),
            "brier": (row - event.double()).square().mean(),
            "bin_count": count,
            "bin_predicted": sum_predicted / count,
            "bin_observed": sum_observed / count,
        }.items():
            columns[field].append(value)
    shapes = {field: (0, num_bins) if field.startswith("bin_") else (0,) for field in columns}
    return CalibrationReport(
        kind,
        **{
            field: torch.stack(values) if values else torch.zeros(shapes[field], **_ON_HOST)
            for field, values in columns.items()
        },
    )


def _error(name: str, text: str) -> ValueError:
    return ValueError(f"dspark_ext.{name}: {text}")


@dataclass(frozen=True)
class _Blocks:
    """Checked samples: `values` float64, `accepted` and `verified` bool, all [N, K]."""

    values: torch.Tensor
    accepted: torch.Tensor
    verified: torch.Tensor

    @property
    def num_blocks(self) -> int:
        return self.values.shape[0]

    @property
    def num_drafts(self) -> int:
        return self.values.shape[1]

    @staticmethod
    def check(
        name: str, argument: str, values, accepted, verify_lens, *, nan: bool = False
    ) -> "_Blocks":
        if values.dim() != 2 or not values.dtype.is_floating_point:
            raise _error(
                name, f"{argument}: expected floats [N, K], got {values.dtype} {[*values.shape]}"
            )
        if not nan and bool(values.isnan().any()):
            row = int(values.isnan().any(1).nonzero()[0])
            raise _error(name, f"{argument}: expected no NaN, got one in row {row}")
        values = values.detach().cpu()  # sums over bins have no fixed order on a GPU
        num_blocks, num_drafts = values.shape
        position = torch.arange(num_drafts, device="cpu")
        if verify_lens is None:
            verify_lens = torch.full((num_blocks,), num_drafts, device="cpu")
        verify_lens = _counts(name, "verify_lens", verify_lens, values, num_drafts)
        if accepted.dim() == 2:
            _check_numbers(name, accepted)
            prefix = accepted.cpu()
            whole = prefix.bool()
            good = (prefix == whole).all(1) & (whole[:, 1:] <= whole[:, :-1]).all(1)
            if prefix.shape != values.shape or not bool(good.all()):
                row = "" if prefix.shape != values.shape else f" (row {int((~good).nonzero()[0])})"
                raise _error(
                    name,
                    f"accepted: expected [{num_blocks}, {num_drafts}] of ones, then zeros, "
                    f"got shape {[*prefix.shape]}{row}",
                )
            accepted = whole.sum(1)
        accepted = _counts(name, "accepted", accepted, values, num_drafts)
        if bool((accepted > verify_lens).any()):
            row = int((accepted > verify_lens).nonzero()[0])
            raise _error(
                name,
                f"accepted: expected at most verify_lens, got {int(accepted[row])} of "
                f"{int(verify_lens[row])} in row {row}",
            )
        return _Blocks(
            values.double(), position < accepted[:, None], position < verify_lens[:, None]
        )


def _check_numbers(name: str, accepted) -> None:
    dtype = accepted.dtype
    if dtype.is_complex or (dtype.is_floating_point and dtype.itemsize == 1):
        raise _error(name, f"accepted: expected ones and zeros, got {dtype}")


def _counts(name: str, argument: str, counts, values, num_drafts: int) -> torch.Tensor:
    if counts.shape != values.shape[:1] or counts.dtype.is_floating_point:
        raise _error(
            name,
            f"{argument}: expected integers [{values.shape[0]}], got {counts.dtype} "
            f"{[*counts.shape]}",
        )
    counts = counts.cpu().to(torch.int64)
    wrong = (counts < 0) | (counts > num_drafts)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise _error(
            name, f"{argument}: expected 0..{num_drafts}, got {int(counts[row])} in row {row}"
        )
    return counts


def _loss(predicted, event, objective: str, num_bins: int) -> float:
    if objective == "ece":
        _, sum_predicted, sum_observed = _bins(predicted, event, num_bins)
        return float((sum_predicted - sum_observed).abs().sum() / len(predicted))
    predicted = predicted.clamp(_EPSILON, 1.0 - _EPSILON)
    return float(-torch.where(event, predicted.log(), torch.log1p(-predicted)).mean())


def _bins(predicted, event, num_bins: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count, sum of predictions and number of events, each [num_bins]."""
    index = (predicted * num_bins).to(torch.int64).clamp(max=num_bins - 1)
    return (
        torch.bincount(index, minlength=num_bins),
        torch.bincount(index, weights=predicted, minlength=num_bins),
        torch.bincount(index, weights=event.double(), minlength=num_bins),
    )


def _auc(predicted, event) -> torch.Tensor:
    """Mann-Whitney: ranks of the accepted, equal predictions sharing their mean rank."""
    _, group, size = predicted.unique(return_inverse=True, return_counts=True)
    rank = size.cumsum(0) - (size - 1) / 2.0  # ranks 1..n
    ones = event.sum().double()
    zeros = len(event) - ones
    wins = rank.double()[group][event].sum() - ones * (ones + 1) / 2
    return wins / (ones * zeros)
