"""A run that was killed continues to the same weights, bit for bit."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
STEPS = 14
TIMES = {"time", "seconds", "seconds_left", "tokens_per_second", "minutes"}


class Killed(BaseException):
    """As sudden as a test can be without ending itself."""


@pytest.fixture
def run(begin, tmp_path):
    """run(folder, flavour, pace, **keywords) -> summary, with weights from the first step on."""
    from drafter_training.loop import Pace, train
    from drafter_training.settings import Settings

    def go(name, flavour="compact", *, pace=None, resume=False, shape=None, **settings):
        chosen = {
            "steps": STEPS, "rows_per_step": 2, "anchors_per_row": 6, "warmup_steps": 4, **settings
        }  # fmt: skip
        pace = {"checkpoint_minutes": 0.0, "report_every": 4, **(pace or {})}
        trained = begin(flavour, **(shape or {}))
        return train(*trained, tmp_path / name, Settings(**chosen), Pace(**pace), resume=resume)

    return go


def state(folder):
    return load_file(folder / "checkpoint.safetensors")


def log(folder):
    with (folder / "log.jsonl").open() as file:
        return [json.loads(line) for line in file]


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def kill_at(monkeypatch, step, keep=None):
    """The run dies at the beginning of `step`; `keep`: (step, checkpoint, copy of it then)."""
    from drafter_training.samples import Samples

    batch = Samples.batch

    def dying(self, at, *rest):
        if keep and at == keep[0]:
            shutil.copyfile(keep[1], keep[2])
        if at == step:
            raise Killed
        return batch(self, at, *rest)

    monkeypatch.setattr(Samples, "batch", dying)


@pytest.mark.parametrize(
    ("flavour", "settings"),
    [
        ("compact", {}),
        ("compact", {"loss": "kl-tv", "optimizer": "adamw", "precision": "fp32"}),
        ("qwen3", {}),
        ("qwen3", {"loss": "kl-tv", "optimizer": "adamw", "precision": "fp32"}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(map(str, value.values())),
)
def test_a_killed_run_ends_as_if_it_had_not_been(run, tmp_path, monkeypatch, flavour, settings):
    whole = run("whole", flavour, **settings)
    killed = tmp_path / "killed"
    old = tmp_path / "old.safetensors"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, 9, keep=(5, killed / "checkpoint.safetensors", old))
        run("killed", flavour, **settings)
    os.replace(old, killed / "checkpoint.safetensors")  # the last one was four steps before
    summary = run("killed", flavour, resume=True, **settings)
    assert summary["finished"] and summary["step"] == whole["step"] == STEPS
    assert {k: v for k, v in summary.items() if k not in TIMES} == {
        k: v for k, v in whole.items() if k not in TIMES
    }
    assert_same(state(killed), state(tmp_path / "whole"))
    reports = [
        {line["step"]: {k: v for k, v in line.items() if k not in TIMES}
         for line in log(folder) if line["event"] == "report"}
        for folder in (killed, tmp_path / "whole")
    ]  # fmt: skip
    assert reports[0] == reports[1] and list(reports[1]) == [4, 8, 12]
    drafters = [
        {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("drafter*/*"))}
        | {p.name: load_file(p) for p in folder.glob("drafter.safetensors")}
        for folder in (killed, tmp_path / "whole")
    ]
    if flavour == "compact":
        assert_same(*(each["drafter.safetensors"] for each in drafters))
    else:
        assert drafters[0] == drafters[1] and len(drafters[0]) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_ends_the_step_and_can_be_continued(run, tmp_path, monkeypatch, number):
    from drafter_training.samples import Samples

    before = signal.getsignal(number)
    batch = Samples.batch

    def interrupted(self, at, *rest):
        if at == 6:
            os.kill(os.getpid(), number)
        return batch(self, at, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Samples, "batch", interrupted)
        summary = run("stopped")
    assert signal.getsignal(number) == before
    assert not summary["finished"] and summary["step"] == 7
    assert (tmp_path / "stopped/drafter.safetensors").exists()
    run("stopped", resume=True)
    run("whole")
    assert_same(state(tmp_path / "stopped"), state(tmp_path / "whole"))


def test_out_of_time(run, tmp_path):
    summary = run("short", pace={"minutes": 0.0})
    assert not summary["finished"] and summary["step"] == 0
    assert run("short", resume=True)["finished"]
    run("whole")
    assert_same(state(tmp_path / "short"), state(tmp_path / "whole"))
    again = run("short", resume=True)  # there is nothing left to do
    assert again["finished"] and again["step"] == STEPS


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    from drafter_training import checkpoints

    path = tmp_path / "checkpoint.safetensors"
    checkpoints.write(path, {"a": torch.ones(3)}, {"step": 1})
    with monkeypatch.context() as patch, pytest.raises(Killed):

        def die(*_):
            raise Killed

        patch.setattr(os, "replace", die)
        checkpoints.write(path, {"a": torch.zeros(3)}, {"step": 2})
    tensors, found = checkpoints.read(path)
    assert found == {"step": 1} and torch.equal(tensors["a"], torch.ones(3))
    checkpoints.write(path, {"a": torch.zeros(3)}, {"step": 3})
    assert checkpoints.read(path)[1] == {"step": 3}
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_what_cannot_be_continued(run, begin, tmp_path):
    from drafter_training.checkpoints import ResumeError

    with pytest.raises(ResumeError, match="No such file"):
        run("new", resume=True)
    run("run", steps=2)
    with pytest.raises(ResumeError, match="continue it with --resume"):
        run("run", steps=2)
    with pytest.raises(
        ResumeError, match="settings.gamma: begun with 4.0, now 3.0; settings.seed: begun with 0"
    ):
        run("run", steps=2, resume=True, gamma=3.0, seed=1)
    with pytest.raises(ResumeError, match="config.dspark_markov_rank: begun with 32, now 16"):
        run("run", steps=2, resume=True, shape={"markov_rank": 16})
    with pytest.raises(ResumeError, match="flavour: begun with 'compact', now 'qwen3'"):
        run("run", "qwen3", steps=2, resume=True)
    file = tmp_path / "run/checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ResumeError, match="checkpoint.safetensors"):
        run("run", steps=2, resume=True)
    shutil.copyfile(tmp_path / "run/drafter.safetensors", file)
    with pytest.raises(ResumeError, match="format: expected 'dspark_ext.training_checkpoint.v1'"):
        run("run", steps=2, resume=True)


@pytest.mark.slow
def test_a_process_that_is_killed(tmp_path, folders):
    """SIGKILL while it trains, and the command again with --resume."""
    shape = ["--steps", "40", "--rows-per-step", "2", "--anchors-per-row", "6"]
    command = [
        sys.executable, str(ROOT / "examples/train_drafter.py"), "train", "--target", "tiny",
        "--data", str(folders[0]), "--held-out", str(folders[1]), *shape,
    ]  # fmt: skip
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        [*command, "--out", str(killed), "--checkpoint-minutes", "0"], stdout=subprocess.DEVNULL
    )
    steps = []
    while process.poll() is None and len(steps) < 3:
        time.sleep(0.02)
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            steps = [line["step"] for line in log(killed) if line["event"] == "checkpoint"]
    process.kill()
    process.wait()
    assert 3 <= len(steps) < 40
    subprocess.run([*command, "--out", str(killed), "--resume"], check=True)
    subprocess.run([*command, "--out", str(whole)], check=True)
    assert_same(state(killed), state(whole))
