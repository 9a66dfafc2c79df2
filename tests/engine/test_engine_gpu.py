"""An engine on a GPU: what it waits for, which of several it computes on, torch's deterministic
mode. Needs one."""

import contextlib
import copy
import warnings

import backends
import pytest
import torch
from table_models import TableDrafter, TableTarget, table

from dspark_ext.engine import CausalLMTarget, DSparkDrafter, DSparkEngine, SamplingParams

SIZES = dict(max_requests=3, max_len=64)
PARAMS = [
    SamplingParams(temperature=0.0, max_new_tokens=20),
    SamplingParams(temperature=0.8, top_k=50, seed=5, max_new_tokens=17),
    SamplingParams(temperature=1.0, top_p=0.9, min_p=0.01, seed=6, max_new_tokens=23),
]


@pytest.fixture(autouse=True)
def gpu():
    if not backends.gpu_available():
        pytest.skip(f"needs a GPU that this build serves: {backends.gpu_missing()}")


def served(tiny_pair, device, graphs=None):
    model, head = tiny_pair
    target = CausalLMTarget(
        copy.deepcopy(model).to(device), head.config.dspark_target_layer_ids, **SIZES
    )
    return DSparkEngine(target, DSparkDrafter.for_target(head, target), graphs=graphs)


def texts(engine, prompts):
    return [each.token_ids for each in engine.generate(prompts[:3], PARAMS).outputs]


def test_the_host_waits_once_in_a_step(tiny_pair, prompts):
    engine = served(tiny_pair, "cuda")
    texts(engine, prompts)  # captures
    for prompt, params in zip(prompts, PARAMS):
        engine.submit(prompt, params)
    waits = []
    while engine.has_work:
        decodes = all(not each.prefill_left for each in engine._session._running)
        decodes = decodes and engine.num_waiting == 0 and engine.num_running > 0
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                engine.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        if decodes:
            waits.append(sum("synchronizing" in str(each.message) for each in found))
    assert len(waits) > 3 and set(waits) == {1}


@pytest.mark.parametrize("graphs", [None, False], ids=["graphs", "no graphs"])
def test_br057_an_engine_computes_on_the_gpu_of_its_target(tiny_pair, prompts, graphs):
    """Whichever is the current one, and after another engine captured elsewhere."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    torch.cuda.set_device(0)
    wanted = texts(served(tiny_pair, "cuda:0", graphs), prompts)
    engine = served(tiny_pair, "cuda:1", graphs)
    for _ in range(2):
        assert texts(engine, prompts) == wanted
    assert torch.cuda.current_device() == 0
    if graphs is None:
        runners = [*engine.target_graphs.runners.values(), *engine.draft_graphs.runners.values()]
        assert all(runner.failure is None and runner.captured for runner in runners)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("mode", [contextlib.nullcontext, deterministic])
def test_rules_for_tokens_under_torchs_deterministic_mode(mode):
    law = table([[6, 2, 1], [1, 5, 3], [2, 1, 4]])
    confidence = torch.tensor([0.9, 0.4, 0.7])
    params = [
        SamplingParams(max_new_tokens=12, seed=1, repetition_penalty=1.3, frequency_penalty=0.2),
        SamplingParams(max_new_tokens=12, seed=2, logit_bias=((1, 0.5),), presence_penalty=0.1),
        SamplingParams(max_new_tokens=12, seed=3, stop_token_ids=(2,), min_new_tokens=9),
    ]

    def run(device):
        target = TableTarget(law.to(device), 3, 24)
        target.device = torch.device(device)
        drafter = TableDrafter(law.to(device), confidence.to(device), 2, 3, 24)
        engine = DSparkEngine(target, drafter, graphs=False)
        return [each.token_ids for each in engine.generate([[0], [1], [0, 1]], params).outputs]

    with mode():
        found = run("cuda")
    assert found == run("cpu")
