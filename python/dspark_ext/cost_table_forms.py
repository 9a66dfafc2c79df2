"""The JSON forms of a cost table: our own, SGLang's two and the curves of vLLM.

`read` turns a form into the arguments of `CostTable`, `write` the reverse. Keys are those of the
programs named; the meaning of each is in docs/cost-table.md.
"""

import math
from collections.abc import Sequence
from numbers import Real

FORMS = ("dspark_ext", "sglang_rates", "sglang_additive", "vllm")

_OWN = ("rows", "seconds")
_RATES = ("sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens")
_ADDITIVE = ("bias_seconds", "bs_probes", "alpha_seconds", "m_probes", "theta_seconds")
_VLLM = ("num_tokens", "verify_ms")
_OPTIONAL = {
    _OWN: (
        "interpolation",
        "linear_above",
        "request_rows",
        "request_seconds",
        "request_interpolation",
    ),
    _VLLM: ("max_capture_size", "num_reqs", "draft_ms"),
}
_MIN_SECONDS = 1e-9  # vLLM's floor of a pass, 1e-6 ms
MOST_ROWS = 1 << 20  # a table has an entry for every number of rows


def samples(
    counts_name: str, counts, times_name: str, times, *, positive: bool = True
) -> tuple[list[int], list[float]]:
    """Checked sample points: strictly increasing integers >= 1 and one finite time for each."""
    counts, times = numbers(counts_name, counts), numbers(times_name, times)
    increasing = all(a < b for a, b in zip(counts, counts[1:]))
    if not counts or not increasing or not all(int(n) == n and n >= 1 for n in counts):
        raise error(f"{counts_name}: expected strictly increasing integers >= 1, got {counts}")
    check_most(counts_name, counts[-1])
    if len(times) != len(counts):
        raise error(
            f"{times_name}: expected one time for each of the {len(counts)} {counts_name}, "
            f"got {len(times)}"
        )
    if not all((t > 0 if positive else t >= 0) for t in times):
        raise error(f"{times_name}: expected finite times {'>' if positive else '>='} 0: {times}")
    return [int(n) for n in counts], [float(t) for t in times]


def numbers(name: str, values) -> list:
    """A list of finite numbers."""
    if values is None or isinstance(values, str | dict) or not isinstance(values, Sequence):
        if values is None or not hasattr(values, "tolist"):
            raise error(f"{name}: expected a list of numbers, got {values!r}")
        values = values.tolist()
    for i, value in enumerate(values):
        number(f"{name}[{i}]", value)
    return list(values)


def number(name: str, value):
    """A finite number; bool is none."""
    is_finite = isinstance(value, Real) and not isinstance(value, bool)
    try:
        is_finite = is_finite and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        is_finite = False
    if not is_finite:
        raise error(f"{name}: expected a finite number, got {value!r}")
    return value


def check_most(name: str, rows) -> None:
    if rows > MOST_ROWS:
        raise error(f"{name}: expected at most {MOST_ROWS} rows, got {rows}")


def error(text: str) -> ValueError:
    return ValueError(f"dspark_ext.CostTable: {text}")


def read(form: dict) -> dict:
    """Arguments of CostTable from any form, told apart by its keys."""
    if not isinstance(form, dict):
        raise error(f"expected a mapping, got {type(form).__name__}")
    for keys, reader in (
        (_OWN, _read_own),
        (_RATES, _read_rates),
        (_ADDITIVE, _read_additive),
        (_VLLM, _read_vllm),
    ):
        if any(key in form for key in keys):
            missing = [key for key in keys if key not in form and key != "max_batch_tokens"]
            if missing:
                raise error(f"{missing[0]}: missing, found {sorted(form)}")
            return reader(form)
    raise error(
        "expected the keys rows and seconds, or sample_batch_tokens and sample_steps_per_sec, or "
        "bias_seconds, bs_probes, alpha_seconds, m_probes and theta_seconds, or num_tokens and "
        f"verify_ms, got {sorted(form)}"
    )


def _read_own(form: dict) -> dict:
    unknown = sorted(set(form) - {*_OWN, *_OPTIONAL[_OWN]})
    if unknown:
        raise error(f"{unknown[0]}: unknown key, expected {', '.join((*_OWN, *_OPTIONAL[_OWN]))}")
    return dict(form)


