"""The benchmark of call overhead calls every operator, and counts tensors right."""

import pathlib
import sys

import pytest
import torch

BENCH = pathlib.Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import bench_overhead  # noqa: E402
import overhead_cases  # noqa: E402

from dspark_ext import _operators  # noqa: E402

CASES = {case.name: case for case in overhead_cases.make_cases()}


def test_every_operator_is_called():
    called = {bench_overhead.called_by(case.make(2)).name for case in CASES.values()}
    assert called == set(_operators.names())


@pytest.mark.parametrize("name", CASES)
def test_the_call_without_rows_is_one_of_the_same_operator(name):
    some, none = (bench_overhead.called_by(CASES[name].make(rows)) for rows in (2, 0))
    assert some.name == none.name
    assert (some.tensors_in, some.tensors_out) == (none.tensors_in, none.tensors_out)
    some.call()
    none.call()


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("pack", (5, 5)),
        ("rejection_sample", (6, 6)),
        ("rejection_sample, draft logits and statistics", (11, 6)),
        ("rejection_sample, out", (6, 5)),
        ("accumulate_stats", (5, 0)),
        ("silu_mul", (1, 1)),
    ],
)
def test_tensors_are_counted(name, tensors):
    called = bench_overhead.called_by(CASES[name].make(2))
    assert (called.tensors_in, called.tensors_out) == tensors


@pytest.mark.parametrize("tensors_out", range(10))
@pytest.mark.parametrize("tensors_in", range(1, 12))
def test_torchs_operator_has_as_many_results(tensors_in, tensors_out):
    _, call = bench_overhead.peer(tensors_in, tensors_out)
    result = call()
    count = 1 if isinstance(result, torch.Tensor) else len(result)
    assert count == max(tensors_out, 1)  # what writes into an argument returns it


def test_a_row_adds_up():
    row = bench_overhead.measure(CASES["silu_mul"], batches=1)
    parts = row["python_us"] + row["operator_us"] + row["kernel_us"]
    assert parts == pytest.approx(row["call_us"])
    assert row["overhead_us"] == pytest.approx(
        row["python_us"] + row["operator_us"] - row["peer_us"]
    )
    assert "| silu_mul | 1, 1 |" in bench_overhead.markdown([row])
