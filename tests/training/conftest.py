"""Samples of the tiny target, and small runs on them."""

import sys
from pathlib import Path

import draft_heads
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """The tensors here are too small for more, and bits are compared."""
    with draft_heads.one_thread():
        yield


@pytest.fixture(scope="package")
def folders(tmp_path_factory):
    """(training samples, held-out samples), made by the command."""
    import train_drafter

    base = tmp_path_factory.mktemp("samples")
    for name, rest in (
        ("train", ["--tokens", "12000", "--batch", "64"]),
        ("held", ["--tokens", "2000", "--batch", "24", "--held-out"]),
    ):
        where = ["--out", str(base / name), "--max-length", "128"]
        train_drafter.main(["sample", "--target", "tiny", *where, *rest])
    return base / "train", base / "held"


@pytest.fixture(scope="package")
def target():
    from targets import TinyTarget

    return TinyTarget()


@pytest.fixture
def begin(folders, target):
    """begin(flavour, **shape) -> (trainee, samples, held-out samples), always the same ones."""
    from drafter_training import start
    from drafter_training.samples import Samples
    from targets import Shape

    def make(flavour, **shape):
        samples, held_out = map(Samples, folders)
        config = target.head_config(flavour, Shape(**shape))
        counts = samples.token_counts(config.vocab_size)
        ids = start.choose_draft_vocabulary(counts, config.draft_vocab_size)
        return start.new_trainee(config, ids, target.model, seed=3), samples, held_out

    return make
