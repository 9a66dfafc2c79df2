"""Calls of what runs on the host: cost tables, calibration, estimator, gate."""

from __future__ import annotations

import math
import warnings

import torch
from calls import FLOATS, INTEGERS, Call, Source, builds, require, require_shape

from dspark_ext import calibration, verify


def samples(source: Source) -> tuple[list[int], list[float]]:
    count = source.size(1, 6)
    rows = source.integers(1, 5, count).cumsum(0).tolist()
    return rows, (source.uniform(count, dtype=torch.float64).cumsum(0) + 1e-3).tolist()


def table_arguments(source: Source) -> dict:
    rows, seconds = samples(source)
    kind = source.pick(("linear", "step", "step_down"))
    arguments = {
        "rows": rows, "seconds": seconds, "interpolation": kind, "linear_above": None,
        "request_rows": None, "request_seconds": None, "request_interpolation": "linear",
    }  # fmt: skip
    if kind == "step":
        arguments["linear_above"] = source.maybe(lambda: source.size(0, 12))
    if source.chance(0.4):
        arguments["request_rows"], arguments["request_seconds"] = samples(source)
    return arguments


def make_table(**arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        table = verify.CostTable(**arguments)
    return table, table.to_dict(), [table.cost(r, b) for r in (0, 1, 7, 40) for b in (0, 1, 9)]


@builds("CostTable")
def cost_table(source: Source) -> Call:
    return Call("CostTable", make_table, table_arguments(source), check_table)


def check_table(arguments, out, tame) -> None:
    table, form, costs = out
    require(all(math.isfinite(c) and c > 0 for c in costs), "costs", costs)
    for few, more in zip(costs, costs[3:]):
        require(few <= more + 1e-9 * abs(more), "more rows are cheaper", costs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        again = verify.CostTable.from_dict(form)
    require(torch.equal(again.seconds, table.seconds), "to_dict and back")


FORMS = ("dspark_ext", "sglang_rates", "sglang_additive", "vllm")


@builds("CostTable.from_dict")
def cost_table_from_dict(source: Source) -> Call:
    arguments = table_arguments(source)
    form = source.pick(FORMS)
    if form == "sglang_rates":
        arguments |= {"request_rows": None, "request_seconds": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        keys = verify.CostTable(**arguments).to_dict(form)
    return Call("CostTable", read_table, keys, check_read, words=tuple(keys))


def read_table(**keys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        table = verify.CostTable.from_dict(keys)
    return table, [table.cost(r, b) for r in (0, 1, 7, 40) for b in (0, 1, 9)]


def check_read(arguments, out, tame) -> None:
    require(all(math.isfinite(c) and c >= 0 for c in out[1]), "costs", out[1])


# ---- calibration --------------------------------------------------------------------------------


def blocks(source: Source, name: str) -> dict:
    count, width = source.size(0, 12), source.size(0, 4)
    lengths = source.integers(0, width, count, dtype=source.pick(INTEGERS))
    accepted = (source.uniform(count) * (lengths + 1)).to(lengths.dtype).minimum(lengths)
    if source.chance(0.3):
        accepted = (torch.arange(width) < accepted[:, None]).to(
            source.pick((torch.bool, torch.int64))
        )
    values = source.floats(count, width, dtype=source.pick(FLOATS))
    return {
        name: values.sigmoid() if name == "confidence" else values,
        "accepted": accepted,
        "verify_lens": lengths if source.chance(0.6) else None,
    }


def quietly(function):
    def call(**arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return function(**arguments)

    return call


@builds("fit_sts")
def fit_sts(source: Source) -> Call:
    arguments = blocks(source, "conf_logits") | {
        "objective": source.pick(("ece", "log_loss")),
        "num_bins": source.size(1, 15),
        "grid": [0.5, 1.0, 2.0],
    }
    return Call(
        "fit_sts", quietly(calibration.fit_sts), arguments, check_temperatures,
        at_most=("num_bins",),
    )  # fmt: skip


def check_temperatures(arguments, out, tame) -> None:
    require_shape(out, (arguments["conf_logits"].shape[1],), torch.float32, "temperatures")
    values = out.tolist()
    require(all(v in arguments["grid"] or v == 1.0 for v in values) or not tame, values)


@builds("calibration_report")
def calibration_report(source: Source) -> Call:
    arguments = blocks(source, "confidence") | {
        "kind": source.pick(("survival", "conditional")),
        "num_bins": source.size(1, 15),
    }
    return Call(
        "calibration_report", calibration.calibration_report, arguments, check_report,
        at_most=("num_bins",),
    )  # fmt: skip


def check_report(arguments, report, tame) -> None:
    width = arguments["confidence"].shape[1]
    require(report.num_samples.shape == (width,), "num_samples")
    for name in ("predicted", "observed", "ece", "auc", "brier"):
        values = getattr(report, name)
        inside = ((values >= -1e-9) & (values <= 1 + 1e-9)) | values.isnan()
        require(bool(inside.all()), name, values.tolist())
        if name != "auc":
            require(torch.equal(values.isnan(), report.num_samples == 0), name, "NaN")
    str(report)


@builds("Calibration")
def calibration_object(source: Source) -> Call:
    width = source.size(0, 5)
    ece = tuple(source.uniform(width, dtype=torch.float64).tolist())
    arguments = {
        "temperatures": tuple((source.uniform(width, dtype=torch.float64) + 0.1).tolist()),
        "dataset": "set", "num_samples": source.size(0, 99),
        "ece_before": source.pick(((), ece)), "ece_after": source.pick(((), ece)),
        "conditions": {"temperature": 1.0},
    }  # fmt: skip
    return Call("Calibration", make_calibration, arguments, check_calibration)


def make_calibration(**arguments):
    made = calibration.Calibration(**arguments)
    return made, made.apply(torch.zeros(2, len(made.temperatures)))


def check_calibration(arguments, out, tame) -> None:
    require_shape(out[1], (2, len(arguments["temperatures"])), torch.float32, "confidences")
    require(bool((out[1] == 0.5).all()), "sigmoid(0)", out[1].tolist())


@builds("AcceptanceEstimator")
def estimator(source: Source) -> Call:
    slots, width = source.size(1, 3), source.size(0, 3)
    lengths = source.integers(0, width, slots, dtype=torch.int32)
    arguments = {
        "stats": verify.AcceptanceStats(slots, width),
        "verify_lens": lengths,
        "num_accepted": (source.uniform(slots) * (lengths + 1)).int().minimum(lengths),
        "half_life": source.pick((64.0, 1.0, math.inf)),
        "prior": source.pick((0.7, 0.0, 1.0)),
        "prior_weight": 8.0,
        "pool_weight": 8.0,
        "lag": source.size(1, 3),
    }
    return Call(
        "AcceptanceEstimator", estimate, arguments, check_estimate, writes=("stats",),
        ops=("accumulate_stats",), fixed=("stats",), at_most=("lag",),
        words=("verified", "num_requests"),
    )  # fmt: skip


def estimate(stats, verify_lens, num_accepted, **options):
    stats.reset()
    made = verify.AcceptanceEstimator(stats, **options)
    stats.update(verify_lens, num_accepted)
    made.update()
    return made.confidence()


def check_estimate(arguments, out, tame) -> None:
    stats = arguments["stats"]
    require_shape(out, (stats.num_requests, stats.num_drafts), torch.float32, "confidence")
    require(bool(((out >= 0) & (out <= 1)).all()), "no probabilities", out.tolist())


@builds("DraftGate")
def draft_gate(source: Source) -> Call:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        rows, seconds = samples(source)
        table = verify.CostTable(rows, seconds, request_rows=[1, 4], request_seconds=[1e-4, 1e-3])
    verified = source.size(0, 9)
    arguments = {
        "cost": table, "probe_share": 0.01, "half_life": 1024.0, "min_blocks": 2, "min_steps": 1,
        "num_requests": source.size(0, 6), "num_verified": verified,
        "num_accepted": source.size(0, verified), "num_other_rows": source.size(0, 3),
        "catch_up_seconds": 0.0,
    }  # fmt: skip
    return Call("DraftGate", gate, arguments, check_gate, fixed=("cost",), words=("update",))


def gate(
    cost, num_requests, num_verified, num_accepted, num_other_rows, catch_up_seconds, **options
):
    made = verify.DraftGate(cost, **options)
    answers = []
    for _ in range(3):
        answers.append(made.should_draft(num_requests, num_other_rows, catch_up_seconds))
        made.update(
            num_requests, True, num_verified, num_accepted, num_other_rows, catch_up_seconds
        )
    return answers


def check_gate(arguments, out, tame) -> None:
    require(all(type(answer) is bool for answer in out), "answers", out)
