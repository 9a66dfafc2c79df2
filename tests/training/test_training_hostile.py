"""Samples of something else, losses that are no numbers, full disks, Ctrl-C: all are told."""

import itertools
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

FIXTURES = Path(__file__).parents[1] / "fixtures"
SHORT = ["--steps", "3", "--rows-per-step", "1", "--anchors-per-row", "4"]


def write_chunk(folder, rows=((5, 1),) * 3, features=384, hidden=128, **changes):
    """A folder with one chunk of rows (length, start of the answer); `changes`: name -> tensor, or
    metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    length = sum(row[0] for row in rows)
    described = [
        {
            "length": n,
            "response_start": start,
            "temperature": 1.0,
            "self_asked": False,
            "prompt": "",
        }
        for n, start in rows
    ]
    metadata = changes.pop("metadata", {"rows": json.dumps(described)})
    tensors = {
        "tokens": torch.arange(length + len(rows), dtype=torch.int32),
        "features": torch.ones(length, features).bfloat16(),
        "hidden": torch.ones(length, hidden).bfloat16(),
        "logsumexp": torch.full((length,), 6.0),
        **changes,
    }
    save_file(tensors, folder / "chunk0000.safetensors", metadata)
    return folder


@pytest.fixture
def command(tmp_path, folders):
    """command(*arguments, data=, held=) -> what the trainer exits with, None if it does not."""
    import train_drafter

    def go(*arguments, data=folders[0], held=folders[1], name="run"):
        where = ["--data", str(data), "--held-out", str(held), "--out", str(tmp_path / name)]
        try:
            train_drafter.main(["train", "--target", "tiny", *where, *SHORT, *map(str, arguments)])
        except SystemExit as error:
            return str(error)
        return None

    return go


@pytest.mark.parametrize("place", ["data", "held"])
@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hidden": 64}, "rows of hidden size 64, the target has 128"),
        ({"features": 256}, "rows of 256 features, the head reads 384"),
        ({"tokens": torch.full((18,), 300)}, "a token 300, the target's vocabulary has 256"),
        ({"tokens": torch.full((18,), -1)}, "tokens: expected ids, got -1"),
        ({"tokens": torch.zeros(7)}, "tokens: expected 18 of 3 rows, got 7"),
        ({"logsumexp": torch.zeros(7)}, "logsumexp: expected 15 of 3 rows, got 7"),
        ({"rows": ((5, 1), (5, 5))}, "row 1: expected an answer within 5 tokens, got one from 5"),
        ({"metadata": {"a": "b"}}, "no chunk of samples: missing 'rows'"),
    ],
)
def test_samples_of_something_else_are_told_at_once(command, tmp_path, place, changes, words):
    folder = write_chunk(tmp_path / "odd", **changes)
    found = command(**{place: folder})
    assert found.startswith("error: ") and words in found and str(folder) in found
    assert not (tmp_path / "run/log.jsonl").exists()


def test_a_torn_chunk_names_its_file(command, tmp_path):
    path = write_chunk(tmp_path / "odd") / "chunk0000.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    assert f"{path}: no chunk of samples: Error while deserializing" in command(data=path.parent)


def test_rows_of_one_token(command, tmp_path):
    data = write_chunk(tmp_path / "odd", [(1, 0)] * 3)
    assert command(data=data, held=data) is None


def test_a_drafter_of_another_target_is_told(tmp_path, folders):
    import train_drafter

    from dspark_ext.draft_head import (
        DenseDraftConfig,
        make_draft_head,
        reset_parameters,
        save_draft_head,
    )

    config = DenseDraftConfig(
        flavour="qwen3", hidden_size=128, vocab_size=300, intermediate_size=32, head_dim=8,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, block_size=5,
        target_layer_ids=(1, 2, 3), mask_token_id=255, markov_rank=4,
    )  # fmt: skip
    head = make_draft_head(config, dtype=torch.float32)
    reset_parameters(head)
    save_draft_head(head, tmp_path / "head", embeddings=False)
    with pytest.raises(SystemExit, match=r"error: .*head: .*expected shape \[300, 128\], got"):
        train_drafter.main(
            ["eval", "--target", "tiny", "--data", str(folders[1]), "--drafter",
             str(tmp_path / "head")]
        )  # fmt: skip


def test_a_loss_that_is_no_number_ends_the_run(command, tmp_path):
    """What was there before stays: a checkpoint of finite weights."""
    command("--steps", 4, "--minutes", 0, "--optimizer", "adamw", "--learning-rate", 1e30)
    before = load_file(tmp_path / "run/checkpoint.safetensors")
    drafter = (tmp_path / "run/drafter.safetensors").read_bytes()
    found = command(
        "--steps", 4, "--optimizer", "adamw", "--learning-rate", 1e30, "--resume",
        "--checkpoint-minutes", 0,
    )  # fmt: skip
    assert "step " in found and "a lower --learning-rate may help" in found
    after = load_file(tmp_path / "run/checkpoint.safetensors")
    assert all(v.isfinite().all() for v in after.values() if v.is_floating_point())
    assert after.keys() >= before.keys()
    assert (tmp_path / "run/drafter.safetensors").read_bytes() == drafter
    text = (tmp_path / "run/log.jsonl").read_text()
    last = json.loads(text.splitlines()[-1])
    assert last["event"] == "diverged" and last["reason"] in found and "NaN" not in text


def test_features_that_are_no_numbers_end_the_run(command, tmp_path):
    data = write_chunk(tmp_path / "odd", features=384)
    tensors = load_file(data / "chunk0000.safetensors")
    write_chunk(data, features=384, **{"logsumexp": tensors["logsumexp"] * torch.nan})
    assert "step 1: the loss is nan" in command(data=data)
    assert not (tmp_path / "run/checkpoint.safetensors").exists()


@pytest.mark.parametrize("value", ["inf", "nan", "-1"])
def test_a_rate_is_a_number(command, value):
    assert "learning_rate: expected a number above 0" in command(f"--learning-rate={value}")


def rewritten(path, tensors=None, **header):
    with safe_open(path, "pt") as file:
        found = file.metadata()
    held = load_file(path) | (tensors or {})
    save_file(
        {name: value for name, value in held.items() if value is not ...},
        path,
        {name: value for name, value in (found | header).items() if value is not ...},
    )


@pytest.mark.parametrize(
    "tensors, header, words",
    [
        ({}, {"state": "{"}, "state: JSONDecodeError"),
        ({}, {"state": "7"}, "state: TypeError"),
        ({}, {"state": "{}"}, "flavour: begun with None, now 'compact'"),
        ({}, {"state": ...}, "state: KeyError"),
        ({"head.main_proj.weight": ...}, {}, "missing head.main_proj.weight"),
        (
            {"head.main_proj.weight": torch.zeros(3)},
            {},
            r"head.main_proj.weight: expected [128, 384], found [3]",
        ),
    ],
)
def test_a_checkpoint_that_is_none_is_told(command, tmp_path, tensors, header, words):
    command("--minutes", 0)
    rewritten(tmp_path / "run/checkpoint.safetensors", tensors, **header)
    found = command("--resume")
    assert found.startswith("error: resume: ") and words in found


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    from drafter_training import checkpoints
    from safetensors import SafetensorError

    path = tmp_path / "checkpoint.safetensors"
    checkpoints.write(path, {"a": torch.ones(3)}, {"step": 1})
    before = path.read_bytes()

    def full(tensors, file, metadata):
        Path(file).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(OSError, match="checkpoint.safetensors: I/O error: No space left"):
        checkpoints.write(path, {"a": torch.zeros(3)}, {"step": 2})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def sample(target, out, **changes):
    import target_samples

    arguments = {
        "prefix": [], "taps": target.taps, "end_id": None, "answer_prefix": [], "batch": 8,
        "max_length": 80, "max_tokens": 600, "seed": 0, "stop": lambda: False, **changes,
    }  # fmt: skip
    requests = arguments.pop("requests", target.requests(False, arguments["seed"]))
    target_samples.generate(target.model, requests, out, **arguments)


def tokens_of(folder):
    return [load_file(path)["tokens"].tolist() for path in sorted(folder.glob("*.safetensors"))]


def test_a_seed_is_sampled_once(target, tmp_path):
    """A second call adds rows; the same ones would count twice."""
    from target_samples import SamplingError

    sample(target, tmp_path)
    with pytest.raises(SamplingError, match="has rows of seed 0 already; .* name another seed"):
        sample(target, tmp_path)
    sample(target, tmp_path, seed=1)
    first, second = tokens_of(tmp_path)
    assert first != second
    (tmp_path / "chunk0000.safetensors").unlink()
    sample(target, tmp_path, seed=2)  # takes the place of no other
    assert tokens_of(tmp_path)[0] == second and len(tokens_of(tmp_path)) == 2


def test_an_interrupt_keeps_the_rows_that_are_finished(target, tmp_path, monkeypatch):
    import train_drafter

    steps = itertools.count()
    step = train_drafter.target_samples.TargetLoop.step

    def interrupted(self, *arguments):
        if next(steps) == 100:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)

    monkeypatch.setattr(train_drafter.target_samples.TargetLoop, "step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    where = ["sample", "--target", "tiny", "--out", str(tmp_path)]
    train_drafter.main([*where, "--batch", "8", "--max-length", "80", "--tokens", "100000"])
    assert signal.getsignal(signal.SIGINT) == before
    assert next(steps) == 101 and len(tokens_of(tmp_path)) == 1


def test_prompts_without_room_for_an_answer_are_left_out(target, tmp_path):
    from target_samples import Request, SamplingError

    long, short = Request([1] * 71, 0.0), Request([2] * 70, 0.0)
    sample(target, tmp_path / "some", requests=iter([long, short, long]), batch=3)
    assert tokens_of(tmp_path / "some")[0][:70] == [2] * 70
    with pytest.raises(SamplingError, match="there is no request"):
        sample(target, tmp_path / "none", requests=iter([long]))
    with pytest.raises(SamplingError, match="max_length: 80 leaves room for prompts of 70 tokens"):
        sample(target, tmp_path / "none", requests=itertools.repeat(long))


def test_a_question_that_fills_a_row_ends_there(target, tmp_path):
    """It was asked too late for the tokens that are to follow it."""
    from target_samples import Request

    asks = [Request([], 1.0, self_asked=True) for _ in range(24)]
    sample(
        target, tmp_path, requests=iter(asks), end_id=32, answer_prefix=[1] * 12, max_length=24,
        prefix=[65],
    )  # fmt: skip


@pytest.mark.parametrize("name", ["batch", "max_tokens"])
def test_there_is_something_to_sample(target, tmp_path, name):
    from target_samples import SamplingError

    with pytest.raises(SamplingError, match=f"{name}: expected at least 1, got 0"):
        sample(target, tmp_path, **{name: 0})
