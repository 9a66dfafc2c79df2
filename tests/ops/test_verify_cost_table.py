"""dspark_ext.verify.CostTable, its files, and the profiler that measures one."""

import json
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_ext import cost_table, verify
from dspark_ext.reference import verify as reference

SETTINGS = settings(max_examples=40, deadline=None)
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


def test_what_was_raised_is_told():
    table = verify.CostTable([1, 2, 3, 4], [1.0, 0.8, 2.0, 1.9])
    assert table.largest_raise == pytest.approx(0.25)
    assert table.sample_seconds == [1.0, 0.8, 2.0, 1.9]  # as measured
    assert verify.CostTable(ROWS, SECONDS).largest_raise == 0.0


@pytest.mark.parametrize("seconds", [[1.0], [2.0, 2.0], [2.0, 1.0], [2.0, 2.009]], ids=str)
def test_a_flat_table_is_reported(seconds):
    with pytest.warns(UserWarning, match="dspark_ext.CostTable.*flat"):
        table = verify.CostTable(range(1, len(seconds) + 1), seconds)
    assert table.is_flat and table.cost(1000) == pytest.approx(seconds[0], rel=6)


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


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 5.0), (7, 5.0), (8, 5.0), (10, 6.0), (12, 7.0)],
)
def test_graphs_up_to_a_limit(rows, expected):
    """Captured 2 and 4; 8 and 12 run without a graph: rounded up to 8, linear from there."""
    table = verify.CostTable([2, 4, 8, 12], [1.0, 2.0, 5.0, 7.0], "step", linear_above=4)
    assert table.cost(rows) == expected


def test_the_second_curve_has_its_own_rounding():
    arguments = {"request_rows": [1, 4], "request_seconds": [1.0, 2.0]}
    costs = {}
    for word in ("linear", "step", "step_down"):
        table = verify.CostTable(ROWS, SECONDS, request_interpolation=word, **arguments)
        costs[word] = [table.cost(2, num_requests=n) - 1.0 for n in (1, 2, 4, 9)]
    assert costs["linear"] == pytest.approx([1.0, 4 / 3, 2.0, 2.0])
    assert costs["step"] == [1.0, 2.0, 2.0, 2.0] and costs["step_down"] == [1.0, 1.0, 2.0, 2.0]


