"""Settings, schedules and the data of a step; what is refused and how."""

import dataclasses
import io
import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from dspark_ext.demo import tiny


def test_every_finding_is_named():
    from drafter_training.settings import Settings, SettingsError

    with pytest.raises(SettingsError) as caught:
        Settings(steps=0, gamma=0.0, loss="mse", optimizer="sgd", average_decay=1.0, seed=-1)
    for finding in (
        "steps: expected at least 1, got 0",
        "gamma: expected a number above 0, got 0.0",
        "loss: expected one of paper, kl-tv, got 'mse'",
        "optimizer: expected one of muon, adamw, got 'sgd'",
        "average_decay: expected a number in [0, 1), got 1.0",
        "seed: expected at least 0, got -1",
    ):
        assert finding in str(caught.value)
    with pytest.raises(SettingsError, match="ce_share and tv_share"):
        Settings(ce_share=0.0, tv_share=0.0)
    Settings(ce_share=0.0, tv_share=0.0, loss="kl-tv")


def test_schedules():
    from drafter_training.settings import Settings

    settings = Settings(steps=100, learning_rate=1.0, warmup_steps=10, decay_share=0.2)
    rates = [settings.learning_rate_at(step) for step in range(100)]
    assert rates[0] == 0.1 and rates[9:81] == [1.0] * 72
    assert rates[90] == pytest.approx(0.5) and rates[99] == pytest.approx(0.05)
    assert rates[:10] == sorted(rates[:10]) and rates[80:] == sorted(rates[80:], reverse=True)
    flat = Settings(steps=100, learning_rate=1.0, warmup_steps=0, decay_share=0.0)
    assert [flat.learning_rate_at(step) for step in range(100)] == [1.0] * 100
    assert settings.shares_at(0) == settings.shares_at(99) == (0.1, 0.0, 0.9)
    moving = Settings(steps=100, loss="kl-tv")
    assert moving.shares_at(0) == (0.0, 1.0, 0.0)
    assert moving.shares_at(35) == pytest.approx((0.0, 0.55, 0.45))
    assert moving.shares_at(70) == moving.shares_at(99) == pytest.approx((0.0, 0.1, 0.9))


def test_a_batch_depends_on_seed_and_step_alone(folders):
    from drafter_training.samples import Samples
    from drafter_training.settings import Settings

    settings = Settings(rows_per_step=5, anchors_per_row=4, seed=2)
    samples = Samples(folders[0])
    batches = [samples.batch(step, settings, 5) for step in range(40)]
    again = Samples(folders[0])
    for step in (39, 0, 17, 16):
        found = again.batch(step, settings, 5)
        for name, value in vars(batches[step]).items():
            assert torch.equal(getattr(found, name), value), (step, name)
    other = again.batch(0, Settings(rows_per_step=5, anchors_per_row=4, seed=3), 5)
    assert not torch.equal(other.anchor_positions, batches[0].anchor_positions)


def test_every_row_comes_once_before_any_comes_again(folders):
    from drafter_training.samples import Samples

    samples = Samples(folders[0])
    count = len(samples.index)
    for epoch in (0, 1):
        seen = [samples._row(epoch * count + i, seed=4)["start"] for i in range(count)]
        assert sorted(seen) == sorted(chunk.row(i)["start"] for chunk, i in samples.index)


def test_anchors_and_targets_of_a_batch(folders):
    """Against the rows on disk."""
    from drafter_training.samples import Samples, collate

    samples = Samples(folders[0])
    row = samples.index[3][0].row(samples.index[3][1])
    length = row["length"]
    anchors = [row["response_start"], length - 3, length - 1]
    batch = collate([row], torch.tensor([anchors]), 4)
    assert batch.features.shape == (1, length - 1, samples.num_features)
    assert torch.equal(batch.features[0], row["features"][: length - 1])
    assert batch.valid[0].tolist() == [[True] * 4, [True] * 3 + [False], [True] + [False] * 3]
    for anchor, tokens, hidden, lse, valid in zip(
        anchors, batch.token_ids[0], batch.target_hidden[0], batch.target_logsumexp[0],
        batch.valid[0],
    ):  # fmt: skip
        count = int(valid.sum())
        assert torch.equal(tokens[: count + 1], row["tokens"][anchor : anchor + count + 1])
        assert torch.equal(hidden[:count], row["hidden"][anchor : anchor + count])
        assert torch.equal(lse[:count], row["logsumexp"][anchor : anchor + count])


def test_shapes(target):
    from targets import Shape

    from dspark_ext.draft_head import ConfigError

    assert target.head_config("compact", Shape()) == tiny.draft_config()
    config = target.head_config("qwen3", Shape(layers=3, markov_head="rnn", block_size=7))
    assert (config.num_layers, config.markov_head_type, config.trained_drafts) == (3, "rnn", 7)
    for shape, message in (
        (Shape(draft_vocabulary=257), "draft_vocabulary: expected at most 256, got 257"),
        (Shape(markov_rank=0), "markov_rank: expected at least 1, got 0"),
        (Shape(layers=-1), "layers: expected at least 1, got -1"),
        (Shape(markov_head="gated"), "a compact head has a vanilla one, got 'gated'"),
    ):
        with pytest.raises(ConfigError, match=message):
            target.head_config("compact", shape)
    with pytest.raises(ConfigError, match="markov_head_type: expected one of"):
        target.head_config("qwen3", Shape(markov_head="lstm"))
    with pytest.raises(ConfigError, match="flavour: expected compact or qwen3, got 'gemma4'"):
        target.head_config("gemma4", Shape())


