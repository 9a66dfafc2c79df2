"""How long a pass of the target takes, by number of rows: measured, stored, read on the device."""

import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

_INTERPOLATIONS = ("linear", "step", "step_down")


class CostTable:
    """Seconds of one verification pass by number of rows, as a dense table on the device.

    Args:
        rows: sample points, strictly increasing positive numbers of rows.
        seconds: seconds measured at each of them, finite and > 0.
        interpolation: between two samples, `"linear"`; `"step"` takes the next larger sample (a
            pass of n rows runs in the smallest captured graph that holds it); `"step_down"` takes
            the next smaller one.
        request_rows, request_seconds: optional second curve, added by number of requests
            (linear, constant beyond its ends): what a pass costs per request whatever its rows.
        device: where the table lives.

    Below the first sample the time is that of the first sample. A table never falls: each sample
    is raised to the largest one before it. Beyond the last sample the time grows by the slope
    between the last two samples (0 for a single sample). With a flat table it always pays to verify
    everything; that is right arithmetic but seldom meant, so a UserWarning reports it.

    Attributes: `seconds` float64 [last + 2], entry r = seconds for r rows, one entry past the last
    sample so that the last difference is the slope of the extrapolation; `request_seconds` float64
    [m + 1] or None, entry b = seconds added for b requests; `is_flat` bool.

    Raises ValueError for anything else. Source: DSpark paper section 3.2 (SPS table).
    """

    def __init__(
        self,
        rows: Sequence[int],
        seconds: Sequence[float],
        interpolation: str = "linear",
        *,
        request_rows: Sequence[int] | None = None,
        request_seconds: Sequence[float] | None = None,
        device: torch.device | str | None = None,
    ):
        if interpolation not in _INTERPOLATIONS:
            expected = ", ".join(_INTERPOLATIONS)
            raise ValueError(
                f"dspark_ext.CostTable: interpolation: expected one of {expected}, "
                f"got {interpolation!r}"
            )
        self.rows, self.sample_seconds = _check_samples("rows", rows, seconds, positive=True)
        self.interpolation = interpolation
        dense = _dense(self.rows, self.sample_seconds, interpolation)
        self.seconds = torch.tensor(dense, dtype=torch.float64, device=device)
        self.is_flat = dense[0] == dense[-1]
        self.request_rows, self.request_seconds = None, None
        if request_rows is not None or request_seconds is not None:
            self.request_rows, self.request_sample_seconds = _check_samples(
                "request_rows", request_rows, request_seconds, positive=False
            )
            dense = _dense(self.request_rows, self.request_sample_seconds, "linear")[:-1]
            self.request_seconds = torch.tensor(dense, dtype=torch.float64, device=device)
        if self.is_flat:
            warnings.warn(
                "dspark_ext.CostTable: the table is flat (every number of rows takes "
                f"{dense[0]:.3g} s), so early_stop verifies every draft. Measure it with "
                "profile_cost_table over the row counts you serve.",
                UserWarning,
                stacklevel=2,
            )

    def cost(self, rows: int, num_requests: int = 0) -> float:
        """Seconds of a pass of `rows` rows for `num_requests` requests (reads the device)."""
        table = self.for_batch(num_requests).tolist()
        if rows < len(table):
            return table[rows]
        return table[-1] + float(rows - len(table) + 1) * (table[-1] - table[-2])

    def for_batch(self, num_requests: int) -> torch.Tensor:
        """float64 [last + 2]: the table for a batch of `num_requests` requests, on the device."""
        if self.request_seconds is None:
            return self.seconds
        last = self.request_seconds.shape[0] - 1
        return self.seconds + self.request_seconds[min(num_requests, last)]

    def to(self, device: torch.device | str) -> "CostTable":
        """The same table on another device."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return CostTable.from_dict(self.to_dict(), device=device)

    def to_dict(self) -> dict:
        """Our own form: `{"rows": [...], "seconds": [...], "interpolation": ...}`, plus
        `"request_rows"` and `"request_seconds"` if present."""
        form = {
            "rows": self.rows,
            "seconds": self.sample_seconds,
            "interpolation": self.interpolation,
        }
        if self.request_rows is not None:
            form["request_rows"] = self.request_rows
            form["request_seconds"] = self.request_sample_seconds
        return form

    @staticmethod
    def from_dict(form: dict, device: torch.device | str | None = None) -> "CostTable":
        """Reads our own form or one of the two of SGLang, told apart by their keys:

        - `sample_batch_tokens`, `sample_steps_per_sec`, `max_batch_tokens`: rounds down, so
          `step_down`, with the last sample repeated at `max_batch_tokens`.
        - `bias_seconds`, `bs_probes`, `alpha_seconds`, `m_probes`, `theta_seconds`: linear in the
          rows (`theta` + bias) plus a curve by requests (`alpha`).

        Beyond the end of the second form SGLang keeps the last value; here the last slope goes on.
        Raises ValueError naming the keys when the form is none of these.
        """
        if "sample_batch_tokens" in form:
            rows, rates = list(form["sample_batch_tokens"]), list(form["sample_steps_per_sec"])
            seconds = [_seconds_of_rate(rate) for rate in rates]
            last = form.get("max_batch_tokens", rows[-1] if rows else 0)
            if rows and last > rows[-1]:
                rows.append(last)
                seconds.append(seconds[-1])
            return CostTable(rows, seconds, "step_down", device=device)
        if "theta_seconds" in form:
            bias = float(form["bias_seconds"])
            return CostTable(
                form["m_probes"],
                [bias + float(theta) for theta in form["theta_seconds"]],
                "linear",
                request_rows=form["bs_probes"],
                request_seconds=form["alpha_seconds"],
                device=device,
            )
        if "rows" in form and "seconds" in form:
            return CostTable(
                form["rows"],
                form["seconds"],
                form.get("interpolation", "linear"),
                request_rows=form.get("request_rows"),
                request_seconds=form.get("request_seconds"),
                device=device,
            )
        raise ValueError(
            "dspark_ext.CostTable: expected the keys rows and seconds, or sample_batch_tokens and "
            "sample_steps_per_sec, or bias_seconds, bs_probes, alpha_seconds, m_probes and "
            f"theta_seconds, got {sorted(form)}"
        )

    def save(self, path: str | Path) -> None:
        """Writes our own form as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path, device: torch.device | str | None = None) -> "CostTable":
        """Reads JSON of any form `from_dict` knows."""
        return CostTable.from_dict(json.loads(Path(path).read_text(encoding="utf-8")), device)


