"""The trained tiny pair as files that the commands take: a model directory and a drafter."""

import json
import sys
import warnings
from pathlib import Path

import pytest

from dspark_ext.demo import tiny

FIXTURES = Path(__file__).parents[1] / "fixtures"
TARGET, DRAFTER = FIXTURES / "tiny_target.safetensors", FIXTURES / "tiny_drafter.safetensors"
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "# {{ m['role'] }}: {{ m['content'] }}\n{% endfor %}# assistant:"
)


def byte_characters() -> list[str]:
    """The characters that stand for bytes 0 .. 255 in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def save_model_directory(path: Path, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """The tiny target as transformers stores a model, with a tokenizer whose ids are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tiny.load_target(TARGET).save_pretrained(path)
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = chat_template
    fast.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory) -> Path:
    return save_model_directory(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture
def make_model_directory(tmp_path):
    return lambda **changes: save_model_directory(tmp_path / "model", **changes)


@pytest.fixture
def tiny_pair_arguments(model_directory) -> list[str]:
    """What makes a command use the tiny pair, quickly."""
    words = ["--target", model_directory, "--drafter", DRAFTER, "--threads", 1, "--max-len", 200]
    return [str(word) for word in words]


@pytest.fixture
def command(capsys, monkeypatch):
    """command(*arguments, stdin="") -> (exit status, standard output, standard error)"""
    from io import StringIO

    import torch

    from dspark_ext.cli.main import main

    threads = torch.get_num_threads()
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which `main` replaces

    def run(*arguments, stdin: str = ""):
        monkeypatch.setattr(sys, "stdin", StringIO(stdin))
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as error:  # argparse
            status = error.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    yield run
    torch.set_num_threads(threads)


@pytest.fixture
def lines_of():
    """lines_of(text) -> JSON values of its lines"""
    return lambda text: [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def serve():
    """serve(**config) -> an engine over the tiny pair"""
    from dspark_ext.engine import DSparkDrafter, DSparkEngine, HuggingFaceTarget, SpeculativeConfig

    model, head = tiny.load_pair(TARGET, DRAFTER)
    taps = head.config.dspark_target_layer_ids
    target = HuggingFaceTarget(model, taps, max_requests=4, max_len=160)
    drafter = DSparkDrafter.for_target(head, target)
    return lambda **config: DSparkEngine(target, drafter, SpeculativeConfig(**config), tiny)


@pytest.fixture(scope="session")
def prompts():
    return [tiny.encode(text) for text in tiny.PROMPTS]
