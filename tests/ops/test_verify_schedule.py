"""dspark_ext.verify.schedule against its specification, and what the schedule may look at."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_ext import verify
from dspark_ext.reference import verify as reference

MODES = ("fixed", "threshold", "early_stop", "budget", "lagged", "uniform", "uniform,lagged")
STEEP = torch.tensor([1.0, 1.0, 100.0, 1000.0, 10000.0], dtype=torch.float64)


def mode_arguments(mode, confidence, cost=STEEP, threshold=0.5):
    """A mode and what it needs. What an earlier step said depends on the shape alone."""
    batch, width = confidence.shape
    generator = torch.Generator().manual_seed(31 * batch + width)
    earlier = torch.rand(batch, width, generator=generator).sqrt()
    needs = {
        "fixed": {},
        "threshold": {"threshold": threshold},
        "early_stop": {"cost": cost},
        "budget": {"budget": torch.tensor(batch + batch * width // 2, dtype=torch.int32)},
        "lagged": {"cost": cost, "lagged_confidence": earlier},
        "uniform": {"cost": cost},
        "uniform,lagged": {"cost": cost, "lagged_confidence": earlier},
    }
    return {"mode": mode.split(",")[0], **needs[mode]}


def lens(plan):
    return plan.verify_lens.tolist()


def assert_same(plan, expected):
    for name, mine, theirs in zip(expected._fields, plan, expected):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, name
        assert torch.equal(mine.nan_to_num(nan=-1.0), theirs.nan_to_num(nan=-1.0)), name


def confidences(kind, batch, width, generator):
    uniform = torch.rand(batch, width, generator=generator)
    if kind == "uniform":
        return uniform
    if kind == "high":
        return 1 - 0.2 * uniform
    if kind == "quarters":  # many ties
        return (uniform * 4).round() / 4
    if kind == "ones":
        return torch.ones(batch, width)
    if kind == "zeros":
        return torch.zeros(batch, width)
    if kind == "tiny":  # survivals around the cut at 2^-100
        return torch.exp2(-34 * uniform)
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), -1, 2, 1e-45, 0, 1, 0.9, 0.5])
    return values[(uniform * len(values)).long()]


KINDS = ("uniform", "high", "quarters", "ones", "zeros", "tiny", "hostile")
SIZES = [(0, 5), (1, 0), (1, 1), (1, 16), (2, 5), (3, 7), (8, 5), (13, 3), (32, 7), (64, 16)]


def random_cost(generator):
    """Rising, with plateaus, sometimes shorter than the rows asked for."""
    length = int(torch.randint(2, 200, (), generator=generator))
    steps = torch.rand(length, generator=generator, dtype=torch.float64) ** 4
    flat = torch.rand(length, generator=generator) < 0.5
    start = 10 ** float(torch.rand((), generator=generator) * 3 - 1)
    return start + steps.masked_fill(flat, 0.0).cumsum(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_equals_the_reference(mode, kind):
    generator = torch.Generator().manual_seed(MODES.index(mode) * 10 + KINDS.index(kind))

    def pick(*choices):
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    for batch, width in SIZES * 2:
        confidence = confidences(kind, batch, width, generator)
        arguments = {
            **mode_arguments(
                mode,
                confidence,
                random_cost(generator),
                0.0 if kind == "tiny" else pick(0.25, 0.5, 0.9, 1.0),
            ),
            "num_requests": pick(None, None, torch.tensor(batch // 2, dtype=torch.int32)),
            "min_drafts": pick(0, 0, 1, 3, 40),
            "num_drafts": pick(None, None, width, width // 2, 0),
            "num_other_rows": pick(0, 1, 500),
            "max_rows": pick(None, None, batch, batch + 1, batch + batch * width // 3),
        }
        if pick(True, False):
            room = torch.randint(-1, width + 3, (batch,), generator=generator)
            arguments["capacity"] = room.to(torch.int32)
        kept = confidence.clone()
        plan = verify.schedule(confidence, **arguments)
        assert_same(plan, reference.schedule(confidence, **arguments))
        assert torch.equal(confidence.nan_to_num(nan=7.0), kept.nan_to_num(nan=7.0))


def test_equals_the_reference_on_all_small_cases():
    """Two requests, two drafts, every confidence from a grid, every mode and a binding max_rows."""
    cost = torch.tensor([1.0, 1.0, 1.2, 1.5, 1.6, 2.4, 2.5], dtype=torch.float64)
    grid = (0.0, 0.5, 0.75, 1.0)
    for values in itertools.product(grid, repeat=4):
        confidence = torch.tensor(values).reshape(2, 2)
        for mode, max_rows in itertools.product(MODES, (None, 3, 5)):
            arguments = {**mode_arguments(mode, confidence, cost), "max_rows": max_rows}
            plan = verify.schedule(confidence, **arguments)
            assert_same(plan, reference.schedule(confidence, **arguments))


@st.composite
def schedule_cases(draw):
    batch, width = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    values = st.sampled_from([0.0, 0.1, 0.5, 0.8, 0.9, 0.99, 1.0, float("nan")])
    confidence = torch.tensor(
        draw(st.lists(values, min_size=batch * width, max_size=batch * width))
    ).reshape(batch, width)
    rises = draw(st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.5]), min_size=3, max_size=12))
    mode = draw(st.sampled_from(MODES))
    arguments = mode_arguments(
        mode,
        confidence,
        1 + torch.tensor(rises, dtype=torch.float64).cumsum(0),
        draw(st.sampled_from([0.0, 0.6])),
    )
    arguments["min_drafts"] = draw(st.integers(0, 2))
    arguments["max_rows"] = draw(st.sampled_from([None, batch, batch + 2, batch * width]))
    if arguments["max_rows"] is not None:
        arguments["max_rows"] = max(arguments["max_rows"], batch)
    request, position = draw(st.integers(0, batch - 1)), draw(st.integers(0, width - 1))
    others = draw(st.lists(values, min_size=width - position - 1, max_size=width - position - 1))
    return confidence, arguments, request, position, others


@settings(max_examples=400, deadline=None, derandomize=True)
@given(schedule_cases())
def test_admission_never_looks_ahead(case):
    """Changing the confidences after x_j changes nothing about the admission of x_1 .. x_j."""
    confidence, arguments, request, position, others = case
    changed = confidence.clone()
    changed[request, position + 1 :] = torch.tensor(others)
    before = lens(verify.schedule(confidence, **arguments))[request]
    after = lens(verify.schedule(changed, **arguments))[request]
    assert min(before, position + 1) == min(after, position + 1)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(schedule_cases(), st.integers(0, 2**32))
def test_drafts_that_are_not_verified_change_nothing(case, seed):
    """The confidences behind the first draft that is not verified, of all requests at once: they
    come from drafts that are not verified. Nothing of the schedule depends on them, so requests
    stay independent of each other (docs/losslessness.md)."""
    confidence, arguments, *_ = case
    plan = verify.schedule(confidence, **arguments)
    unseen = torch.arange(confidence.shape[1]) > plan.verify_lens[:, None]
    noise = torch.rand(confidence.shape, generator=torch.Generator().manual_seed(seed)).sqrt()
    assert_same(verify.schedule(torch.where(unseen, noise, confidence), **arguments), plan)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(schedule_cases())
def test_totals_belong_to_the_lengths(case):
    confidence, arguments, *_ = case
    batch, width = confidence.shape
    plan = verify.schedule(confidence, **arguments)
    chosen = plan.verify_lens.long()
    assert int(chosen.min()) >= 0 and int(chosen.max()) <= width
    assert plan.query_start_loc.tolist() == [0, *(chosen + 1).cumsum(0).tolist()]
    assert int(plan.num_rows) == batch + int(chosen.sum()) == int(plan.query_start_loc[-1])
    if arguments["max_rows"] is not None:
        assert int(plan.num_rows) <= arguments["max_rows"]
    alive = reference.survival(confidence).double()
    inside = torch.arange(width) < chosen[:, None]
    expected = batch + float(alive[inside].sum())
    assert float(plan.expected_tokens) == pytest.approx(expected, rel=1e-6)


def test_paper_counterexample_verifies_nothing():
    """R=1, K=2, survival .8 then .72 or 0, steps/s (1, .5, .45): a global maximum would take two
    drafts after a confident x_1 and none otherwise. The early stop never starts."""
    table = verify.CostTable([1, 2, 3], [1 / 1, 1 / 0.5, 1 / 0.45])
    for second in (0.9, 0.0):
        plan = verify.schedule(torch.tensor([[0.8, second]]), cost=table)
        assert lens(plan) == [0]
        assert float(plan.expected_tokens) == 1.0


def test_gain_must_be_strict():
    """theta 1/1 -> 1.5/1.5: equal is not an improvement."""
    cost = torch.tensor([1.0, 1.0, 1.5], dtype=torch.float64)
    assert lens(verify.schedule(torch.tensor([[0.5]]), cost=cost)) == [0]
    better = torch.nextafter(torch.tensor([[0.5]]), torch.ones(1, 1))
    assert lens(verify.schedule(better, cost=cost)) == [1]


def test_early_stop_does_not_jump_over_a_dip():
    """The second draft alone does not pay, both further ones together would."""
    cost = torch.tensor([1.0, 1.0, 1.2, 2.4, 2.4], dtype=torch.float64)
    assert lens(verify.schedule(torch.ones(1, 3), cost=cost)) == [1]


def test_other_rows_shift_the_cost_only():
    cost = torch.tensor([1.0, 1.0, 9.0, 9.0, 9.0], dtype=torch.float64)
    confidence = torch.tensor([[0.9, 0.9]])
    assert lens(verify.schedule(confidence, cost=cost)) == [0]
    assert lens(verify.schedule(confidence, cost=cost, num_other_rows=1)) == [2]
    plan = verify.schedule(confidence, cost=cost, num_other_rows=1, max_rows=2)
    assert lens(plan) == [1] and int(plan.num_rows) == 2


def test_cost_past_the_table_keeps_the_last_slope():
    rising = torch.tensor([1.0, 1.0, 1.1], dtype=torch.float64)
    confidence = torch.tensor([[1.0, 1.0, 1.0, 0.05, 1.0]])
    assert lens(verify.schedule(confidence, cost=rising)) == [3]
    level = torch.tensor([1.0, 1.1, 1.1], dtype=torch.float64)
    assert lens(verify.schedule(confidence, cost=level)) == [5]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [1, 3])
def test_zero_drafts(mode, batch):
    confidence = torch.zeros(batch, 0)
    plan = verify.schedule(confidence, **mode_arguments(mode, confidence))
    assert lens(plan) == [0] * batch and int(plan.num_rows) == batch
    assert float(plan.expected_tokens) == batch


@pytest.mark.parametrize("mode", MODES)
def test_empty_batch(mode):
    confidence = torch.zeros(0, 5)
    plan = verify.schedule(confidence, **mode_arguments(mode, confidence))
    assert lens(plan) == [] and plan.query_start_loc.tolist() == [0]
    assert int(plan.num_rows) == 0 and float(plan.expected_tokens) == 0


def test_survival_below_the_cut_is_zero():
    """2^-50 * 2^-50 is the smallest survival that counts; half of it does not, nor does anything
    after it."""
    small = torch.tensor([[2.0**-50, 2.0**-50, 1.0], [2.0**-50, 2.0**-51, 1.0]])
    cost = torch.tensor([1.0, 1.0], dtype=torch.float64)
    assert lens(verify.schedule(small, cost=cost)) == [3, 1]  # costs no time
    assert lens(verify.schedule(small, cost=STEEP / STEEP + torch.arange(5) / 1e9)) == [0, 0]
    assert lens(verify.schedule(small, mode="threshold", threshold=0.0)) == [3, 1]
    assert lens(verify.schedule(small, mode="fixed")) == [3, 3]


def test_min_drafts_come_first_and_respect_capacity():
    confidence = torch.zeros(3, 4)
    plan = verify.schedule(confidence, cost=STEEP, min_drafts=2, capacity=[0, 1, 9])
    assert lens(plan) == [0, 1, 2]
    plan = verify.schedule(confidence, cost=STEEP, min_drafts=2, max_rows=5)
    assert lens(plan) == [1, 1, 0]


def test_order_survival_then_position_then_request():
    confidence = torch.tensor([[0.5, 1.0], [0.5, 1.0], [0.75, 0.5]])
    by_rows = {
        rows: lens(verify.schedule(confidence, mode="threshold", threshold=0.0, max_rows=rows))
        for rows in range(3, 10)
    }
    assert by_rows == {
        3: [0, 0, 0],
        4: [0, 0, 1],
        5: [1, 0, 1],
        6: [1, 1, 1],
        7: [2, 1, 1],
        8: [2, 2, 1],
        9: [2, 2, 2],
    }


@pytest.mark.parametrize("mode", MODES)
def test_permuting_requests_permutes_lengths(mode):
    """Where no tie and no shared limit decides, a request's length does not depend on its place."""
    generator = torch.Generator().manual_seed(5)
    confidence = torch.rand(24, 6, generator=generator)
    arguments = mode_arguments(mode, confidence, random_cost(generator))
    order = torch.randperm(24, generator=generator)
    plain = verify.schedule(confidence, **arguments)
    if "lagged_confidence" in arguments:
        arguments["lagged_confidence"] = arguments["lagged_confidence"][order]
    moved = verify.schedule(confidence[order], **arguments)
    assert torch.equal(plain.verify_lens[order], moved.verify_lens)