def _read_rates(form: dict) -> dict:
    counts, rates = samples(
        "sample_batch_tokens",
        form["sample_batch_tokens"],
        "sample_steps_per_sec",
        form["sample_steps_per_sec"],
    )
    seconds = [number("sample_steps_per_sec", 1.0 / rate) for rate in rates]
    last = number("max_batch_tokens", form.get("max_batch_tokens", counts[-1]))
    check_most("max_batch_tokens", last)
    if last > counts[-1]:
        counts.append(int(last))
        seconds.append(seconds[-1])
    return {"rows": counts, "seconds": seconds, "interpolation": "step_down"}


def _read_additive(form: dict) -> dict:
    bias = number("bias_seconds", form["bias_seconds"])
    if bias <= 0:
        raise error(f"bias_seconds: expected > 0, got {bias}")
    rows, theta = samples(
        "m_probes", form["m_probes"], "theta_seconds", form["theta_seconds"], positive=False
    )
    requests, alpha = samples(
        "bs_probes", form["bs_probes"], "alpha_seconds", form["alpha_seconds"], positive=False
    )
    return {
        "rows": rows,
        "seconds": [bias + value for value in theta],
        "request_rows": requests,
        "request_seconds": alpha,
    }


def _read_vllm(form: dict) -> dict:
    rows, verify = samples(
        "num_tokens", form["num_tokens"], "verify_ms", form["verify_ms"], positive=False
    )
    arguments = {
        "rows": rows,
        "seconds": [max(1e-3 * value, _MIN_SECONDS) for value in verify],
        "interpolation": "step",
    }
    if form.get("max_capture_size") is not None:
        largest = number("max_capture_size", form["max_capture_size"])
        if largest < 0:
            raise error(f"max_capture_size: expected a number of rows >= 0, got {largest}")
        arguments["linear_above"] = int(largest)
    if "num_reqs" in form or "draft_ms" in form:
        requests, draft = samples(
            "num_reqs", form.get("num_reqs"), "draft_ms", form.get("draft_ms"), positive=False
        )
        arguments["request_rows"] = requests
        arguments["request_seconds"] = [1e-3 * value for value in draft]
        arguments["request_interpolation"] = "step"
    return arguments


def write(table, form: str) -> dict:
    """`table` in the form of that name."""
    writers = dict(zip(FORMS, (_write_own, _write_rates, _write_additive, _write_vllm)))
    if form not in writers:
        raise error(f"form: expected one of {', '.join(FORMS)}, got {form!r}")
    return writers[form](table)


def _write_own(table) -> dict:
    form = {
        "rows": table.rows,
        "seconds": table.sample_seconds,
        "interpolation": table.interpolation,
    }
    if table.linear_above is not None:
        form["linear_above"] = table.linear_above
    if table.request_rows is not None:
        form["request_rows"] = table.request_rows
        form["request_seconds"] = table.request_sample_seconds
        form["request_interpolation"] = table.request_interpolation
    return form


def _write_rates(table) -> dict:
    if table.request_rows is not None:
        raise error("form: 'sglang_rates' has no curve by requests; use 'sglang_additive'")
    rows, seconds = _points(table.rows, table.seconds, table.interpolation == "step_down")
    return {
        "sample_batch_tokens": rows,
        "sample_steps_per_sec": [1.0 / value for value in seconds],
        "max_batch_tokens": table.rows[-1],
    }


def _write_additive(table) -> dict:
    rows, seconds = _points(table.rows, table.seconds, table.interpolation == "linear")
    requests, alpha = [1, 2], [0.0, 0.0]
    if table.request_rows is not None:
        linear = table.request_interpolation == "linear"
        requests, alpha = _points(table.request_rows, table.request_seconds, linear)
    return {
        "bias_seconds": seconds[0],
        "bs_probes": requests,
        "alpha_seconds": alpha,
        "m_probes": rows,
        "theta_seconds": [value - seconds[0] for value in seconds],
    }


def _write_vllm(table) -> dict:
    rows, seconds = _points(table.rows, table.seconds, table.interpolation != "step_down")
    form = {"num_tokens": rows, "verify_ms": [1e3 * value for value in seconds]}
    limit = 0 if table.interpolation == "linear" else table.linear_above
    if limit is not None:
        form["max_capture_size"] = limit
    if table.request_rows is not None:
        step = table.request_interpolation == "step"
        form["num_reqs"], draft = _points(table.request_rows, table.request_seconds, step)
        form["draft_ms"] = [1e3 * value for value in draft]
    return form


def _points(rows: list[int], dense, as_sampled: bool) -> tuple[list[int], list[float]]:
    """Samples of the monotone table, at every number of rows unless the form rounds alike."""
    counts = list(rows) if as_sampled else list(range(1, rows[-1] + 1))
    values = dense.tolist()
    return counts, [values[count] for count in counts]