@st.composite
def tables(draw):
    rows = sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=8)))
    seconds = draw(st.lists(st.floats(1e-4, 1.0), min_size=len(rows), max_size=len(rows)))
    word = draw(st.sampled_from(["linear", "step", "step_down"]))
    arguments = {}
    if word == "step":
        arguments["linear_above"] = draw(st.none() | st.integers(0, 60))
    if draw(st.booleans()):
        arguments["request_rows"] = [1, 3, 7]
        arguments["request_seconds"] = draw(st.lists(st.floats(0.0, 0.1), min_size=3, max_size=3))
        arguments["request_interpolation"] = draw(st.sampled_from(["linear", "step"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return verify.CostTable(rows, seconds, word, **arguments)


@SETTINGS
@given(tables())
def test_laws_of_a_table(table):
    """Never falls; at a sample it is the largest time measured so far."""
    costs = [table.cost(rows) for rows in range(1, 80)]
    assert all(a <= b for a, b in zip(costs, costs[1:]))
    top = 0.0
    for rows, seconds in zip(table.rows, table.sample_seconds):
        top = max(top, seconds)
        assert table.seconds[rows] == top
    per_request = [table.cost(1, num_requests=n) for n in range(1, 12)]
    assert all(a <= b for a, b in zip(per_request, per_request[1:]))


@SETTINGS
@given(tables(), st.sampled_from(["dspark_ext", "sglang_rates", "sglang_additive", "vllm"]))
def test_every_form_says_the_same_time(table, form):
    """Written and read again, a table gives the same seconds at every count up to its end."""
    if form == "sglang_rates" and table.request_rows is not None:
        with pytest.raises(ValueError, match="dspark_ext.CostTable: form"):
            table.to_dict(form)
        return
    written = json.loads(json.dumps(table.to_dict(form)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = verify.CostTable.from_dict(written)
    for rows in range(1, table.rows[-1] + 1):
        for requests in (1, 2, 3, 5, 7, 9):
            assert again.cost(rows, requests) == pytest.approx(
                table.cost(rows, requests), rel=1e-9, abs=2e-9
            )


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


def test_reads_two_curves_of_milliseconds(tmp_path):
    """verify rounds up to the captured size, linear above the largest; draft by requests."""
    form = {
        "num_tokens": [2, 4, 8, 12],
        "verify_ms": [10.0, 20.0, 50.0, 70.0],
        "max_capture_size": 4,
        "num_reqs": [1, 4],
        "draft_ms": [1.0, 2.0],
    }
    (tmp_path / "curves.json").write_text(json.dumps(form))
    table = verify.CostTable.load(tmp_path / "curves.json")
    found = [table.cost(rows, num_requests=1) for rows in (1, 3, 6, 10)]
    assert found == pytest.approx([0.011, 0.021, 0.051, 0.061])
    assert table.cost(2, num_requests=2) == pytest.approx(0.012)
    written = table.to_dict("vllm")
    assert list(written) == ["num_tokens", "verify_ms", "max_capture_size", "num_reqs", "draft_ms"]
    for key, value in form.items():
        assert written[key] == pytest.approx(value)
    plain = verify.CostTable.from_dict({"num_tokens": [2, 4], "verify_ms": [0.0, 20.0]})
    assert plain.cost(2) == 1e-9 and plain.cost(3) == 0.02  # vLLM's floor; rounds up throughout


ADDITIVE = {
    "bias_seconds": 0.5,
    "bs_probes": [1, 3],
    "alpha_seconds": [0.0, 0.4],
    "m_probes": [2, 6],
    "theta_seconds": [0.1, 0.5],
}


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ([], "mapping"),
        ({}, "expected the keys"),
        ({"rows": [1]}, "seconds: missing"),
        ({"rows": [1, 2], "seconds": [1.0, 2.0], "interpolate": "step"}, "interpolate: unknown"),
        ({"rows": "12", "seconds": [1.0, 2.0]}, "rows: expected a list"),
        ({"rows": [1, 2], "seconds": [1.0, "2"]}, r"seconds\[1\]"),
        ({"rows": [1, 2], "seconds": [1.0, None]}, r"seconds\[1\]"),
        ({"rows": [1, True], "seconds": [1.0, 2.0]}, r"rows\[1\]"),
        ({"rows": [1, 2], "seconds": [1.0, 2.0], "request_rows": [1]}, "request_seconds"),
        ({"rows": [1, 2], "seconds": [1.0, 2.0], "linear_above": 1}, "linear_above"),
        ({"sample_batch_tokens": [1, 2], "sample_steps_per_sec": [1.0, 0.0]}, "sample_steps_per"),
        ({"sample_batch_tokens": [1, 2], "sample_steps_per_sec": [1.0]}, "sample_steps_per_sec"),
        ({"sample_batch_tokens": [1, 2]}, "sample_steps_per_sec: missing"),
        ({**ADDITIVE, "bias_seconds": 0}, "bias_seconds"),
        ({**ADDITIVE, "alpha_seconds": [0.0]}, "alpha_seconds"),
        ({**ADDITIVE, "m_probes": [6, 2]}, "m_probes"),
        ({k: v for k, v in ADDITIVE.items() if k != "bs_probes"}, "bs_probes: missing"),
        ({"num_tokens": [1, 2]}, "verify_ms: missing"),
        ({"num_tokens": [1, 2], "verify_ms": [1, -1]}, "verify_ms"),
        ({"num_tokens": [1, 2], "verify_ms": [1, 2], "num_reqs": [1]}, "draft_ms"),
        ({"num_tokens": [1, 2], "verify_ms": [1, 2], "max_capture_size": "x"}, "max_capture_size"),
    ],
)
def test_errors_name_file_and_key(tmp_path, form, words):
    with pytest.raises(ValueError, match=f"dspark_ext.CostTable: .*{words}"):
        verify.CostTable.from_dict(form)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(form))
    with pytest.raises(ValueError, match=f"dspark_ext.CostTable: .*broken.json: .*{words}"):
        verify.CostTable.load(path)


def test_a_missing_file_is_reported(tmp_path):
    """BR-027: no table must not look like a flat one."""
    with pytest.raises(FileNotFoundError, match="missing.json.*profile_cost_table"):
        verify.CostTable.load(tmp_path / "missing.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="dspark_ext.CostTable: .*broken.json"):
        verify.CostTable.load(tmp_path / "broken.json")
    with pytest.raises(ValueError, match="form: expected one of dspark_ext"):
        verify.CostTable(ROWS, SECONDS).save(tmp_path / "out.json", form="tensorrt")


@pytest.mark.filterwarnings("ignore:dspark_ext.CostTable")  # the times may come out flat
def test_profile_runs_every_count():
    calls = []
    table = verify.profile_cost_table(calls.append, [4, 1, 2, 2], warmup=1, repeats=3)
    assert table.rows == [1, 2, 4] and all(s > 0 for s in table.sample_seconds)
    assert {n: calls.count(n) for n in (1, 2, 4)} == {1: 4, 2: 4, 4: 4}


class Clock:
    """time.perf_counter of a machine on which each call takes what the test says."""

    def __init__(self, monkeypatch, seconds_of):
        self.now, self.log, self.calls = 0.0, [], {}
        self.seconds_of = seconds_of
        monkeypatch.setattr(cost_table.time, "perf_counter", self.read)

    def read(self):
        self.log.append("clock")
        return self.now

    def step(self, count):
        self.log.append(count)
        self.calls[count] = self.calls.get(count, 0) + 1
        self.now += self.seconds_of(count, self.calls[count])


def test_profile_takes_the_median_of_the_timed_calls(monkeypatch):
    """Slow first calls are warm-up; one slow call in five is an outlier."""

    def seconds_of(count, call):
        return 50.0 if call <= 2 else 9.0 if call == 4 else count / 8

    clock = Clock(monkeypatch, seconds_of)
    table = verify.profile_cost_table(clock.step, [8, 1, 4], interpolation="step", linear_above=4)
    assert table.rows == [1, 4, 8] and table.sample_seconds == [1 / 8, 4 / 8, 1.0]
    assert table.interpolation == "step" and table.linear_above == 4
    timed = [entry for entry in clock.log[6:] if entry != "clock"]
    assert timed == [1, 4, 8] * 5  # in rotation


def test_profile_measures_the_cost_of_requests_too(monkeypatch):
    clock = Clock(monkeypatch, lambda count, call: count / 16)
    table = verify.profile_cost_table(
        clock.step, [1, 2], request_step_fn=lambda n: clock.step(2 * n), request_counts=[4, 1]
    )
    assert table.request_rows == [1, 4] and table.request_sample_seconds == [2 / 16, 8 / 16]
    assert table.cost(2, num_requests=4) == 10 / 16


def test_profile_waits_for_the_device(monkeypatch):
    """Before and after every timed call, else only the launch is timed."""
    clock = Clock(monkeypatch, lambda count, call: float(count))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.accelerator, "synchronize", lambda device=None: clock.log.append("wait")
    )
    verify.profile_cost_table(clock.step, [1, 2], warmup=1, repeats=2)
    assert clock.log == [1, 2] + [
        entry for count in (1, 2, 1, 2) for entry in ("wait", "clock", count, "wait", "clock")
    ]


def test_profile_of_a_real_step():
    """A step whose work grows with its rows gives a table that is not flat."""
    weight = torch.randn(512, 512)

    def step(rows):
        return torch.randn(rows, 512) @ weight

    table = verify.profile_cost_table(step, [1, 512, 4096], warmup=1, repeats=3)
    assert not table.is_flat and table.cost(4096) > table.cost(1)


@pytest.mark.parametrize(
    ("counts", "options", "word"),
    [
        ([], {}, "row_counts"),
        ([0, 1], {}, "row_counts"),
        ([1], {"repeats": 0}, "repeats"),
        ([1], {"warmup": -1}, "warmup"),
        ([1], {"request_counts": [1]}, "request_step_fn"),
        ([1], {"request_counts": [0], "request_step_fn": print}, "request_counts"),
    ],
)
def test_profile_errors(counts, options, word):
    with pytest.raises(ValueError, match=f"dspark_ext.profile_cost_table: .*{word}"):
        verify.profile_cost_table(lambda rows: None, counts, **options)


def test_cudagraph_sizes():
    sizes = verify.cudagraph_sizes(128, 5)
    assert sizes[0] == 1 and sizes[-2:] == [768, 1024] and sizes == sorted(set(sizes))
    assert verify.cudagraph_sizes(1, 0) == [1]
    with pytest.raises(ValueError, match="dspark_ext.cudagraph_sizes"):
        verify.cudagraph_sizes(0, 5)


@SETTINGS
@given(st.integers(1, 512), st.integers(0, 16))
def test_laws_of_the_captured_sizes(max_batch, num_drafts):
    """Every pass fits; rounding up costs at most 7 rows or an eighth; few sizes."""
    sizes = verify.cudagraph_sizes(max_batch, num_drafts)
    most = max_batch * (1 + num_drafts)
    assert sizes == sorted(set(sizes)) and sizes[0] == 1 and most in sizes
    assert sizes[-1] >= most and sizes[-1] & (sizes[-1] - 1) == 0
    assert len(sizes) <= 16 + 3 + 8 * max(0, most.bit_length() - 7) + 2
    for rows in range(1, most + 1, max(1, most // 300)):
        size = next(n for n in sizes if n >= rows)
        assert size - rows <= max(7, rows / 8)
