"""The benchmarks of whole generation and those beside peers run, and judge what they time."""

import contextlib
import json
import pathlib
import sys

import pytest
import torch

BENCH = pathlib.Path(__file__).parents[2] / "bench"
sys.path += [str(BENCH), str(BENCH / "compare")]

import bench_generation  # noqa: E402
import draws  # noqa: E402
import generation_profile  # noqa: E402
import generation_runs  # noqa: E402
import harness  # noqa: E402
import layers  # noqa: E402
import rejection  # noqa: E402
import routing  # noqa: E402
import turns  # noqa: E402
import whole_loop  # noqa: E402

from dspark_ext.integrations import flashinfer, sglang, vllm  # noqa: E402


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The threads of a benchmark are its own, and no large copy is timed."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(harness, "copy_bandwidth", lambda: 1e9)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """(header, rows, the Markdown, the size of the picture) of a quick run."""
    folder = tmp_path_factory.mktemp("generation")
    files = [folder / name for name in ("out.json", "out.md", "out.png")]
    with contextlib.redirect_stdout(None), pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "copy_bandwidth", lambda: 1e9)
        bench_generation.main(
            ["--quick", "--concurrency", "1,3", "--weights", "fp32", "--tokens", "9"]
            + [f"--json={files[0]}"]  # the others beside it
        )
    facts, *rows = map(json.loads, files[0].read_text().splitlines())
    return facts, rows, files[1].read_text(), files[2].stat().st_size


def test_every_way_is_measured_at_every_load(generated):
    facts, rows, text, size = generated
    assert facts["pair"] == "tiny" and facts["clock"] == "processor"
    for kind in ("generation", "step"):
        found = {
            (row["temperature"], row["concurrency"], row["way"])
            for row in rows
            if row["kind"] == kind
        }
        assert found == {
            (temperature, load, way)
            for temperature in (0.0, 0.8)
            for load in (1, 3)
            for way in generation_runs.WAYS
        }
    assert text.count("\n| 3 |") == 2 * 5 and size > 10_000  # a line for each


def test_counts_of_ways_add_up(generated):
    _, rows, *_ = generated
    for row in (row for row in rows if row["kind"] == "generation"):
        assert row["tokens"] == 8 * 9 and row["requests"] == 8
        if row["way"] == "plain":
            assert row["tokens_per_pass"] == 1 and row["drafts_per_pass"] == 0
            assert row["phases"].get("draft", 0.0) == 0
        else:
            assert 1 < row["tokens_per_pass"] <= 1 + row["drafts_per_pass"]
        assert sum(row["phases"].values()) == pytest.approx(1)
        assert all(share >= 0 for share in row["phases"].values())


def test_parts_of_a_step_are_told_apart(generated):
    _, rows, *_ = generated
    profiled = [row for row in rows if "parts" in row]
    assert {row["way"] for row in profiled} == set(bench_generation.PROFILED)
    for row in profiled:
        parts = {(part["phase"], part["part"]): part for part in row["parts"]}
        assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
        drafted = row["way"] != "plain"
        assert (("draft", "linear") in parts) == drafted
        # four layers of four products each, and the head
        assert parts["verify", "linear"]["calls"] == 17 * row["profiled_steps"]
        assert parts["rejection", "rejection_sample"]["calls"] == row["profiled_steps"]


def test_a_way_that_writes_other_text_is_no_result():
    lane = generation_runs.Lane.__new__(generation_runs.Lane)
    lane.name, lane.concurrency, lane.outputs = "fixed 2", 4, {0: [1, 2], 1: [3, 5]}
    generation_runs.check_equal(lane, {0: [1, 2]}, "plain decoding")
    with pytest.raises(AssertionError, match="fixed 2, 4 at once.*request 1 differ from plain"):
        generation_runs.check_equal(lane, {1: [3, 4]}, "plain decoding")


def test_wrapped_functions_are_what_they_were():
    class Owner:
        def method(self):
            return 1

    owner, clock = Owner(), generation_profile.PhaseClock()
    with generation_profile.wrapped(owner, "method", "draft", clock):
        assert owner.method() == 1 and "method" in vars(owner)
    assert "method" not in vars(owner) and list(clock.seconds) == ["draft"]


# ---- beside peers -------------------------------------------------------------------------------


def run(module, tmp_path, *options) -> tuple[dict, list[dict]]:
    file = tmp_path / "rows.json"
    with contextlib.redirect_stdout(None):
        turns.main(module.__doc__, module.works, ["--repeats", "1", f"--json={file}", *options])
    facts, *rows = map(json.loads, file.read_text().splitlines())
    return facts, rows


@pytest.mark.parametrize(
    ("module", "changes", "peers"),
    [
        (rejection, {"SHAPES": ((2, 500),)}, {"vllm V2 Triton", "sglang Triton", "flashinfer"}),
        (draws, {"SHAPES": ((2, 500),)}, {"flashinfer"}),
        (routing, {"ROUTERS": ((5, 64, 2),), "LAYERS": ((5, 8, 2, 64),)}, {"vllm moe_permute"}),
        (layers, {"ROWS": (3,), "LINEARS": ((64, 96),)}, set()),
    ],
)
def test_a_comparison_runs_and_names_absent_peers(module, changes, peers, tmp_path, monkeypatch):
    for name, value in changes.items():
        monkeypatch.setattr(module, name, value)
    facts, rows = run(module, tmp_path)
    assert rows and all({"dspark_ext"} < set(row["us"]) for row in rows)
    assert {name: facts["skipped"].get(name) for name in peers} == dict.fromkeys(
        peers, "runs on a GPU only"
    )


def test_a_contender_that_is_wrong_is_not_timed():
    def make_inputs(device):
        return (torch.arange(3.0),)

    wrong = turns.Contender("wrong", lambda: lambda x: x + 1)
    right = turns.Contender("dspark_ext", lambda: lambda x: x, ours=True)
    work = turns.Work("copy", make_inputs, [right, wrong], turns.close(1e-3))
    with pytest.raises(AssertionError, match="copy: wrong: relative error"):
        turns.measure(work, "cpu", 1, {})


def test_blocks_of_another_law_are_seen():
    """A rule that accepts every draft."""
    inputs = rejection.small_block_inputs("cpu")
    expected = rejection.ours("token")()(*inputs)
    last = torch.zeros(len(expected), 1, dtype=torch.long)
    with pytest.raises(AssertionError, match="another law than ours"):
        rejection.same_law(expected, torch.cat([inputs[3], last], 1))


@pytest.mark.parametrize(
    "adapted",
    [
        rejection.as_vllm_v2(vllm.rejection_sample_v2, False),
        rejection.as_sglang(sglang.chain_speculative_sampling),
        rejection.as_flashinfer(flashinfer.chain_speculative_sampling),
    ],
    ids=["vllm", "sglang", "flashinfer"],
)
def test_peers_of_a_gpu_are_called_as_they_are_defined(adapted):
    """By this package's functions of the same arguments."""
    inputs = rejection.small_block_inputs("cpu")
    rejection.same_law(rejection.ours("token")()(*inputs), adapted(*inputs))


def test_the_block_rule_of_vllm_is_called_as_it_is_defined():
    inputs = rejection.small_block_inputs("cpu")
    adapted = rejection.as_vllm_v2(vllm.rejection_sample_v2, True)
    rejection.same_law(rejection.ours("block")()(*inputs), adapted(*inputs))


def test_the_whole_loop_is_compared(tmp_path):
    file = tmp_path / "rows.json"
    with contextlib.redirect_stdout(None):
        whole_loop.main(["--quick", f"--json={file}"])
    facts, *rows = map(json.loads, file.read_text().splitlines())
    greedy = {row["contender"]: row for row in rows if row["temperature"] == 0}
    ours = ("dspark_ext, plain", "dspark_ext, ngram", "dspark_ext, DSpark")
    assert all(greedy[name]["equal_texts"] == 2 for name in ours)
    assert "transformers, prompt lookup" in greedy and len(rows) == 2 * len(greedy)
    assert all(name.startswith("vllm") for name in facts["skipped"])
