"""A request that begins in one engine and goes on in another: the tokens of one engine alone."""

import copy
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import draft_heads
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import served_model

from dspark_ext.demo import tiny
from dspark_ext.engine import (
    CausalLMTarget,
    DSparkDrafter,
    DSparkEngine,
    HandoverError,
    HeadDrafter,
    HuggingFaceTarget,
    NGramDrafter,
    RequestState,
    SamplingParams,
    SmallModelDrafter,
    SpeculativeConfig,
    export_request,
    import_request,
    output_taps,
    prefill_request,
)

HERE = Path(__file__).parent
PROMPT = tiny.encode("import os\nimport os\nclass A(object):\n    def ")
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=4, max_new_tokens=20)
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=20)
HEAD = draft_heads.deepseek(
    "deepseek_v41", dspark_noise_token_id=0, hidden_size=128, vocab_size=256
)
DRAFTERS = ("dspark", "head", "ngram", "small model", "none")


def make_engine(tiny_pair, drafter, slots=2, paged=False, schedule="threshold"):
    model, head = tiny_pair
    taps = {"dspark": head.config.dspark_target_layer_ids}
    deep = draft_heads.make(HEAD) if drafter == "head" else None
    if deep is not None:
        taps["head"] = output_taps(deep.config)
    target = HuggingFaceTarget(
        model, taps.get(drafter, []), max_requests=slots, max_len=160,
        block_size=8 if paged else None,
    )  # fmt: skip
    make = {
        "dspark": lambda: DSparkDrafter.for_target(head, target),
        "head": lambda: HeadDrafter.for_target(deep, target),
        "ngram": lambda: NGramDrafter.for_target(target),
        "small model": lambda: SmallModelDrafter.for_target(model, target),
        "none": lambda: None,
    }
    config = SpeculativeConfig(schedule=schedule, confidence_threshold=0.4)
    return DSparkEngine(target, make[drafter](), config, tokenizer=tiny)


def finish(engine, state):
    output = import_request(engine, state).result()
    return output.token_ids, output.accepted, output.text


