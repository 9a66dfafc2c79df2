"""Messages of docs/troubleshooting.md are in the sources; those that are easily met are met."""

import re
import warnings

import pytest
import torch
from doc_examples import REPOSITORY

from dspark_ext import draft, moe, sampling, verify
from dspark_ext.engine import SpeculativeConfig

PAGE = (REPOSITORY / "docs/troubleshooting.md").read_text()
SUFFIXES = (".py", ".cpp", ".h", ".cmake")


def quoted() -> list[str]:
    """What stands in the first column of the tables of messages."""
    found, reading = [], False
    for line in PAGE.split("\n"):
        first = line[1:].split("|")[0].strip() if line[:1] == "|" else None
        reading = first is not None and (reading or first == "message")
        if reading:
            found += re.findall(r"`([^`]+)`", first)
    return found


def parts(message: str) -> list[str]:
    """The fixed parts; `...` is what changes, except in a call's own."""
    return [part.strip() for part in re.split(r"(?<!\()\.\.\.", message) if part.strip()]


@pytest.fixture(scope="module")
def sources() -> list[str]:
    """Every source with string literals joined that stand one behind the other."""
    folders = ("python/dspark_ext", "csrc", "cmake")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*")]
    texts = [path.read_text() for path in files if path.suffix in SUFFIXES]
    return [re.sub(r'"\s*\n\s*f?"', "", text.replace('\\"', '"')) for text in texts]


@pytest.mark.parametrize("message", quoted())
def test_the_message_is_in_the_sources(sources, message):
    assert any(all(part in text for part in parts(message)) for text in sources)


def test_the_page_has_messages():
    assert len(quoted()) > 80 and len(set(quoted())) == len(quoted())


def law(rows: int = 2) -> torch.Tensor:
    return torch.zeros(rows, 4)


def verified(logits=None, ids=((1,),), **changes):
    arguments = {"query_start_loc": torch.tensor([0, 2]), "temperature": 1.0, "seeds": 1}
    logits = law() if logits is None else logits
    ids = torch.tensor(ids)
    return sampling.rejection_sample(logits, ids, positions=0, **(arguments | changes))


SURE = torch.ones(2, 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: verified(logits=law().double()),
        lambda: verified(query_start_loc=torch.zeros(5, dtype=torch.int64)),
        lambda: verify.schedule(SURE),
        lambda: verify.schedule(SURE, mode="global"),
        lambda: verify.schedule(None),
        lambda: verify.schedule(
            SURE, mode="lagged", lagged_confidence=SURE, cost=torch.ones(9, dtype=torch.float64)
        ),
        lambda: verify.CostTable.load("/no/such/file.json"),
        lambda: verify.CostTable([1, 2], [1.0, 1.0]),
        lambda: draft.markov_sample(
            law(1)[None], torch.tensor([9]), torch.eye(4), torch.eye(4),
            temperature=1.0, seeds=1, positions=1,
        ),
        lambda: draft.markov_sample(
            law(1)[None], torch.tensor([1.5]), torch.eye(4), torch.eye(4),
            temperature=1.0, seeds=1, positions=1,
        ),
        lambda: moe.grouped_gemm(
            law(), torch.zeros(2, 4, 4), moe.plan(torch.zeros(2, 1, dtype=torch.int32), 2)
        ),
        lambda: SpeculativeConfig.from_dict({"shedule": "fixed"}),
        lambda: SpeculativeConfig.from_dict({"enforce_eager": True}),
        lambda: SpeculativeConfig(rejection_sample_method="synthetic"),
        lambda: SpeculativeConfig.from_dict({"rejection_sample_method": "typical"}),
        lambda: SpeculativeConfig(draft_gate=True, min_acceptance=0.5),
        lambda: SpeculativeConfig(verify_budget=4),
    ],
    ids=range(17),
)  # fmt: skip
def test_an_error_that_is_met_is_on_the_page(call):
    with pytest.raises((RuntimeError, ValueError, OSError, UserWarning)) as met:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call()
    text = str(met.value)
    assert any(all(part in text for part in parts(message)) for message in quoted()), text


def test_the_bits_have_these_names():
    rows = re.findall(r"^\| (\d+) \| `(STATUS_\w+)` \|", PAGE, re.MULTILINE)
    names = {name: value for name, value in vars(sampling).items() if name.startswith("STATUS_")}
    assert {name: int(bit) for bit, name in rows} == names


def test_bits_are_set_as_the_page_says():
    broken = law()
    broken[0, 2] = torch.nan
    assert verified(logits=broken).status.item() == sampling.STATUS_NAN_ROW
    assert verified(logits=law() - torch.inf).status.item() == sampling.STATUS_EMPTY_ROW
    assert verified(ids=((7,),)).status.item() == sampling.STATUS_INVALID_ID
    assert verified(draft_probs=torch.full((1, 1, 4), 2.0)).status.item() & 2