def test_strided_confidence():
    wide = torch.rand(6, 12, generator=torch.Generator().manual_seed(1))
    view = wide[:, ::2]
    for mode in MODES:
        one = verify.schedule(view, **mode_arguments(mode, view))
        two = verify.schedule(view.contiguous(), **mode_arguments(mode, view))
        assert torch.equal(one.verify_lens, two.verify_lens)


HALF = torch.full((2, 3), 0.5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"confidence": torch.zeros(3)}, ["confidence"]),
        ({"confidence": torch.zeros(2, 3, dtype=torch.float64)}, ["confidence", "float|Float"]),
        ({"capacity": torch.zeros(3, dtype=torch.int32)}, ["capacity"]),
        ({"cost": torch.zeros(2, 2, dtype=torch.float64)}, ["cost"]),
        ({"cost": torch.ones(1, dtype=torch.float64)}, ["cost"]),
        ({"cost": torch.ones(4)}, ["cost", "float64|double|Double"]),
        ({"cost": None}, ["cost"]),
        ({"num_drafts": -1}, ["num_drafts"]),
        ({"num_drafts": 4}, ["num_drafts"]),
        ({"min_drafts": -1}, ["min_drafts"]),
        ({"max_rows": 1}, ["max_rows"]),
        ({"num_other_rows": -1}, ["num_other_rows"]),
        ({"mode": "threshold", "cost": None}, ["threshold"]),
        ({"mode": "threshold", "cost": None, "threshold": float("nan")}, ["threshold"]),
        ({"mode": "threshold", "cost": None, "threshold": 1.5}, ["threshold"]),
        ({"mode": "fixed", "cost": None, "threshold": 0.5}, ["threshold"]),
        ({"mode": "argmax"}, ["mode"]),
        ({"mode": "argmax"}, ["law"]),
        ({"mode": "budget"}, ["budget"]),
        ({"mode": "budget", "budget": torch.tensor([3], dtype=torch.int32)}, ["budget"]),
        ({"mode": "budget", "budget": torch.tensor(3)}, ["budget", "int32"]),
        ({"mode": "lagged"}, ["lagged_confidence"]),
        ({"mode": "lagged", "lagged_confidence": HALF}, ["lagged_confidence", "law"]),
        ({"mode": "lagged", "lagged_confidence": torch.ones(2, 2)}, ["lagged_confidence"]),
        ({"mode": "lagged", "cost": None, "lagged_confidence": torch.ones(2, 3)}, ["cost"]),
        ({"mode": "uniform", "cost": None}, ["cost"]),
        ({"lagged_confidence": torch.ones(2, 3)}, ["lagged_confidence"]),
        ({"num_requests": torch.tensor([1, 2], dtype=torch.int32)}, ["num_requests"]),
        ({"budget": torch.tensor(3, dtype=torch.int32)}, ["budget"]),
        ({"confidence": None}, ["confidence"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_errors_name_operator_and_argument(changes, words):
    arguments = {"confidence": HALF, "cost": STEEP, **changes}
    with pytest.raises((RuntimeError, ValueError)) as error:
        verify.schedule(arguments.pop("confidence"), **arguments)
    message = str(error.value)
    assert "dspark_ext.schedule" in message
    for word in words:
        assert any(part in message for part in word.split("|")), message


def test_opcheck():
    capacity = torch.tensor([3, 0], dtype=torch.int32)
    for mode in MODES:
        given = mode_arguments(mode, HALF)
        tensors = (given.get(name) for name in ("cost", "budget", "lagged_confidence"))
        torch.library.opcheck(
            torch.ops.dspark_ext.schedule.default,
            (HALF, given["mode"], capacity, *tensors, capacity[0].clone())
            + (given.get("threshold", 0.0), 3, 0, -1, 0),
        )


@pytest.mark.parametrize("mode", MODES)
def test_compiles_in_one_graph(mode):
    compiled = torch.compile(verify.schedule, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (2, 5):
        confidence = torch.rand(batch, 4, generator=torch.Generator().manual_seed(batch))
        arguments = mode_arguments(mode, confidence)
        assert_same(compiled(confidence, **arguments), verify.schedule(confidence, **arguments))
