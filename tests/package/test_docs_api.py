"""docs/api.md names every operator, with the signature that it has."""

import importlib
import inspect
import re

import pytest
from doc_examples import REPOSITORY, session

PAGE = (REPOSITORY / "docs/api.md").read_text()
MODULES = ("sampling", "verify", "draft", "calibration", "moe", "formats", "linear", "attention",
           "decoder", "draft_head", "engine", "metrics")  # fmt: skip
# Results, errors and constants, and what another page is about.
ELSEWHERE = re.compile(r"[A-Z].*|output_taps|mean_of_copies|.*_experts|reset_parameters|plot_.*")
HANDED_OVER = {"export_request", "import_request", "prefill_request"}
BETWEEN_ENGINES = {"cached_profile", "profile_step", "check_tokenizers"}


def signature(called) -> str:
    """As the page has it: names and defaults, on one line."""
    found = inspect.signature(called)
    parameters = [each.replace(annotation=each.empty) for each in found.parameters.values()]
    plain = found.replace(parameters=parameters, return_annotation=found.empty)
    return f"{called.__name__}{plain}"


def functions(module: str) -> dict:
    """The public functions of a family."""
    owner = importlib.import_module(f"dspark_ext.{module}")
    names = getattr(owner, "__all__", None) or [
        name
        for name, value in vars(owner).items()
        if name[0] != "_" and getattr(value, "__module__", None) == owner.__name__
    ]
    found = {name: getattr(owner, name) for name in names}
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


def printed() -> dict[str, str]:
    """The signatures of the page, by name."""
    blocks = [re.sub(r"\s+", " ", block) for block in re.findall(r"```text\n(.*?)```", PAGE, re.S)]
    return {block.partition("(")[0]: block.strip() for block in blocks}


@pytest.mark.parametrize("module", MODULES)
def test_a_signature_is_that_of_the_code(module):
    owner = importlib.import_module(f"dspark_ext.{module}")
    section = {name: text for name, text in printed().items() if hasattr(owner, name)}
    assert section
    for name, text in section.items():
        assert text == signature(getattr(owner, name))


@pytest.mark.parametrize("module", MODULES)
def test_every_operator_is_on_the_page(module):
    missing = set(functions(module)) - set(printed()) - HANDED_OVER - BETWEEN_ENGINES
    missing = {name for name in missing if not ELSEWHERE.fullmatch(name)}
    if module == "formats":
        missing -= {"check_format", "scale_shape", "as_bytes", "code_bytes"}
    assert missing == set()


def test_every_operator_has_an_example():
    code = "".join(example.source for example in session("docs/api.md").examples)
    called = {name for name in printed() if re.search(rf"\b{name}\(", code)}
    assert set(printed()) - called == {"PackedLinear"}  # made by pack_module
