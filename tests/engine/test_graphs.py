"""Passes from graphs. The graph is a recorded stand-in: replaying it runs the recorded function on
the buffers of its capture and writes into the tensors that the capture returned, as on a GPU."""

import pytest
import torch

from dspark_ext.engine import DSparkEngine, SamplingParams, TargetBatch, profile_step
from dspark_ext.engine.graphs import GraphRunner, TargetGraphs
from dspark_ext.verify import cudagraph_sizes


class RecordedCapture:
    def __init__(self):
        self.captures = 0
        self.replays = 0

    def __call__(self, run):
        self.captures += 1
        outputs = run()

        def replay():
            self.replays += 1
            for kept, new in zip(outputs, run()):
                if kept is not None:
                    kept.copy_(new)

        return replay, outputs


def double(rows, more):
    return rows * 2, None, more[:, None] - rows[:, None]


def test_rows_are_padded_to_the_next_size_by_the_last_row():
    seen = []

    def function(rows, more):
        seen.append((rows.tolist(), more.tolist()))
        return double(rows, more)

    runner = GraphRunner(function, [8, 2, 4], RecordedCapture())
    assert runner.sizes == [2, 4, 8] and runner.size_for(3) == 4 and runner.size_for(9) is None
    rows, more = torch.tensor([1, 2, 3]), torch.tensor([5, 6, 7])
    first, nothing, last = runner(rows, more)
    assert seen[-1] == ([1, 2, 3, 3], [5, 6, 7, 7]) and runner.captured == [4]
    assert first.tolist() == [2, 4, 6] and nothing is None
    assert last.tolist() == [[4], [4], [4]]
    assert runner(rows[:2] + 4, more[:2])[0].tolist() == [10, 12]
    assert runner.captured == [2, 4]


def test_a_graph_is_captured_once_and_overwrites_its_results():
    capture = RecordedCapture()
    runner = GraphRunner(lambda rows: (rows + 1,), [4], capture)
    before = runner(torch.tensor([1, 2, 3]))[0]
    after = runner(torch.tensor([7, 8, 9, 10]))[0]
    assert (capture.captures, capture.replays) == (1, 2)
    assert before.tolist() == [8, 9, 10] and after.tolist() == [8, 9, 10, 11]


def test_passes_that_fit_no_size_run_as_they_are():
    capture = RecordedCapture()
    runner = GraphRunner(lambda rows: (rows + 1,), [2], capture)
    assert runner(torch.arange(5))[0].tolist() == [1, 2, 3, 4, 5]
    assert runner(torch.arange(0))[0].tolist() == []
    assert capture.captures == 0


def test_prompt_rows_are_not_captured(serve):
    target = serve().target
    capture = RecordedCapture()
    graphs = TargetGraphs(target, [4], capture)
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
    capture = RecordedCapture()
    engine.use_graphs(capture)
    generation = engine.generate(prompts, params)
    assert [output.token_ids for output in generation.outputs] == [
        output.token_ids for output in expected.outputs
    ]
    runner = engine.target_graphs.runner
    assert runner.sizes == cudagraph_sizes(3, engine.most_drafts)
    assert 0 < capture.captures <= len(runner.sizes) + 3 and capture.replays > 10
    drafts = engine.draft_graphs.runners
    assert set(drafts) == {(5, "probabilistic")} and set(drafts[5, "probabilistic"].captured) <= {
        1,
        2,
        3,
        4,
    }


@pytest.mark.filterwarnings("ignore:.*the table is flat")
def test_a_cost_table_of_graphs_has_their_sizes(serve):
    engine = serve(max_requests=3)
    capture = RecordedCapture()
    engine.use_graphs(capture)
    graphs = engine.target_graphs, engine.draft_graphs
    table = profile_step(engine.target, engine.drafter, engine.num_drafts, graphs=graphs)
    assert table.rows == [1, 2, 4, 8, 16, 18] and table.interpolation == "step"
    assert table.linear_above == 18
    replays = 6 * (len(table.rows) + len(table.request_rows))
    assert (capture.captures, capture.replays) == (6 + 3, replays)


class OnGpu:
    """Where the engine is asked what it would capture on a GPU."""

    device = torch.device("cuda")


@pytest.mark.parametrize(
    ("capturable", "graphs", "expected"),
    [
        (None, None, False),
        (True, None, True),
        (False, None, False),
        (None, True, True),
        (False, True, False),
        (True, False, False),
    ],
)
def test_what_is_captured(capturable, graphs, expected):
    owner = OnGpu()
    if capturable is not None:
        owner.capturable = capturable
    assert DSparkEngine._captures(OnGpu, owner, graphs) == expected


def test_a_drafter_may_be_left_out(serve):
    engine = serve(max_requests=2)
    engine.use_graphs(RecordedCapture(), drafts=False)
    assert engine.target_graphs is not None and engine.draft_graphs is None
    assert engine.run_drafter is engine.drafter


def test_graphs_need_a_gpu(serve):
    engine = serve()
    assert engine.target_graphs is None
    with pytest.raises(ValueError, match="graphs: expected a target on a GPU, got cpu"):
        DSparkEngine(engine.target, engine.drafter, graphs=True)