def test_the_command_says_what_is_wrong(tmp_path, folders, capsys):
    import train_drafter

    data = ["--target", "tiny", "--data", str(folders[0]), "--held-out", str(folders[1])]
    out = ["--out", str(tmp_path / "run")]

    def refusal(*arguments):
        with pytest.raises(SystemExit) as caught:
            train_drafter.main(["train", *data, *out, *arguments])
        return str(caught.value) if caught.value.code != 2 else capsys.readouterr().err

    assert "gamma: expected a number above 0" in refusal("--gamma", "0")
    assert "report_every: expected at least 1, got 0" in refusal("--report-every", "0")
    assert "a compact head has a vanilla one" in refusal("--markov-head", "rnn")
    assert "No such file" in refusal("--resume")
    assert "invalid choice: 'mse'" in refusal("--loss", "mse")
    assert "no samples" in refusal("--data", str(tmp_path))
    assert "none" in refusal("--init", str(tmp_path / "none"))
    assert not (tmp_path / "run/log.jsonl").exists()


def test_other_features_than_the_head_reads(begin, tmp_path):
    from drafter_training.loop import Run
    from drafter_training.settings import Settings, SettingsError

    trainee, samples, _ = begin("compact")
    trainee.head.main_proj = torch.nn.Linear(256, 128, bias=False)
    with pytest.raises(SettingsError, match="rows of 384 features, the head reads 256"):
        Run(trainee, samples, Settings())


def test_heads_that_cannot_be_trained():
    import draft_heads
    from drafter_training.settings import SettingsError
    from drafter_training.trainees import make_trainee

    for name in ("v41", "v4", "gemma4", "qwen3-1+K", "qwen3-dflash"):
        with pytest.raises(SettingsError):
            make_trainee(draft_heads.make(draft_heads.CONFIGS[name]))


def test_the_draft_vocabulary_is_what_occurs_most(begin):
    from drafter_training.start import choose_draft_vocabulary

    counts = torch.tensor([3, 0, 9, 3, 0, 1])
    assert choose_draft_vocabulary(counts, 3).tolist() == [0, 2, 3]
    assert choose_draft_vocabulary(counts, 5).tolist() == [0, 1, 2, 3, 5]
    for flavour in ("compact", "qwen3"):
        trainee, samples, _ = begin(flavour, draft_vocabulary=20)
        ids = trainee.draft_token_ids
        counts = samples.token_counts(256)
        left_out = torch.ones(256, dtype=torch.bool).scatter_(0, ids, False)
        assert counts[ids].min() >= counts[left_out].max() and counts[ids].min() > 0
        assert torch.equal(trainee.draft_ids(ids), torch.arange(20))
        assert (trainee.draft_ids(left_out.nonzero()[:, 0]) == -1).all()


def test_the_log_has_one_object_per_line(tmp_path):
    from drafter_training.report import Report

    (tmp_path / "log.jsonl").write_text('{"event": "start"}\n{"event": "rep')  # killed there
    report = Report(tmp_path, 10)
    report.log("report", step=3, loss=0.123456789, accept=[0.5, 1 / 3], more={"a": 2 / 3})
    first, line = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert first == {"event": "start"}
    assert line.pop("time") > 0
    assert line == {
        "event": "report", "step": 3, "loss": 0.12346, "accept": [0.5, 0.33333],
        "more": {"a": 0.66667},
    }  # fmt: skip


def test_the_commands_of_the_documentation():
    """They are understood, and name every setting that there is."""
    import train_drafter
    from drafter_training.loop import Pace
    from drafter_training.settings import Settings
    from targets import Shape

    page = (Path(__file__).parents[2] / "docs/training.md").read_text(encoding="utf-8")
    blocks = "".join(page.split("```")[1::2]).replace("\\\n", " ")
    commands = [shlex.split(line) for line in blocks.splitlines() if "train_drafter.py" in line]
    assert len(commands) == 8
    kinds = {train_drafter.parse_arguments(command[2:]).run.__name__ for command in commands}
    assert kinds == {"run_sample", "run_train", "run_evaluate"}
    for kind in (Settings, Pace, Shape):
        for field in dataclasses.fields(kind):
            assert f"--{field.name.replace('_', '-')}" in page, field.name


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_bar_says_everything_at_any_width(tmp_path, width):
    from drafter_training.report import Report
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    means = {"loss": 1.25, "ce": 2.5, "tv": 0.5, "confidence": 0.625, "accept": [0.5, 0.25]}
    with Report(tmp_path, 40, console) as report:
        report.advance(10, means, tokens_per_second=1234.0, left=3725.0)
    shown = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).split())
    for part in ("10/40", "1:02:05 left", "loss 1.250", "ce 2.500", "tv 0.500", "confidence 0.625",
                 "accept .50 .25", "1234 tokens/s"):  # fmt: skip
        assert part in shown
