"""dspark_ext.verify.CostTable, its files, and the profiler that measures one."""

import json

import pytest
import torch

from dspark_ext import verify
from dspark_ext.reference import verify as reference

ROWS, SECONDS = [2, 4, 8], [1.0, 1.5, 3.5]


@pytest.mark.parametrize(
    ("interpolation", "expected"),
    [
        ("linear", [1.0, 1.0, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5]),
        ("step", [1.0, 1.0, 1.0, 1.5, 1.5, 3.5, 3.5, 3.5, 3.5]),
        ("step_down", [1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 1.5, 3.5]),
    ],
)
def test_between_and_beyond_the_samples(interpolation, expected):
    table = verify.CostTable(ROWS, SECONDS, interpolation)
    assert [table.cost(rows) for rows in range(9)] == expected
    slope = (3.5 - 1.5) / 4
    assert [table.cost(rows) for rows in (9, 10, 100)] == [3.5 + slope * n for n in (1, 2, 92)]
    assert table.seconds.dtype == torch.float64
    for rows in range(40):
        assert reference.step_cost(table.seconds, rows) == table.cost(rows)


def test_the_scheduler_reads_what_cost_says():
    """theta at every length, computed from cost(), picks the length that schedule picks."""
    table = verify.CostTable([1, 3, 6], [1.0, 1.2, 3.0])
    confidence = torch.tensor([[0.9, 0.8, 0.8, 0.9]])
    survival = confidence.double().cumprod(1)[0].tolist()
    theta = [(1 + sum(survival[:n])) / table.cost(1 + n) for n in range(5)]
    best = next(n for n in range(5) if n == 4 or theta[n + 1] <= theta[n])
    assert verify.schedule(confidence, cost=table).verify_lens.tolist() == [best]
    assert 0 < best < 4


def test_a_falling_sample_is_raised():
    table = verify.CostTable([1, 2, 3], [1.0, 0.5, 2.0])
    assert [table.cost(rows) for rows in (1, 2, 3)] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("seconds", [[1.0], [2.0, 2.0], [2.0, 1.0]], ids=str)
def test_a_flat_table_is_reported(seconds):
    with pytest.warns(UserWarning, match="dspark_ext.CostTable.*flat"):
        table = verify.CostTable(range(1, len(seconds) + 1), seconds)
    assert table.is_flat and table.cost(1000) == seconds[0]


def test_a_table_with_a_slope_is_not_reported(recwarn):
    assert not verify.CostTable(ROWS, SECONDS).is_flat
    assert not recwarn.list


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (([], []), "rows"),
        (([1, 2], [1.0]), "rows"),
        (([2, 1], [1.0, 2.0]), "rows"),
        (([1, 1], [1.0, 2.0]), "rows"),
        (([0, 1], [1.0, 2.0]), "rows"),
        (([1.5, 2], [1.0, 2.0]), "rows"),
        (([1, 2], [0.0, 1.0]), "seconds"),
        (([1, 2], [-1.0, 1.0]), "seconds"),
        (([1, 2], [1.0, float("nan")]), "seconds"),
        (([1, 2], [1.0, float("inf")]), "seconds"),
        (([1, 2], [1.0, 2.0], "cubic"), "interpolation"),
    ],
)
def test_errors_name_the_argument(arguments, word):
    with pytest.raises(ValueError) as error:
        verify.CostTable(*arguments)
    assert "dspark_ext.CostTable" in str(error.value) and word in str(error.value)


def test_requests_cost_too():
    table = verify.CostTable(ROWS, SECONDS, request_rows=[1, 3], request_seconds=[0.0, 0.2])
    assert table.cost(4, num_requests=1) == 1.5
    assert table.cost(4, num_requests=2) == pytest.approx(1.6)
    assert table.cost(4, num_requests=50) == pytest.approx(1.7)


def test_own_file_round_trip(tmp_path):
    for arguments in ({}, {"request_rows": [1, 4], "request_seconds": [0.0, 0.5]}):
        table = verify.CostTable(ROWS, SECONDS, "step", **arguments)
        table.save(tmp_path / "cost.json")
        again = verify.CostTable.load(tmp_path / "cost.json")
        assert torch.equal(again.seconds, table.seconds)
        assert again.to_dict() == table.to_dict()


def test_reads_steps_per_second(tmp_path):
    """Sampled rates round down: 3 rows run at the rate measured for 2."""
    form = {
        "sample_batch_tokens": [1, 2, 4],
        "sample_steps_per_sec": [10.0, 8.0, 5.0],
        "max_batch_tokens": 6,
    }
    (tmp_path / "rates.json").write_text(json.dumps(form))
    table = verify.CostTable.load(tmp_path / "rates.json")
    expected = [1 / 10, 1 / 8, 1 / 8, 1 / 5, 1 / 5, 1 / 5]
    assert [table.cost(rows) for rows in range(1, 7)] == pytest.approx(expected)


def test_reads_additive_curves():
    """time = bias + alpha(requests) + theta(rows)."""
    table = verify.CostTable.from_dict(
        {
            "bias_seconds": 0.5,
            "bs_probes": [1, 3],
            "alpha_seconds": [0.0, 0.4],
            "m_probes": [2, 6],
            "theta_seconds": [0.1, 0.5],
        }
    )
    assert table.cost(4, num_requests=2) == pytest.approx(0.5 + 0.2 + 0.3)
    assert table.cost(1, num_requests=1) == pytest.approx(0.6)


@pytest.mark.parametrize(
    "form", [{}, {"rows": [1]}, {"sample_batch_tokens": [1, 2], "sample_steps_per_sec": [1.0, 0.0]}]
)
def test_unknown_forms_are_errors(form):
    with pytest.raises(ValueError, match="dspark_ext.CostTable"):
        verify.CostTable.from_dict(form)


@pytest.mark.filterwarnings("ignore:dspark_ext.CostTable")  # the times may come out flat
def test_profile_runs_every_count():
    calls = []
    table = verify.profile_cost_table(calls.append, [4, 1, 2, 2], warmup=1, repeats=3)
    assert table.rows == [1, 2, 4] and all(s > 0 for s in table.sample_seconds)
    assert {n: calls.count(n) for n in (1, 2, 4)} == {1: 4, 2: 4, 4: 4}


def test_profile_errors():
    for counts, repeats in [([], 5), ([0, 1], 5), ([1], 0)]:
        with pytest.raises(ValueError, match="dspark_ext.profile_cost_table"):
            verify.profile_cost_table(lambda rows: None, counts, repeats=repeats)


def test_cudagraph_sizes():
    sizes = verify.cudagraph_sizes(128, 5)
    assert sizes[0] == 1 and sizes[-2:] == [768, 1024] and sizes == sorted(set(sizes))
    assert verify.cudagraph_sizes(1, 0) == [1]
    with pytest.raises(ValueError, match="dspark_ext.cudagraph_sizes"):
        verify.cudagraph_sizes(0, 5)
