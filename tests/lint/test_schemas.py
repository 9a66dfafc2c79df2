"""Every registered operator has a schema that tells its mutations, a fake kernel, a documented
Python entry and a test that runs torch.library.opcheck on it."""

import ast
import functools
import importlib
import inspect
import re

import pytest
import torch

import dspark_ext  # noqa: F401  (registers the operators)

from ._sources import FAMILIES, ROOT, code_files, python_module, text

# Operators whose Python entry has another name.
ENTRIES = {"accumulate_stats": "AcceptanceStats"}
# Of Schedule and VerifyBatch, which stand for their tensors in the Python entries.
SCHEDULE_FIELDS = {"verify_lens", "query_start_loc", "num_rows", "num_drafts", "rows_per_request"}
PLAN_FIELDS = {"sorted", "inverse", "tile_expert", "tile_row", "tile_size"}  # of DispatchPlan
STATISTICS_FIELDS = {"temperature", "tile_max", "tile_sum"}  # of RowStatistics, likewise
MUTATING = {"accumulate_stats", "rope_store"}  # besides the `.out` overloads

OPERATORS = sorted(
    name.removeprefix("dspark_ext::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("dspark_ext::")
)
BASE_NAMES = sorted({name.split(".")[0] for name in OPERATORS})


def overload(name):
    base, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.dspark_ext, base), variant or "default")


def python_entry(name):
    wanted = ENTRIES.get(name, name)
    for family in FAMILIES:
        module = importlib.import_module(f"dspark_ext.{python_module(family)}")
        if hasattr(module, wanted):
            return getattr(module, wanted)
    return None


def test_schemas_stand_in_one_file():
    declared = re.findall(r'm\.def\(\s*"(\w+(?:\.\w+)?)\(', text("csrc/bindings/library.cpp"))
    assert sorted(declared) == OPERATORS


@pytest.mark.parametrize("name", OPERATORS)
def test_has_cpu_kernel(name):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"dspark_ext::{name}", "CPU")


@pytest.mark.parametrize("name", OPERATORS)
def test_has_fake_kernel(name):
    entry = torch._library.simple_registry.singleton.find(f"dspark_ext::{name}")
    registered = entry.fake_impl.kernel is not None
    meta = torch._C._dispatch_has_kernel_for_dispatch_key(f"dspark_ext::{name}", "Meta")
    assert registered or meta


@pytest.mark.parametrize("name", OPERATORS)
def test_mutation_shows_in_the_schema(name):
    schema = overload(name)._schema
    written = [a.name for a in schema.arguments if a.alias_info is not None]
    if name.endswith(".out"):
        outputs = [a.name for a in schema.arguments if a.kwarg_only]
        assert written == outputs
        base = overload(name.split(".")[0])._schema
        inputs = [a.name for a in schema.arguments if not a.kwarg_only]
        assert inputs == [a.name for a in base.arguments][: len(inputs)]
        assert set(outputs) <= {r.name for r in base.returns} or len(base.returns) == 1
    elif name in MUTATING:
        assert written and all(a.alias_info.is_write for a in schema.arguments if a.name in written)
    else:
        assert not written
    assert all(r.alias_info is None for r in schema.returns)


@pytest.mark.parametrize("name", BASE_NAMES)
def test_python_entry_documents_shapes(name):
    entry = python_entry(name)
    assert entry is not None, f"no Python function for {name}"
    doc = inspect.getdoc(entry)
    assert doc and re.search(r"\[[A-Za-z0-9_*+,. ]+\]", doc), (
        f"{name}: the docstring names no shape"
    )
    about = doc + inspect.getmodule(entry).__doc__
    assert re.search(r"int32|int64|float|fp32|bf16", about), f"{name}: the docs name no dtype"


@pytest.mark.parametrize("name", [name for name in BASE_NAMES if name not in ENTRIES])
def test_python_entry_names_the_tensors_of_the_schema(name):
    """A tensor keeps one name from the Python argument to the schema."""
    entry = python_entry(name)
    arguments = [a.name for a in overload(name)._schema.arguments]
    parameters = inspect.signature(entry).parameters
    known = set(parameters) | SCHEDULE_FIELDS | PLAN_FIELDS | STATISTICS_FIELDS
    assert set(arguments) & set(parameters), f"{name}: no common name"
    strangers = [a for a in arguments if a not in known]
    allowed = {"num_emitted", "last_token", "vocab_size", "threshold", "block_size"}
    assert set(strangers) <= allowed, strangers


@functools.cache
def opchecked():
    """First arguments of all calls of opcheck in the tests, as written."""
    found = set()
    for path in code_files("tests"):
        if path.suffix != ".py" or "opcheck" not in text(path):
            continue
        for node in ast.walk(ast.parse(text(path))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("opcheck"):
                found.update(ast.unparse(argument) for argument in node.args[:1])
    return found


@pytest.mark.parametrize("name", OPERATORS)
def test_is_opchecked(name):
    endings = (f".{name}",) if "." in name else (f".{name}", f".{name}.default")
    calls = opchecked()
    assert any(call.endswith(endings) for call in calls), f"no test calls opcheck on {name}"


def test_documented_errors_name_op_and_argument():
    """Messages of the argument checks start with the operator's qualified name."""
    for family in FAMILIES:
        code = text(f"csrc/ops/{family}/op.cpp")
        assert "dspark_ext." in code or "check" in code, family
    assert (ROOT / "csrc/host/check.h").is_file()
