"""Every function from 8 Python threads at once, after a fork, in a spawned process: the bits of a
call alone. Configurations and results through pickle and copy."""

import copy
import multiprocessing
import pickle
import threading

import oracle
import pytest
import torch
from calls import BUILDERS, Source
from driver import HAVE_SHAPES

from dspark_ext import draft, linear, moe, sampling, verify
from dspark_ext.calibration import Calibration
from dspark_ext.engine import SamplingParams, SpeculativeConfig

THREADS = 8
CALLS = 6
ROUNDS = 3
# Collectives belong to one thread; these two count in an object that they are given.
SERIAL = {"ExpertParallel", "MarkovShards", "accumulate_stats", "AcceptanceEstimator"}
FUNCTIONS = sorted({name.partition("#")[0] for name in BUILDERS} - SERIAL)


def calls_of(function: str, seed: int, count: int = CALLS):
    """Valid calls that write only into tensors of their own."""
    return [BUILDERS[function](Source(seed, index)) for index in range(count)]


def digest(value):
    """A value with its tensors as bytes."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), oracle.bits(value.contiguous().clone()))
    if isinstance(value, (tuple, list)):
        return [digest(item) for item in value]
    if isinstance(value, dict):
        return {key: digest(item) for key, item in value.items()}
    if hasattr(value, "__dict__"):
        return digest(vars(value))
    return repr(value)


def outcome(call):
    return digest(call.function(**copy.deepcopy(call.arguments)))


@pytest.fixture(params=[1, 2])
def num_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_from_eight_threads_at_once(function, num_threads):
    calls = calls_of(function, 8)
    alone = [outcome(call) for call in calls]
    start, wrong = threading.Barrier(THREADS), []

    def work(number: int) -> None:
        torch.set_num_threads(num_threads)
        start.wait()
        for turn in range(ROUNDS * len(calls)):
            index = (turn + number) % len(calls)  # the same call and others beside it
            try:
                if outcome(calls[index]) != alone[index]:
                    wrong.append(f"thread {number}, call {index}: other bits")
            except Exception as error:
                wrong.append(f"thread {number}, call {index}: {error!r}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_objects_of_each_thread_count_on_their_own():
    one = torch.ones(2, dtype=torch.int32)
    reports = {}

    def work(number: int) -> None:
        stats = verify.AcceptanceStats(2, 3)
        estimator = verify.AcceptanceEstimator(stats)
        for _ in range(number + 1):
            stats.update(one, one)
            estimator.update()
        reports[number] = (stats.read().steps, estimator.confidence().tolist())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert {n: steps for n, (steps, _) in reports.items()} == {n: 2 * n + 2 for n in range(THREADS)}


# ---- processes ----------------------------------------------------------------------------------


def large_calls():
    """Calls of every family that are large enough for several threads."""
    source = Source(5)
    logits = source.floats(40, 20_000)
    weight = linear.pack_linear(source.floats(512, 256))
    x, ids = source.floats(400, 64), source.integers(0, 7, 400, 2)
    experts = [source.floats(8, *shape, scale=0.1) for shape in ((64, 64), (64, 32))]
    ones, rows = torch.ones(400, 2), source.floats(64, 256)
    return [
        lambda: sampling.sample(logits, seeds=1, positions=0, top_p=0.9),
        lambda: sampling.target_probs(logits, top_k=50),
        lambda: linear.linear(rows, weight, None, 512),
        lambda: moe.fused_moe(x, *experts, ids, ones),
        lambda: draft.row_statistics(logits, 1.0),
        lambda: moe.route(logits[:, :256], 8),
    ]


def answer(results, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    results.put([digest(call()) for call in large_calls()])


@pytest.mark.parametrize(("method", "num_threads"), [("fork", 1), ("spawn", 2)])
def test_another_process_gives_the_same_bits(method, num_threads):
    """After the parent's thread pool ran. A forked child has no threads of that pool, and torch's
    OpenMP waits for them for ever, in any operator: a child takes one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        here = [digest(call()) for call in large_calls()]
        context = multiprocessing.get_context(method)
        results = context.Queue()
        child = context.Process(target=answer, args=(results, num_threads))
        child.start()
        there = results.get(timeout=120)
        child.join(timeout=60)
        assert child.exitcode == 0
        assert there == here
        assert [digest(call()) for call in large_calls()] == here  # the parent goes on
    finally:
        torch.set_num_threads(before)


# ---- copies -------------------------------------------------------------------------------------

COPIES = {"pickle": lambda value: pickle.loads(pickle.dumps(value)), "deepcopy": copy.deepcopy}


def values():
    table = verify.CostTable([1, 8], [1.0, 2.0], request_rows=[1], request_seconds=[0.1])
    stats = verify.AcceptanceStats(2, 3)
    stats.update(torch.tensor([3, 2], dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32))
    gate = verify.DraftGate(table, min_blocks=1, min_steps=1)
    gate.update(3, True, 9, 4)
    halves = [t.half() for t in (torch.randn(2, 8, 6), torch.randn(2, 6, 4))]
    return {
        "config": SpeculativeConfig(
            method="dspark",
            num_speculative_tokens_per_batch_size=((1, 4, 3), (5, 8, 0)),
            schedule="early_stop",
            cost_table=table,
        ),
        "parameters": SamplingParams(temperature=0.5, stop=("a",), stop_token_ids=(1, 2)),
        "cost table": table,
        "statistics": stats,
        "report": stats.read(),
        "estimator": verify.AcceptanceEstimator(stats),
        "gate": gate,
        "calibration": Calibration((1.0, 0.5), conditions={"temperature": 1.0}),
        "prepared weights": moe.prepare_weights(moe.ExpertWeights(*halves), "cpu"),
        "plan": moe.plan(torch.tensor([[0, 1]]), 2, tile_rows=4),
        "schedule": verify.schedule(torch.ones(2, 3), mode="fixed"),
        "linear": linear.PackedLinear.from_linear(torch.nn.Linear(5, 7)),
    } | {f"result of {name}": BUILDERS[name](Source(3)) for name in sorted(HAVE_SHAPES)}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", [*values()])
def test_copies_are_equal_and_apart(name, way):
    value = values()[name]
    if name.startswith("result of "):
        value = value.function(**value.arguments)
    other = COPIES[way](value)
    assert type(other) is type(value)
    assert digest(other) == digest(value)
    mine = {t.data_ptr() for t in oracle.tensors_of(value) if t.numel()}
    assert not mine & {t.data_ptr() for t in oracle.tensors_of(other) if t.numel()}


def test_copies_of_statistics_count_apart():
    stats = values()["statistics"]
    for make in COPIES.values():
        other = make(stats)
        one = torch.ones(1, dtype=torch.int32)
        other.update(one, one)
        assert (stats.read().steps, other.read().steps) == (2, 3)


def test_a_copied_layer_works():
    layer, x = values()["linear"], torch.randn(3, 5)
    for make in COPIES.values():
        assert torch.equal(make(layer)(x), layer(x))