@pytest.mark.parametrize("params", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_other_engine_goes_on_with_the_same_tokens(tiny_pair, drafter, params):
    """After the prompt, and after some steps; into a paged cache, another slot, among others."""
    begun = make_engine(tiny_pair, drafter)
    alone = begun.submit(PROMPT, params).result()
    states = [prefill_request(begun, PROMPT, params)]
    handle = begun.submit(PROMPT, params)
    while len(handle.token_ids) < 7:
        begun.step()
    states.append(export_request(begun, handle))
    assert handle.result().token_ids == alone.token_ids  # an export changes nothing
    assert states[0].token_ids.tolist() == PROMPT and len(states[1].token_ids) >= len(PROMPT) + 7

    other = make_engine(tiny_pair, drafter, slots=3, paged=True)
    other.submit(PROMPT[:9], GREEDY)
    other.step()
    found = [finish(other, RequestState.from_bytes(state.to_bytes())) for state in states]
    assert found == [(alone.token_ids, alone.accepted, alone.text)] * 2
    free = other.target.pool
    for _ in other.events():
        pass
    assert free.available == free.num_blocks


def test_without_the_targets_cache_the_tokens_are_computed_again(tiny_pair):
    begun = make_engine(tiny_pair, "dspark")
    alone = begun.submit(PROMPT, SAMPLED).result()
    handle = begun.submit(PROMPT, SAMPLED)
    while len(handle.token_ids) < 7:
        begun.step()
    whole, small = (export_request(begun, handle, target_cache=flag) for flag in (True, False))
    assert not small.tensors and len(small.to_bytes()) < 2000 < len(whole.to_bytes()) / 50
    output = import_request(make_engine(tiny_pair, "dspark"), small).result()
    assert output.token_ids == alone.token_ids


def test_what_was_emitted_goes_over_whole(tiny_pair):
    """Log-probabilities of all tokens; and what `min_new_tokens` let pass is no stop string."""
    begun, other = (make_engine(tiny_pair, "ngram") for _ in range(2))
    text = begun.submit(PROMPT, GREEDY).result().text
    params = dataclasses.replace(GREEDY, stop=(text[2],), min_new_tokens=10, logprobs=2)
    alone = begun.submit(PROMPT, params).result()
    handle = begun.submit(PROMPT, params)
    while len(handle.token_ids) < 5:
        begun.step()
    state = RequestState.from_bytes(export_request(begun, handle).to_bytes())
    output = import_request(other, state).result()
    assert output.text == alone.text and output.finish_reason == alone.finish_reason
    assert output.logprobs == alone.logprobs and len(alone.logprobs) == len(alone.token_ids)
    state.request["logprobs"][0] = [0.0, [[1]]]
    with pytest.raises(HandoverError, match="logprobs: expected . pairs of a number and a list"):
        import_request(other, state)


def test_generic_targets_hand_over(tiny_pair):
    """Into one that has not run yet, whose cache lies elsewhere."""
    model = served_model("gemma3, windows of 6")
    engines = []
    for block_size, check in ((None, 0.1), (4, None)):
        target = CausalLMTarget(
            copy.deepcopy(model), max_requests=2, max_len=48, block_size=block_size,
            check_tolerance=check,
        )  # fmt: skip
        small = CausalLMTarget(served_model("gpt2"), max_requests=2, max_len=48)
        engines.append(DSparkEngine(target, SmallModelDrafter(small)))
    alone = engines[0].submit([5, 6, 7, 8] * 4, GREEDY).result()
    handle = engines[0].submit([5, 6, 7, 8] * 4, GREEDY)
    while len(handle.token_ids) < 5:
        engines[0].step()
    state = export_request(engines[0], handle)
    keys = state.tensors["target"]["keys.0"]
    assert keys.shape[0] == state.request["num_cached"] and keys.dtype == torch.float32
    assert finish(engines[1], state)[0] == alone.token_ids


def run_process(script: str, *arguments: str) -> subprocess.Popen:
    paths = [str(HERE), str(HERE.parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "handover_process.py"), script, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.long("two processes, each of which imports and serves")
@pytest.mark.parametrize("way", ["file", "gloo"])
def test_two_processes(tiny_pair, tmp_path, way):
    """One takes the prompt in, the other emits the tokens: those of one process."""
    alone = make_engine(tiny_pair, "dspark").submit(PROMPT, SAMPLED).result()
    first = run_process("prefill", way, str(tmp_path))
    second = run_process("decode", way, str(tmp_path))
    outputs = [process.communicate(timeout=300)[0] for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0]
    assert json.loads(outputs[1]) == alone.token_ids
    assert outputs[0] == ""


# --- what does not belong is refused by name


@pytest.fixture(scope="module")
def given_state(tiny_pair):
    engine = make_engine(tiny_pair, "dspark")
    handle = engine.submit(PROMPT, SAMPLED)
    while len(handle.token_ids) < 4:
        engine.step()
    return export_request(engine, handle)


@pytest.fixture(scope="module")
def taker(tiny_pair):
    return make_engine(tiny_pair, "dspark")


def changed(state, **fields):
    state = copy.deepcopy(state)
    state.request.update(fields)
    return state


BAD_FIELDS = {
    "prompt_length": (0, "prompt_length: expected an integer in .1, "),
    "num_cached": (10**9, "num_cached: expected an integer in .0, "),
    "seed": (2**63, "seed: expected an integer"),
    "limit": (True, "limit: expected an integer"),
    "priority": ("high", "priority: expected an integer in .* got high"),
    "speculative": (1, "speculative: expected true or false, got 1"),
    "accepted": ("01", "accepted: expected . digits 0 or 1, got 01"),
    "logprobs": ([], "logprobs: expected null, got"),
    "params": ({"temperature": -1}, "params: .*temperature: expected a number >= 0"),
    "params ": ({"temprature": 1}, "params: .*unknown name 'temprature'"),
    "params  ": ([], "params: expected an object"),
}


@pytest.mark.parametrize("field", BAD_FIELDS)
def test_bad_values_are_named(given_state, taker, field):
    value, message = BAD_FIELDS[field]
    with pytest.raises(HandoverError, match=message):
        import_request(taker, changed(given_state, **{field.strip(): value}))
    assert taker.slots.available == 2


def test_missing_values_are_named(given_state, taker):
    for field in given_state.request:
        state = copy.deepcopy(given_state)
        del state.request[field]
        with pytest.raises(HandoverError, match=f"{field}: expected .*got nothing"):
            import_request(taker, state)


def test_bad_tensors_are_named(given_state, taker):
    def with_tensors(change):
        state = copy.deepcopy(given_state)
        change(state)
        return state

    def set_to(part, name, tensor):
        return with_tensors(lambda state: state.tensors[part].update({name: tensor}))

    keys = given_state.tensors["target"]["keys.1"]
    cases = [
        (set_to("target", "keys.1", keys[:-1]), r"target: tensor 'keys.1': expected .*float32"),
        (set_to("target", "keys.1", keys.half()), "target: tensor 'keys.1': .* got torch.float16"),
        (set_to("target", "keys.99", keys), "target: tensor 'keys.99': unexpected"),
        (with_tensors(lambda state: state.tensors["drafter"].pop("values.0")),
         "drafter: tensor 'values.0': missing"),
        (with_tensors(lambda state: state.tensors.pop("drafter")), "parts: expected .'drafter', "),
        (with_tensors(lambda state: state.token_ids.fill_(256)), r"token_ids: .*ids in \[0, 256\)"),
        (with_tensors(lambda state: state.token_ids.fill_(-1)), r"token_ids: .*ids in \[0, 256\)"),
        (with_tensors(lambda state: state.identity["target"].update(weights="other")),
         "target: weights: expected '[0-9a-f]{64}', got 'other'"),
        (with_tensors(lambda state: state.identity["drafter"].pop("class")),
         "drafter: class: expected 'DSparkDrafter', got None"),
        (with_tensors(lambda state: state.identity["target"].update(more="x")),
         "target: more: expected None, got 'x'"),
    ]  # fmt: skip
    for state, message in cases:
        with pytest.raises(HandoverError, match=message):
            import_request(taker, state)
    assert taker.slots.available == 2 and not taker.step()


def test_another_model_is_refused(given_state, tiny_pair):
    model = copy.deepcopy(tiny_pair[0])
    with torch.no_grad():
        model.lm_head.weight.mul_(1.01)
    engine = make_engine((model, tiny_pair[1]), "dspark")
    with pytest.raises(HandoverError, match="target: weights: expected"):
        import_request(engine, given_state)
    with pytest.raises(HandoverError, match="drafter: class: expected None, got 'DSparkDrafter'"):
        import_request(make_engine(tiny_pair, "none"), given_state)
    with pytest.raises(HandoverError, match="token_ids: expected at most max_len 40 tokens"):
        target = HuggingFaceTarget(tiny_pair[0], [], max_requests=1, max_len=40)
        import_request(DSparkEngine(target), given_state)


def test_a_bad_draft_context_is_named(tiny_pair):
    engine = make_engine(tiny_pair, "head")
    state = prefill_request(engine, PROMPT, GREEDY)
    for name, tensor, message in (
        ("kv", state.tensors["drafter"]["kv"][:1], "tensors.'kv'.: expected"),
        ("positions", state.tensors["drafter"]["positions"] + 1, "positions: expected"),
        ("positions", state.tensors["drafter"]["positions"].int(), "positions: expected int64"),
    ):
        bad = copy.deepcopy(state)
        bad.tensors["drafter"][name] = tensor
        with pytest.raises(HandoverError, match=message):
            import_request(engine, bad)


def test_only_a_running_request_is_exported(tiny_pair):
    engine = make_engine(tiny_pair, "none", slots=1)
    running, waiting = engine.submit(PROMPT, GREEDY), engine.submit(PROMPT, GREEDY)
    engine.step()
    with pytest.raises(ValueError, match="expected a running one, got one that waits"):
        export_request(engine, waiting)
    engine.cancel(waiting)
    running.result()
    with pytest.raises(ValueError, match="got one that is finished"):
        export_request(engine, running)


def repacked(state, **changes):
    """The bytes of a state with another header."""
    from safetensors.torch import save

    header = {"format": "dspark_ext.request", "version": 1, "request": state.request,
              "identity": state.identity, "parts": [], **changes}  # fmt: skip
    return save({"token_ids": state.token_ids}, metadata={"dspark_ext.request": json.dumps(header)})


def test_other_files_are_named(given_state, tmp_path):
    from safetensors.torch import save

    ids = {"token_ids": torch.tensor([1])}
    deep = "[" * 100_000
    cases = [
        (b"", "not a safetensors file"),
        (b"\x80\x04pickle", "not a safetensors file"),
        (b"\xff" * 64, "not a safetensors file"),
        (given_state.to_bytes()[:-1], "not a safetensors file"),
        (save(ids), "header: no 'dspark_ext.request'"),
        (save(ids, metadata={"dspark_ext.request": "{"}), "header: not JSON"),
        (save(ids, metadata={"dspark_ext.request": deep}), "header: not JSON"),
        (save(ids, metadata={"dspark_ext.request": "[]"}), "header: expected an object"),
        (repacked(given_state, format="x"), "format: expected 'dspark_ext.request', got x"),
        (repacked(given_state, version=2), "version: expected 1, got 2"),
        (repacked(given_state, request=3), "request: expected an object, got 3"),
        (repacked(given_state, identity={"target": {"a": 1}}), "identity: expected texts"),
        (repacked(given_state, parts=["os"]), "parts: expected some of target, drafter"),
        (repacked(given_state, parts=[["x"]]), "parts: expected some of"),
    ]
    for index, (data, message) in enumerate(cases):
        path = tmp_path / f"{index}.safetensors"
        path.write_bytes(data)
        with pytest.raises(HandoverError, match=f"{index}.safetensors: {message}"):
            RequestState.load(path)
    with pytest.raises(FileNotFoundError):
        RequestState.load(tmp_path / "none")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_damaged_file_passes_unseen_or_kills(given_state, taker, data):
    """Bytes changed anywhere in the header: an error with a name, or the same state."""
    raw = bytearray(given_state.to_bytes())
    length = int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, 8 + length - 1))] = data.draw(st.integers(0, 255))
    try:
        import_request(taker, RequestState.from_bytes(bytes(raw)))
    except HandoverError:
        pass
    for _ in range(3):
        taker.step()
    taker.close() if hasattr(taker, "close") else None
    for handle in list(taker._handles.values()):
        taker.cancel(handle)
    assert taker.slots.available == 2


def test_a_file_has_its_name_when_it_is_whole(given_state, tmp_path):
    path = tmp_path / "state.safetensors"
    given_state.save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["state.safetensors"]
    again = RequestState.load(path)
    assert again.request == given_state.request and again.identity == given_state.identity
    for part, named in given_state.tensors.items():
        for name, tensor in named.items():
            assert torch.equal(again.tensors[part][name], tensor)
    broken = changed(given_state, seed=object())
    with pytest.raises(TypeError):
        broken.save(tmp_path / "other")
    assert [each.name for each in tmp_path.iterdir()] == ["state.safetensors"]
