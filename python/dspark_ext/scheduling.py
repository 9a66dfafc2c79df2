"""How many drafts of each request to verify in a pass.

Arithmetic: docs/numerics.md section 9; why no mode changes the law of the output:
docs/losslessness.md. B requests, K drafts per request; x_0 is the anchor.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from . import _operators as _ops
from ._integers import as_int32, clamped
from ._upload import upload
from .cost_table import CostTable

_CAPACITY = "draft_capacity"
_NO_LIMIT = 2**62
_MODES = ("early_stop", "budget", "lagged", "uniform", "threshold", "fixed")
# Rules that look at what they decide about; docs/losslessness.md has the example.
_LOSSY_MODES = ("argmax", "global", "optimal")


class Schedule(NamedTuple):
    """Result of `schedule`; everything stays on the device.

    verify_lens: int32 [B], drafts to verify per request, 0 allowed.
    query_start_loc: int32 [B+1], request b owns rows query_start_loc[b] .. query_start_loc[b+1]-1,
        its anchor first; no row at all if it does not exist (`num_requests`).
    num_rows: int32 [], one per request plus the sum of verify_lens.
    expected_tokens: float32 [], one per request plus the sum of the survivals admitted: tokens the
        pass should emit. Without confidences every draft counts as certain, an upper bound.
    """

    verify_lens: torch.Tensor
    query_start_loc: torch.Tensor
    num_rows: torch.Tensor
    expected_tokens: torch.Tensor


def schedule(
    confidence: torch.Tensor | None,
    *,
    cost: CostTable | torch.Tensor | None = None,
    budget: torch.Tensor | int | None = None,
    mode: str = "early_stop",
    capacity: torch.Tensor | Sequence[int] | None = None,
    min_drafts: int = 0,
    max_rows: int | None = None,
    num_other_rows: int = 0,
    threshold: float | None = None,
    num_drafts: int | None = None,
    lagged_confidence: torch.Tensor | None = None,
    num_requests: torch.Tensor | int | None = None,
) -> Schedule:
    """Chooses how many drafts of each request the target verifies in this pass.

    Every mode is lossless: whether x_j is verified depends on its request's c_1..c_j and on drafts
    of other requests that are verified anyway, never on c_{j+1} and later, which x_j itself
    influences. docs/losslessness.md says what each mode reads and proves it.

    Args:
        confidence: float32 [B, K], CONDITIONAL probabilities c_j that x_j is accepted if
            x_1..x_{j-1} were (not survivals, which are their running products). NaN counts as 0,
            values are clamped to [0, 1]. None only in mode fixed, given `capacity` (which tells B)
            and `num_drafts`.
        cost: CostTable, or float64 [n] with seconds for 0, 1, ... rows; required by early_stop,
            lagged and uniform, not looked at by the other modes.
        budget: int32 [], for mode budget only: rows of the pass, anchors included. It may be
            computed on the device, from anything that was known before this step's drafts were
            drawn: earlier confidences, the load, a cost table. Computed from `confidence` itself it
            breaks the law of the output.
        mode: `"early_stop"`: the paper's Algorithm 1: drafts in the order (survival descending,
            position ascending, request ascending) while each one raises expected tokens per second
            or costs no time.
            `"budget"`: the first drafts in that order, up to `budget` rows.
            `"lagged"`: the number of rows at which `lagged_confidence` promises most tokens per
            second, handed out in the order of the current confidences.
            `"uniform"`: one length for all requests, for targets that take nothing else (see `pack`
            with rows_per_request): position by position while that raises tokens per second, or,
            given `lagged_confidence`, the best length according to those. Each length costs
            its padded rows, those of all requests.
            `"threshold"`: each request up to its first c_j below `threshold`.
            `"fixed"`: everything `num_drafts` and `capacity` allow, whatever the confidences.
        capacity: int32 [B], drafts a request has room for (see `draft_capacity`); negative is 0.
        min_drafts: verify at least this many of each request where capacity, max_rows and budget
            permit.
        max_rows: rows the pass can hold, anchors included, >= B. Where it binds, drafts go in the
            order above (by position, then request, in mode fixed and for min_drafts).
        num_other_rows: rows of the same pass that are neither anchors nor drafts (prefill): they
            shift the look-up in `cost`, they do not count against `max_rows` or `budget`.
        threshold: for mode threshold: smallest CONDITIONAL confidence that is verified, in [0, 1].
        num_drafts: use at most the first so many drafts, 0..K; default K.
        lagged_confidence: float32 [B, K], for modes lagged (required) and uniform: what an earlier
            step said about each request, in the rows it has now; 1 for a request without a past.
        num_requests: int32 [], requests that exist: the first ones of the B. The others get no row,
            so a captured graph serves any number. Default B.

    A draft of survival 0 is never chosen, except by fixed, uniform and min_drafts.

    Raises NotImplementedError for a mode that is not available, ValueError for an argument the mode
    does not use or lacks, RuntimeError for missing confidences, a missing cost table (a flat one is
    reported by CostTable), shapes, dtypes and ranges.

    Source: DSpark paper, Algorithm 1 and section 5.2; DeepSpec's static threshold.
    """
    _check_mode(mode, confidence, budget, threshold, lagged_confidence)
    if confidence is None:
        if capacity is None or num_drafts is None:
            name = "capacity" if capacity is None else "num_drafts"
            raise RuntimeError(f"dspark_ext.schedule: {name}: needed without confidence, got None")
    elif confidence.dim() != 2:
        raise RuntimeError(
            f"dspark_ext.schedule: confidence: expected shape [B, K], got {list(confidence.shape)}"
        )
    if max_rows is not None and max_rows < 0:
        raise RuntimeError(
            f"dspark_ext.schedule: max_rows: expected at least 0 or None, got {max_rows}"
        )
    device = None if confidence is None else confidence.device
    if capacity is not None:
        capacity = _as_capacity(capacity, device)
    if confidence is None:
        device = capacity.device
    if isinstance(cost, CostTable):
        cost = cost.for_batch(capacity.shape[0] if confidence is None else confidence.shape[0])
    if num_drafts is None:
        num_drafts = confidence.shape[1]
    return Schedule(
        *_ops.schedule(
            confidence,
            mode,
            capacity,
            None if cost is None else cost.to(device),
            _scalar("budget", budget, device),
            lagged_confidence,
            _scalar("num_requests", num_requests, device),
            0.0 if threshold is None else threshold,
            num_drafts,
            min_drafts,
            -1 if max_rows is None else max_rows,
            num_other_rows,
        )
    )


def _as_capacity(capacity, device: torch.device | None) -> torch.Tensor:
    if isinstance(capacity, torch.Tensor):
        if capacity.dtype != torch.int32:
            capacity = as_int32("schedule", "capacity", capacity)
        return capacity if device is None or capacity.device == device else capacity.to(device)
    values = capacity.tolist() if hasattr(capacity, "tolist") else capacity
    capacity = [clamped("schedule", "capacity", value) for value in values]
    return upload(capacity, torch.int32, device)


def _check_mode(mode, confidence, budget, threshold, lagged_confidence) -> None:
    if mode not in _MODES:
        why = ""
        if mode in _LOSSY_MODES:
            why = " because it would change the law of the output (docs/losslessness.md)"
        raise NotImplementedError(
            f"dspark_ext.schedule: mode {mode!r} is not available{why}; available: "
            f"{', '.join(_MODES)}"
        )
    if (budget is None) == (mode == "budget"):
        raise ValueError(
            "dspark_ext.schedule: budget: expected the rows of the pass in mode 'budget' and None "
            f"otherwise, got {budget} in mode {mode!r}"
        )
    if (threshold is None) == (mode == "threshold"):
        raise ValueError(
            "dspark_ext.schedule: threshold: expected a conditional confidence in [0, 1] in mode "
            f"'threshold' and None otherwise, got {threshold} in mode {mode!r}"
        )
    if lagged_confidence is None and mode == "lagged":
        raise ValueError(
            "dspark_ext.schedule: lagged_confidence: mode 'lagged' needs float32 [B, K] of an "
            "earlier step, got None"
        )
    if lagged_confidence is not None and mode not in ("lagged", "uniform"):
        raise ValueError(
            f"dspark_ext.schedule: lagged_confidence: not used by mode {mode!r}, expected None"
        )
    if lagged_confidence is not None and lagged_confidence is confidence:
        raise ValueError(
            "dspark_ext.schedule: lagged_confidence: expected those of an earlier step, got this "
            "step's, which would change the law of the output (docs/losslessness.md)"
        )
    if confidence is None and mode != "fixed":
        raise RuntimeError(
            "dspark_ext.schedule: confidence: expected float32 [B, K], got None; only mode 'fixed' "
            f"works without (mode {mode!r})"
        )


def _scalar(name: str, value: torch.Tensor | int | None, device) -> torch.Tensor | None:
    if value is None or isinstance(value, torch.Tensor):
        return value
    return torch.full((), clamped("schedule", name, value), dtype=torch.int32, device=device)


def draft_capacity(
    context_left: torch.Tensor | Sequence[int | None] | None,
    output_left: torch.Tensor | Sequence[int | None] | None,
    num_drafts: int,
) -> torch.Tensor:
    """Drafts each request has room for: int32 [B], min(K, context_left - 1, output_left - 1), >= 0.

    n drafts use n + 1 positions (the anchor is written too) and emit up to n + 1 tokens.

    Args:
        context_left: [B] positions left from the anchor's on (context length - seq_lens).
        output_left: [B] tokens the request may still emit.
            Each may be an integer tensor, a sequence in which None means no limit, or None.
        num_drafts: K.

    Raises ValueError when both are None or they differ in length, or K is out of range.
    """
    if not 0 <= num_drafts < 2**31:
        raise ValueError(
            f"dspark_ext.draft_capacity: num_drafts: expected 0 to 2^31 - 1, got {num_drafts}"
        )
    given = {"context_left": context_left, "output_left": output_left}
    device = next((left.device for left in given.values() if isinstance(left, torch.Tensor)), None)
    limits = [_limits(name, values, device) for name, values in given.items() if values is not None]
    if not limits or limits[0].shape != limits[-1].shape:
        raise ValueError(
            "dspark_ext.draft_capacity: expected context_left and output_left of one length B, at "
            f"least one of them, got {[list(limit.shape) for limit in limits]}"
        )
    left = torch.minimum(limits[0], limits[-1].to(limits[0].device))
    return (left.clamp(min=1, max=num_drafts + 1) - 1).to(torch.int32)


def _limits(
    name: str, values: torch.Tensor | Sequence[int | None], device: torch.device | None
) -> torch.Tensor:
    """int64 [B]; of a sequence, on `device`."""
    if not isinstance(values, torch.Tensor):
        values = values.tolist() if hasattr(values, "tolist") else values
        try:
            left = [
                _NO_LIMIT if v is None else clamped(_CAPACITY, name, v, _NO_LIMIT) for v in values
            ]
        except RuntimeError as error:
            raise ValueError(str(error)) from None
        return torch.tensor(left, dtype=torch.int64, device=device)
    dtype = values.dtype
    if values.dim() != 1 or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        raise ValueError(
            f"dspark_ext.draft_capacity: {name}: expected integers [B], got {values.dtype} "
            f"{list(values.shape)}"
        )
    return values.to(torch.int64)
