"""Passes from graphs, by the CPU's stand-in for one (`replayed_graphs`)."""

import pytest
import torch
from replayed_graphs import ReplayedCapture

from dspark_ext.engine import DSparkEngine, SamplingParams, TargetBatch, profile_step
from dspark_ext.engine.graphs import GraphRunner, TargetGraphs, not_captured
from dspark_ext.verify import cudagraph_sizes


def double(rows, more):
    return rows * 2, None, more[:, None] - rows[:, None]


def test_rows_are_padded_to_the_next_size_by_the_last_row():
    seen = []

    def function(rows, more):
        seen.append((rows, more))
        return double(rows, more)

    runner = GraphRunner(function, [8, 2, 4], ReplayedCapture())
    assert runner.sizes == [2, 4, 8] and runner.size_for(3) == 4 and runner.size_for(9) is None
    rows, more = torch.tensor([1, 2, 3]), torch.tensor([5, 6, 7])
    first, nothing, last = runner(rows, more)
    assert [each.tolist() for each in seen[-1]] == [
        [1, 2, 3, 3],
        [5, 6, 7, 7],
    ] and runner.captured == [4]
    assert first.tolist() == [2, 4, 6] and nothing is None
    assert last.tolist() == [[4], [4], [4]]
    assert runner(rows[:2] + 4, more[:2])[0].tolist() == [10, 12]
    assert runner.captured == [2, 4]


def test_a_graph_is_captured_once_and_overwrites_its_results():
    capture = ReplayedCapture()
    runner = GraphRunner(lambda rows: (rows + 1,), [4], capture)
    before = runner(torch.tensor([1, 2, 3]))[0]
    after = runner(torch.tensor([7, 8, 9, 10]))[0]
    assert (capture.captures, capture.replays) == (1, 2)
    assert before.tolist() == [8, 9, 10] and after.tolist() == [8, 9, 10, 11]


def test_passes_that_fit_no_size_run_as_they_are():
    capture = ReplayedCapture()
    runner = GraphRunner(lambda rows: (rows + 1,), [2], capture)
    assert runner(torch.arange(5))[0].tolist() == [1, 2, 3, 4, 5]
    assert runner(torch.arange(0))[0].tolist() == []
    assert capture.captures == 0


def test_prompt_rows_are_not_captured(serve):
    target = serve().target
    capture = ReplayedCapture()
    graphs = TargetGraphs(target, [4], capture, 1)
    index = torch.arange(3)
    batch = TargetBatch(index + 65, index, torch.zeros_like(index), index[:1])
    assert torch.equal(graphs.forward(batch).logits, target.forward(batch).logits)
    assert capture.captures == 0


@pytest.mark.parametrize(
    "config",
    [{}, {"schedule": "threshold", "confidence_threshold": 0.4}, {"blocks_per_step": 2}],
    ids=["fixed", "threshold", "two blocks"],
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_engine_on_graphs_emits_the_same(serve, prompts, config, temperature):
    params = SamplingParams(temperature=temperature, seed=3, max_new_tokens=30)
    plain = serve(max_requests=3, **config)
    expected = plain.generate(prompts, params)
    engine = DSparkEngine(plain.target, plain.drafter, plain.config)
    engine.use_graphs(ReplayedCapture)
    generation = engine.generate(prompts, params)
    assert [output.token_ids for output in generation.outputs] == [
        output.token_ids for output in expected.outputs
    ]
    (runner,) = engine.target_graphs.runners.values()
    assert runner.sizes == cudagraph_sizes(3, engine.most_drafts)
    capture = runner.capture
    assert 0 < capture.captures <= len(runner.sizes) and capture.replays > 5
    drafts = engine.draft_graphs.runners
    assert set(drafts) == {(5, "probabilistic")} and set(drafts[5, "probabilistic"].captured) <= {
        1,
        2,
        3,
        4,
    }


def test_a_drafter_whose_graphs_share_memory_with_the_targets_is_noticed(serve, prompts):
    """Its drafts are read after the target's pass."""
    params = SamplingParams(temperature=0.9, seed=3, max_new_tokens=30)
    plain = serve(max_requests=3)
    engine = DSparkEngine(plain.target, plain.drafter, plain.config)
    shared = ReplayedCapture()
    engine.use_graphs(lambda: shared)
    wanted = [output.token_ids for output in plain.generate(prompts, params).outputs]
    assert [output.token_ids for output in engine.generate(prompts, params).outputs] != wanted


@pytest.mark.filterwarnings("ignore:.*the table is flat")
def test_a_cost_table_of_graphs_has_their_sizes(serve):
    engine = serve(max_requests=3)
    capture = ReplayedCapture()
    engine.use_graphs(lambda: capture)
    graphs = engine.target_graphs, engine.draft_graphs
    table = profile_step(engine.target, engine.drafter, engine.num_drafts, graphs=graphs)
    assert table.rows == [1, 2, 4, 8, 16, 18] and table.interpolation == "step"
    assert table.linear_above == 18
    replays = 6 * (len(table.rows) + len(table.request_rows))
    assert (capture.captures, capture.replays) == (6 + 3, replays)


class Owner:
    pass


@pytest.mark.parametrize(
    ("capturable", "graphs", "expected"),
    [
        (None, None, "Owner does not say that it can be captured"),
        (True, None, None),
        (False, None, "Owner does not say that it can be captured"),
        (None, True, None),
        (False, True, "Owner does not say that it can be captured"),
        (True, False, "graphs=False"),
    ],
)
def test_what_is_captured(capturable, graphs, expected):
    owner = Owner()
    if capturable is not None:
        owner.capturable = capturable
    assert not_captured(owner, torch.device("cuda"), graphs) == expected
    assert not_captured(owner, torch.device("cpu"), graphs) == "the target is on cpu"
    if capturable is False:
        owner.capture_obstacle = "it reads"
        assert not_captured(owner, torch.device("cuda"), graphs) == "it reads"


def test_a_drafter_may_be_left_out(serve):
    engine = serve(max_requests=2)
    engine.use_graphs(ReplayedCapture, drafts=False)
    assert engine.target_graphs is not None and engine.draft_graphs is None
    assert engine.run_drafter is engine.drafter


def test_what_is_not_captured_on_a_gpu_is_logged_with_the_reason(serve, monkeypatch, caplog):
    engine = serve()
    monkeypatch.setattr("dspark_ext.engine.engine.device_of", lambda _: torch.device("cuda"))
    monkeypatch.setattr(engine.target, "capture_obstacle", "it reads", raising=False)
    monkeypatch.setattr(engine.target, "capturable", False, raising=False)
    found = DSparkEngine(engine.target, engine.drafter).not_captured
    assert found["target"] == "it reads"
    assert "passes of the target run without graphs: it reads" in caplog.text


def test_graphs_need_a_gpu(serve):
    engine = serve()
    assert engine.target_graphs is None
    assert engine.not_captured == dict.fromkeys(("target", "drafter"), "the target is on cpu")
    with pytest.raises(ValueError, match="graphs: expected a target on a GPU, got cpu"):
        DSparkEngine(engine.target, engine.drafter, graphs=True)
