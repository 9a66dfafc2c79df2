"""Every public function under seeded calls, most of them hostile (driver.py, run.py): a result that
the function may give, or an error that names it and the argument; inputs unchanged; no crash, no
hang, no leak."""

import collections

import oracle
import pytest
import run
from calls import BUILDERS, Source
from driver import Driver
from mutations import Mutation
from oracle import FindingError

from dspark_ext import draft, linear, moe, sampling, verify

SEED = 20261130
FUNCTIONS = sorted({name.partition("#")[0] for name in BUILDERS})
CALLS_IN_ALL = 1_000_000
CALLS_EACH = 80


@pytest.mark.parametrize("function", FUNCTIONS)
def test_calls(function):
    driver = Driver(SEED, function)
    outcomes = collections.Counter(driver.run(index)[1] for index in range(CALLS_EACH))
    assert outcomes["result"] >= CALLS_EACH // 8, "nearly nothing passed the checks"
    assert outcomes["result"] < CALLS_EACH, "nothing was refused"


@pytest.mark.slow
def test_a_million_calls():
    found = run.run(SEED, 0, CALLS_IN_ALL, jobs=2)
    assert not found["findings"], "\n".join(found["findings"])
    assert found["calls"] == CALLS_IN_ALL


def test_a_call_is_a_function_of_its_number():
    """What a report names can be repeated."""
    for index in (5, 4099, 4100):
        one, other = Driver(3), Driver(3)
        other.make(index + 1)  # other calls before it
        (name, call, changes), (name2, call2, changes2) = one.make(index), other.make(index)
        assert (name, repr(changes)) == (name2, repr(changes2))
        assert repr(call.arguments) == repr(call2.arguments) or "0x" in repr(call.arguments)


def test_every_public_function_is_called():
    public = {
        sampling: ["RejectionOutput", "SampleOutput", "BlockAcceptance"],
        linear: ["PackedLinear", "pack_module"],  # modules around linear and pack_linear
        draft: [],
        moe: [],
        verify: ["cudagraph_sizes", "profile_cost_table"],  # host loops over the caller's functions
    }
    renamed = {"AcceptanceStats": "accumulate_stats", "restore_weights": "prepare_weights",
               "prepared_bytes": "prepare_weights", "apply_experts": "fused_moe"}  # fmt: skip
    missing = []
    for module, left_out in public.items():
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name)
            if (
                name.startswith("_")
                or getattr(value, "__module__", "").split(".")[0] != "dspark_ext"
            ):
                continue
            if isinstance(value, type) and hasattr(value, "_fields"):
                continue  # a result
            if name in left_out or renamed.get(name, name) in FUNCTIONS:
                continue
            missing.append(f"{module.__name__}.{name}")
    assert missing == ["dspark_ext.verify.AcceptanceReport"]  # what AcceptanceStats.read returns


# ---- the oracle sees what it should --------------------------------------------------------------


def judge(function: str, change, calls: int = 40) -> None:
    """Judges valid calls of a function whose results are changed before."""
    for index in range(calls):
        call = BUILDERS[function](Source(SEED, index))
        original = call.function
        oracle.run(call._replace(function=lambda f=original, **a: change(a, f(**a))))


def set_first(arguments, result, value):
    tensors = result if isinstance(result, tuple) else (result,)
    for tensor in tensors:
        if tensor.numel():
            tensor.view(-1)[0] = value
            break
    return result


@pytest.mark.parametrize(
    ("function", "value"),
    [("sample", 10**6), ("target_probs", float("nan")), ("route", -5), ("plan", 99),
     ("schedule", 77), ("linear", float("nan")), ("markov_sample", -1)],
)  # fmt: skip
def test_a_wrong_result_is_found(function, value):
    with pytest.raises(FindingError, match="wrong result"):
        judge(function, lambda arguments, result: set_first(arguments, result, value))


def test_a_changed_input_is_found():
    def spoil(arguments, result):
        arguments["logits"].view(-1)[:1] += 1
        return result

    with pytest.raises(FindingError, match="the input was changed"):
        judge("sample", spoil)


@pytest.mark.parametrize("text", ["vector::_M_range_check", "dspark_ext.other: x: expected"])
def test_an_unexplained_error_is_found(text):
    def fail(arguments, result):
        raise RuntimeError(text)

    with pytest.raises(FindingError, match="valid call was refused"):
        judge("swiglu", fail)
    call = BUILDERS["swiglu"](Source(SEED))
    changed = [Mutation("gate_up", "values")]
    with pytest.raises(FindingError, match="undocumented error"):
        oracle.run(call._replace(function=lambda **a: fail(a, None)), changed)


def test_a_crash_is_reported_with_its_call(monkeypatch, tmp_path):
    """A process that dies is named by seed and call, and the calls after it are made."""
    script = tmp_path / "run.py"
    text = (run.HERE / "run.py").read_text()
    text = text.replace("HERE = Path(__file__).resolve().parent", f"HERE = Path({str(run.HERE)!r})")
    call = "name, outcome = made.run(index)\n"
    crash = "            if index == 7: os.kill(os.getpid(), signal.SIGSEGV)\n"
    text = text.replace(call, call + crash)
    script.write_text(text)
    monkeypatch.setattr(run, "__file__", str(script))
    found = run.run(SEED, 0, 12, jobs=1, function="swiglu")
    assert len(found["findings"]) == 1
    assert f"seed {SEED}, call 7: killed by SIGSEGV" in found["findings"][0]
    assert "--first 7 --calls 1" in found["findings"][0]
    assert found["calls"] == 4  # of those after it; the first process took its counts along
