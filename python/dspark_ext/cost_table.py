"""How long a pass of the target takes, by number of rows: measured, stored, read on the device."""

import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path

import torch

from . import cost_table_forms as forms

INTERPOLATIONS = ("linear", "step", "step_down")
FLAT_RISE = 0.01  # a table that rises by less than this, end to end, counts as flat
_REMEDY = "Measure it with profile_cost_table over the row counts you serve."


class CostTable:
    """Seconds of one verification pass by number of rows, as a dense table on the device.

    Args:
        rows: sample points, strictly increasing positive numbers of rows, up to 2^20.
        seconds: seconds measured at each of them, finite and > 0.
        interpolation: the rounding between two samples. `"linear"`: none. `"step"` rounds the rows
            UP to the next sample (a pass of n rows runs in the smallest captured graph that holds
            it); `"step_down"` rounds them DOWN.
        linear_above: with `"step"`, the largest captured size: between two samples above it the
            table is linear, for these passes run without a graph. Never across it: from there to
            the next sample the table still rounds up.
        request_rows, request_seconds: optional second curve, added by number of requests (constant
            beyond its ends): what a pass costs per request whatever its rows, e.g. drafting.
        request_interpolation: the same three words for the second curve.
        device: where the table lives.

    Monotone: a pass of more rows is never counted as cheaper, so each sample is raised to the
    largest one before it (both curves). Below the first sample the time is that of the first
    sample. Beyond the last one it grows by the slope between the last two (0 for a single sample).

    With a flat table (rising by less than 1 percent in all) it always pays to verify everything;
    that is right arithmetic but seldom meant, so a UserWarning reports it.

    Attributes: `seconds` float64 [last + 2], entry r = seconds for r rows, one entry past the last
    sample so that the last difference is the slope of the extrapolation; `request_seconds` float64
    [m + 1] or None, entry b = seconds added for b requests; `sample_seconds`,
    `request_sample_seconds` as given; `largest_raise`, by which share of its value a sample was
    raised at most: a measure of the noise; `is_flat` bool.

    Raises ValueError for anything else. Source: DSpark paper section 3.2 (SPS table).
    """

    def __init__(
        self,
        rows: Sequence[int],
        seconds: Sequence[float],
        interpolation: str = "linear",
        *,
        linear_above: int | None = None,
        request_rows: Sequence[int] | None = None,
        request_seconds: Sequence[float] | None = None,
        request_interpolation: str = "linear",
        device: torch.device | str | None = None,
    ):
        _check_word("interpolation", interpolation)
        _check_word("request_interpolation", request_interpolation)
        if linear_above is not None:
            forms.number("linear_above", linear_above)
        if linear_above is not None and (
            interpolation != "step" or linear_above < 0 or int(linear_above) != linear_above
        ):
            raise ValueError(
                "dspark_ext.CostTable: linear_above: expected a number of rows >= 0 with "
                f"interpolation 'step', got {linear_above} with {interpolation!r}"
            )
        self.rows, self.sample_seconds = forms.samples("rows", rows, "seconds", seconds)
        self.interpolation = interpolation
        self.linear_above = None if linear_above is None else int(linear_above)
        self.request_interpolation = request_interpolation
        raised = _raised(self.sample_seconds)
        self.largest_raise = max(
            after / before - 1.0 for before, after in zip(self.sample_seconds, raised)
        )
        dense = _dense(self.rows, raised, interpolation, linear_above)
        self.seconds = torch.tensor(dense, dtype=torch.float64, device=device)
        self.is_flat = dense[-1] <= dense[0] * (1.0 + FLAT_RISE)
        self.request_rows, self.request_sample_seconds, self.request_seconds = None, None, None
        if request_rows is not None or request_seconds is not None:
            self.request_rows, self.request_sample_seconds = forms.samples(
                "request_rows", request_rows, "request_seconds", request_seconds, positive=False
            )
            raised = _raised(self.request_sample_seconds)
            dense_requests = _dense(self.request_rows, raised, request_interpolation)[:-1]
            self.request_seconds = torch.tensor(dense_requests, dtype=torch.float64, device=device)
        if self.is_flat:
            warnings.warn(
                f"dspark_ext.CostTable: the table is flat ({self.rows[0]} to {self.rows[-1]} rows "
                f"all take {dense[0]:.3g} s), so every draft is worth verifying. {_REMEDY}",
                UserWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        first, last = 1e3 * float(self.seconds[0]), 1e3 * float(self.seconds[self.rows[-1]])
        return (
            f"CostTable({len(self.rows)} samples, {self.rows[0]} to {self.rows[-1]} rows, "
            f"{first:.3g} to {last:.3g} ms, {self.interpolation})"
        )

    def cost(self, rows: int, num_requests: int = 0) -> float:
        """Seconds of a pass of `rows` rows for `num_requests` requests (reads the device); both
        at least 0."""
        _check_count("rows", rows)
        table = self.for_batch(num_requests).tolist()
        if rows < len(table):
            return table[rows]
        return table[-1] + float(rows - len(table) + 1) * (table[-1] - table[-2])

    def for_batch(self, num_requests: int) -> torch.Tensor:
        """float64 [last + 2]: the table for a batch of `num_requests` requests, on the device."""
        _check_count("num_requests", num_requests)
        if self.request_seconds is None:
            return self.seconds
        last = self.request_seconds.shape[0] - 1
        return self.seconds + self.request_seconds[min(num_requests, last)]

    def to(self, device: torch.device | str) -> "CostTable":
        """The same table on another device."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return CostTable.from_dict(self.to_dict(), device=device)

    def to_dict(self, form: str = "dspark_ext") -> dict:
        """The table as a JSON-like dict in one of the forms `from_dict` reads:

        - `"dspark_ext"`: our own, the samples as they were measured;
        - `"sglang_rates"`, `"sglang_additive"`: SGLang's two; `"vllm"`: the two curves of vLLM.

        The foreign forms hold the monotone table. Where a form cannot say how this table rounds, it
        gets a sample at every number of rows, so that it gives the same time for each up to the
        last sample. Raises ValueError for a form that has no curve by requests when this table has
        one.
        """
        return forms.write(self, form)

    @staticmethod
    def from_dict(form: dict, device: torch.device | str | None = None) -> "CostTable":
        """Reads any form of `to_dict`, told apart by its keys (docs/cost-table.md):

        - `rows`, `seconds`, optional `interpolation`, `linear_above`, `request_rows`,
          `request_seconds`, `request_interpolation`: the arguments of this class.
        - `sample_batch_tokens`, `sample_steps_per_sec`, `max_batch_tokens`: rounds down, the last
          sample repeated at `max_batch_tokens`.
        - `bias_seconds`, `bs_probes`, `alpha_seconds`, `m_probes`, `theta_seconds`: linear in the
          rows (`theta` + bias) plus a curve by requests (`alpha`).
        - `num_tokens`, `verify_ms`, optional `max_capture_size`, `num_reqs`, `draft_ms`: rounds up
          to the next captured size, linear above the largest one.

        Beyond its end the additive form of SGLang keeps the last value; here the last slope goes
        on. Raises ValueError naming the key that is missing or wrong.
        """
        return CostTable(**forms.read(form), device=device)

    def save(self, path: str | Path, form: str = "dspark_ext") -> None:
        """Writes JSON in a form of `to_dict`."""
        text = json.dumps(self.to_dict(form), indent=2) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    @staticmethod
    def load(path: str | Path, device: torch.device | str | None = None) -> "CostTable":
        """Reads JSON of any form `from_dict` knows.

        Raises FileNotFoundError if there is no such file and ValueError naming file and key if it
        is no cost table.
        """
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            raise FileNotFoundError(
                f"dspark_ext.CostTable: no cost table at {path}. {_REMEDY}"
            ) from None
        try:
            return CostTable.from_dict(json.loads(data), device)
        except (ValueError, RecursionError) as error:
            reason = str(error).removeprefix("dspark_ext.CostTable: ")
            raise ValueError(f"dspark_ext.CostTable: {path}: {reason}") from None


def profile_cost_table(
    step_fn: Callable[[int], object],
    row_counts: Sequence[int],
    *,
    warmup: int = 2,
    repeats: int = 5,
    interpolation: str = "linear",
    linear_above: int | None = None,
    request_step_fn: Callable[[int], object] | None = None,
    request_counts: Sequence[int] | None = None,
    device: torch.device | str | None = None,
) -> CostTable:
    """Measures a CostTable: the median of `repeats` timed calls at each row count.

    Args:
        step_fn: runs one target pass of the given number of rows, as it is served (same context
            length, same graphs). An accelerator (`device` if it is one, else the current one) is
            synchronised before and after each timed call.
        row_counts: numbers of rows to measure, >= 1; sorted, duplicates dropped. With captured
            graphs: their sizes (`cudagraph_sizes`), with interpolation "step".
        warmup: untimed calls at each row count, before anything is timed.
        interpolation, linear_above: see CostTable.
        request_step_fn, request_counts: optionally, what is paid per request whatever the rows (a
            draft pass for the given number of requests), measured the same way into the table's
            second curve.
        device: where the table lives.

    Counts are measured in rotation (all counts once, then again), so that a machine that slows down
    meanwhile does not tilt the curve. A flat result is reported by CostTable.
    """
    if (request_step_fn is None) != (request_counts is None):
        raise ValueError(
            "dspark_ext.profile_cost_table: expected request_step_fn and request_counts together"
        )
    rows, seconds = _medians("row_counts", step_fn, row_counts, warmup, repeats, device)
    curve = {}
    if request_step_fn is not None:
        names = ("request_rows", "request_seconds")
        measured = _medians(
            "request_counts", request_step_fn, request_counts, warmup, repeats, device
        )
        curve = dict(zip(names, measured))
    return CostTable(
        rows, seconds, interpolation, linear_above=linear_above, **curve, device=device
    )


def _medians(name, step_fn, counts, warmup, repeats, device) -> tuple[list[int], list[float]]:
    given = counts.tolist() if hasattr(counts, "tolist") else list(counts)
    counts = sorted(set(given)) if all(isinstance(count, Integral) for count in given) else []
    if not counts or counts[0] < 1 or counts[-1] > forms.MOST_ROWS or repeats < 1 or warmup < 0:
        raise ValueError(
            f"dspark_ext.profile_cost_table: expected integers {name} >= 1 and at most "
            f"{forms.MOST_ROWS}, repeats >= 1 and warmup >= 0, got {name}={given}, "
            f"repeats={repeats}, warmup={warmup}"
        )
    for count in counts:
        for _ in range(warmup):
            step_fn(count)
    times = {count: [] for count in counts}
    for _ in range(repeats):
        for count in counts:
            _synchronize(device)
            start = time.perf_counter()
            step_fn(count)
            _synchronize(device)
            times[count].append(time.perf_counter() - start)
    return counts, [max(statistics.median(times[count]), 1e-9) for count in counts]


def _synchronize(device: torch.device | str | None) -> None:
    if torch.accelerator.is_available():
        on_accelerator = device is not None and torch.device(device).type != "cpu"
        torch.accelerator.synchronize(torch.device(device) if on_accelerator else None)


def _check_word(name: str, value: str) -> None:
    if value not in INTERPOLATIONS:
        raise ValueError(
            f"dspark_ext.CostTable: {name}: expected one of {', '.join(INTERPOLATIONS)}, "
            f"got {value!r}"
        )


def _check_count(name: str, count: int) -> None:
    if count < 0:
        raise ValueError(f"dspark_ext.CostTable: {name}: expected at least 0, got {count}")


def _raised(seconds: list[float]) -> list[float]:
    """Running maximum."""
    raised, top = [], 0.0
    for value in seconds:
        top = max(top, value)
        raised.append(top)
    return raised


def _dense(
    rows: list[int], raised: list[float], interpolation: str, linear_above: int | None = None
) -> list[float]:
    """Entries 0 .. rows[-1] + 1 by interpolation and the last slope."""
    dense = [raised[0]] * (rows[0] + 1)
    for i in range(1, len(rows)):
        width, rise = rows[i] - rows[i - 1], raised[i] - raised[i - 1]
        linear = interpolation == "linear"
        if linear_above is not None:
            linear = rows[i - 1] > linear_above
        for step in range(1, width + 1):
            if step == width:
                dense.append(raised[i])
            elif linear:
                dense.append(raised[i - 1] + rise * step / width)
            else:
                dense.append(raised[i - 1] if interpolation == "step_down" else raised[i])
    slope = (raised[-1] - raised[-2]) / (rows[-1] - rows[-2]) if len(rows) > 1 else 0.0
    return dense + [raised[-1] + slope]
