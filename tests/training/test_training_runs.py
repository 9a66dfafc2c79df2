"""From samples to a drafter that the engine serves, for both flavours."""

import json

import pytest
import torch

from dspark_ext.demo import tiny
from dspark_ext.draft_head import Qwen3DraftHead, load_draft_head, read_config
from dspark_ext.draft_head.compact import CompactDraftHead
from dspark_ext.engine import (
    DSparkDrafter,
    DSparkEngine,
    HeadDrafter,
    HuggingFaceTarget,
    SamplingParams,
    output_taps,
)

STEPS = 40
RUNS = {
    "compact": ["--flavour", "compact"],
    "compact-kl-tv": ["--flavour", "compact", "--loss", "kl-tv"],
    "qwen3": ["--flavour", "qwen3", "--layers", "1"],
    "qwen3-gated": ["--flavour", "qwen3", "--layers", "1", "--markov-head", "gated"],
    "qwen3-rnn": [
        "--flavour", "qwen3", "--layers", "1", "--markov-head", "rnn", "--draft-vocabulary", "256"
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(folders, tmp_path_factory):
    """trained(name) -> the folder of the run, made once."""
    import train_drafter

    made = {}

    def make(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("runs") / name
            train_drafter.main([
                "train", "--target", "tiny", "--data", str(folders[0]), "--held-out",
                str(folders[1]), "--out", str(made[name]), "--steps", str(STEPS),
                "--anchors-per-row", "24", "--report-every", "5", "--evaluate-every", "20",
                "--learning-rate", "4e-3", "--seed", "1", "--warmup-steps", "10", *RUNS[name],
            ])  # fmt: skip
        return made[name]

    return make


def served(model, path):
    """An engine with the drafter of a file."""
    head = load_draft_head(path, dtype=torch.float32)
    if isinstance(head, CompactDraftHead):
        taps, drafter = head.config.dspark_target_layer_ids, DSparkDrafter
    else:
        taps, drafter = output_taps(head.config), HeadDrafter
    target = HuggingFaceTarget(model, taps, max_requests=3, max_len=96)
    return DSparkEngine(target, drafter.for_target(head, target), tokenizer=tiny)


@pytest.mark.parametrize("name", RUNS)
def test_the_loss_falls_and_the_text_is_the_targets(trained, target, name):
    folder = trained(name)
    with (folder / "log.jsonl").open() as file:
        lines = [json.loads(line) for line in file]
    reports = [line for line in lines if line["event"] == "report"]
    assert [line["step"] for line in reports] == list(range(5, STEPS + 1, 5))
    first, last = reports[0], reports[-1]
    assert last["ce"] < first["ce"] - 1.0
    assert last["tv"] < first["tv"] - 0.25
    if name != "compact-kl-tv":  # there the mixture itself changes
        assert last["loss"] < first["loss"] - 0.4
    assert len(last["accept"]) == 5 and last["accept"][0] > first["accept"][0] + 0.2
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["finished"] and summary["step"] == STEPS
    assert summary["held_out"]["tau_t1"] > 1.7  # 1 without a drafter

    engine = served(target.model, folder / summary["drafter"])
    prompts = [tiny.encode(text) for text in tiny.PROMPTS]
    params = SamplingParams(temperature=0.0, max_new_tokens=40)
    drafted = engine.generate(prompts, params)
    plain = engine.generate(prompts, params, speculative=False)
    assert [o.token_ids for o in drafted.outputs] == [o.token_ids for o in plain.outputs]
    assert drafted.stats.tokens_per_pass > 1.4


@pytest.mark.parametrize("name", RUNS)
def test_the_file_has_the_averaged_weights(trained, begin, name):
    from safetensors.torch import load_file

    folder = trained(name)
    flavour, *_ = name.split("-")
    head = load_draft_head(
        folder / ("drafter.safetensors" if flavour == "compact" else "drafter"),
        dtype=torch.float32,
    )
    state = load_file(folder / "checkpoint.safetensors")
    averages = {
        key.removeprefix("average."): value
        for key, value in state.items()
        if key.startswith("average.")
    }
    found = dict(head.named_parameters())
    wanted = {"embed_tokens.weight", "lm_head.weight"}
    assert averages.keys() == found.keys() - wanted
    for key, value in averages.items():
        # fp8 of rows: 1/16 of the value, or of what the row's largest leaves for small ones.
        close = (1 / 16, value.abs().max() / 448) if flavour == "compact" else (1 / 256, 0.0)
        torch.testing.assert_close(found[key], value, rtol=close[0], atol=float(close[1]))
        assert not torch.equal(value, state[f"head.{key}"]), key  # every weight has moved
    if flavour == "qwen3":
        config = json.loads((folder / "drafter/config.json").read_text())
        assert read_config(config) == head.config and type(head) is Qwen3DraftHead
        assert config["architectures"] == ["Qwen3DSparkModel"]
        names = load_file(folder / "drafter/model.safetensors").keys()
        assert {"fc.weight", "markov_head.markov_w1.weight", "confidence_head.proj.bias"} <= names
        assert not names & {"embed_tokens.weight", "lm_head.weight"}
        assert ("d2t" in names) == (head.config.draft_vocab_size < 256)


def test_the_same_seed_gives_the_same_weights(begin, tmp_path):
    from drafter_training.loop import Pace, train
    from drafter_training.settings import Settings
    from safetensors.torch import load_file

    def run(name, seed, **pace):
        settings = Settings(steps=4, rows_per_step=2, anchors_per_row=4, seed=seed)
        train(*begin("qwen3"), tmp_path / name, settings, Pace(**pace))
        return load_file(tmp_path / name / "checkpoint.safetensors")

    one, two, other = run("a", 1), run("b", 1, report_every=1, evaluate_every=2), run("c", 2)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one["head.fc.weight"], other["head.fc.weight"])


def test_the_evaluation(trained, folders, target):
    from drafter_training import start
    from drafter_training.evaluation import evaluate
    from drafter_training.samples import Samples

    trainee = start.load_trainee(trained("qwen3") / "drafter", target.model)
    held_out = Samples(folders[1])

    def measure(**keywords):
        return evaluate(trainee, held_out, precision="fp32", **keywords)

    found = measure(groups=lambda row: f"T={row['temperature']}")
    assert set(found) == {"all", "T=0.0", "T=0.7", "T=1.0"}
    assert found["all"]["tau_greedy"] == found["T=0.0"]["tau_greedy"]
    assert found["all"]["confidence_mae"] < 0.5
    pieces = measure(anchors_at_once=7)
    assert pieces["tau_greedy"] == found["all"]["tau_greedy"]
    assert pieces["tau_t1"] == pytest.approx(found["all"]["tau_t1"], abs=2e-4)


def test_the_greedy_walk_is_that_of_drafting(trained, folders, target):
    """Along one greedy row, block after block by the served head."""
    from drafter_training import start
    from drafter_training.evaluation import evaluate
    from drafter_training.samples import Samples

    trainee = start.load_trainee(trained("qwen3") / "drafter", target.model)
    held_out = Samples(folders[1])
    held_out.index = [
        (chunk, i) for chunk, i in held_out.index if chunk.rows[i]["temperature"] == 0
    ][:1]
    found = evaluate(trainee, held_out, precision="fp32")["tau_greedy"]
    row = held_out.index[0][0].row(held_out.index[0][1])
    head, tokens, end = trainee.head, row["tokens"].tolist(), row["length"]
    head.allocate_context(1, 128)
    zero = torch.tensor([0])
    head.append(row["features"].float(), torch.arange(end), zero.expand(end))
    position, emitted, passes = row["response_start"], 0, 0
    while position < end:
        anchor, place = torch.tensor([tokens[position]]), torch.tensor([position])
        block = head.draft(anchor, place, zero, temperature=0.0, seeds=0).token_ids[0].tolist()
        run = 0
        while run < 5 and position + run < end and block[run] == tokens[position + run + 1]:
            run += 1
        emitted += min(run + 1, end - position)
        passes += 1
        position += run + 1
    assert passes < emitted
    assert found == pytest.approx(emitted / passes, abs=1e-4)


@pytest.mark.parametrize("flavour", ["compact", "qwen3"])
def test_another_runs_weights_and_another_draft_vocabulary(trained, target, begin, flavour):
    from drafter_training import start
    from drafter_training.settings import SettingsError

    name = "compact" if flavour == "compact" else "qwen3"
    file = trained(name) / ("drafter.safetensors" if flavour == "compact" else "drafter")
    shape = {"layers": 1} if flavour == "qwen3" else {}
    trainee, _, _ = begin(flavour, draft_vocabulary=60, **shape)
    other = start.load_trainee(file, target.model)
    start.continue_from(trainee, file, target.model)
    mine, theirs = trainee.parameters(), other.parameters()
    w2 = trainee.w2
    rows = other.draft_ids(trainee.draft_token_ids)
    assert len(rows) == 60 and (rows >= 0).all()
    assert torch.equal(w2, other.w2[rows])
    for key in mine.keys() - {"markov_w1", "markov_w2", "markov_head.markov_w2.weight"}:
        assert torch.equal(mine[key], theirs[key]), key
    if flavour == "compact":
        assert torch.equal(mine["markov_w1"][:-1], theirs["markov_w1"][rows])
        assert torch.equal(mine["markov_w1"][-1], theirs["markov_w1"][-1])
    begun, _, _ = begin(flavour, markov_rank=8, **shape)
    with pytest.raises(SettingsError, match="markov_w1.* for .*8"):
        start.continue_from(begun, file, target.model)