def profile_cost_table(
    step_fn: Callable[[int], object],
    row_counts: Sequence[int],
    *,
    warmup: int = 2,
    repeats: int = 5,
    interpolation: str = "linear",
    device: torch.device | str | None = None,
) -> CostTable:
    """Measures a CostTable: the median of `repeats` timed calls at each row count.

    Args:
        step_fn: runs one target pass of the given number of rows; an accelerator is synchronised
            before and after each timed call.
        row_counts: numbers of rows to measure, >= 1; sorted, duplicates dropped.
        warmup: untimed calls before each row count.

    Counts are measured in rotation (all counts once, then again), so that a machine that slows down
    meanwhile does not tilt the curve.
    """
    counts = sorted(set(row_counts))
    if not counts or counts[0] < 1 or repeats < 1:
        raise ValueError(
            "dspark_ext.profile_cost_table: expected row counts >= 1 and repeats >= 1, "
            f"got row_counts={list(row_counts)}, repeats={repeats}"
        )
    for count in counts:
        for _ in range(warmup):
            step_fn(count)
    times = {count: [] for count in counts}
    for _ in range(repeats):
        for count in counts:
            _synchronize()
            start = time.perf_counter()
            step_fn(count)
            _synchronize()
            times[count].append(time.perf_counter() - start)
    seconds = [max(statistics.median(times[count]), 1e-9) for count in counts]
    return CostTable(counts, seconds, interpolation, device=device)


def _synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _seconds_of_rate(rate: float) -> float:
    if not rate > 0:
        raise ValueError(f"dspark_ext.CostTable: steps per second: expected > 0, got {rate}")
    return 1.0 / float(rate)


def _check_samples(name, rows, seconds, *, positive: bool) -> tuple[list[int], list[float]]:
    rows, seconds = list(rows or []), [float(s) for s in seconds or []]
    increasing = all(a < b for a, b in zip(rows, rows[1:], strict=False))
    integral = all(int(r) == r and r >= 1 for r in rows)
    if not rows or len(rows) != len(seconds) or not increasing or not integral:
        raise ValueError(
            f"dspark_ext.CostTable: {name}: expected strictly increasing integers >= 1, one per "
            f"time, got {rows} for {len(seconds)} times"
        )
    low_enough = all((s > 0 if positive else s >= 0) and s < float("inf") for s in seconds)
    if not low_enough:
        raise ValueError(
            f"dspark_ext.CostTable: seconds: expected finite times {'>' if positive else '>='} 0, "
            f"got {seconds}"
        )
    return [int(r) for r in rows], seconds


def _dense(rows: list[int], seconds: list[float], interpolation: str) -> list[float]:
    """Entries 0 .. rows[-1] + 1 by running maximum, interpolation and the last slope."""
    raised, top = [], 0.0
    for value in seconds:
        top = max(top, value)
        raised.append(top)
    dense = [raised[0]] * (rows[0] + 1)
    for i in range(1, len(rows)):
        width, rise = rows[i] - rows[i - 1], raised[i] - raised[i - 1]
        for step in range(1, width + 1):
            if step == width:
                dense.append(raised[i])
            elif interpolation == "linear":
                dense.append(raised[i - 1] + rise * step / width)
            else:
                dense.append(raised[i] if interpolation == "step" else raised[i - 1])
    slope = (raised[-1] - raised[-2]) / (rows[-1] - rows[-2]) if len(rows) > 1 else 0.0
    return dense + [raised[-1] + slope]
