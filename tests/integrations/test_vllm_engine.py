"""The plugin inside a real vLLM on a CPU: `make vllm-test VLLM=<interpreter that has vLLM>`.

Every engine is a process of its own, found through real entry points. Greedy output must be that of
vLLM without drafts; sampled output must follow the exact law of the target, which transformers
computes. A law test fails by chance with probability FALSE_ALARM (lawkit).
"""

import itertools
import json
import os
import pathlib
import subprocess

import pytest
import torch
from lawkit import FALSE_ALARM, assert_law, chi_square_p

import dspark_ext

PYTHON = os.environ.get("DSPARK_VLLM_PYTHON")
HERE = pathlib.Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
PACKAGE = pathlib.Path(dspark_ext.__file__).parent.parent

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="needs vLLM: make vllm-test VLLM=<interpreter> (docs/integrations.md)"
)

PROMPTS = [
    'def get_name(self):\n    """Return the',
    "import os\nimport sys\n\nclass ",
    "    for key",
]
TEMPERATURE, TOP_K, LENGTH, REQUESTS = 1.3, 4, 3, 2000
NGRAM = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def requests(**params):
    return [{"prompt": list(prompt.encode()), "params": params} for prompt in PROMPTS]


GREEDY = requests(temperature=0.0, max_tokens=48, logprobs=0)
CONTROLLED = requests(
    temperature=0.0,
    max_tokens=24,
    repetition_penalty=1.3,
    presence_penalty=0.5,
    min_tokens=20,
    stop_token_ids=[32],
    allowed_token_ids=[*range(9, 11), *range(32, 127)],
)
SEEDED = [request for seed in (1, 2) for request in requests(temperature=1.0, max_tokens=24)]
SEEDED = [
    {**request, "params": {**request["params"], "seed": seed}}
    for seed, request in enumerate(SEEDED)
]
LAW = [
    {
        "prompt": list(PROMPTS[1].encode()),
        "params": {"temperature": TEMPERATURE, "top_k": TOP_K, "max_tokens": LENGTH},
    }
] * REQUESTS


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The tests' tiny target, and a copy with noise on its weights as a draft model."""
    from dspark_ext.demo import tiny

    folder = tmp_path_factory.mktemp("models")
    target, draft = (tiny.load_target(FIXTURES / "tiny_target.safetensors") for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in draft.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(0.15 * weight.std() * noise)
    for name, model in {"target": target, "draft": draft}.items():
        model.config.architectures = ["LlamaForCausalLM"]
        model.save_pretrained(folder / name)
    return {"folder": folder, "target": target, "draft": draft}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """PYTHONPATH with this package and its entry points, as an installation would have them."""
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    site = tmp_path_factory.mktemp("site")
    info = site / f"dspark_ext-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: dspark_ext\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{site}"}
    run = subprocess.run(
        [PYTHON, "-c", "import vllm, dspark_ext"], env=environment, capture_output=True, text=True
    )
    if run.returncode:
        pytest.fail(f"{PYTHON} has no vLLM that dspark_ext loads beside:\n{run.stderr[-2000:]}")
    return environment


@pytest.fixture(scope="module")
def serve(models, environment, tmp_path_factory):
    """serve(plugin setting, speculative configuration, batches, model) -> the worker's results."""
    folder = tmp_path_factory.mktemp("runs")
    number = itertools.count()

    def run(setting, speculative, batches, model=None):
        job, results = (folder / f"{next(number)}.json" for _ in range(2))
        if speculative is not None:
            speculative = {"num_speculative_tokens": 4, **speculative}
        engine = {"model": str(model or models["folder"] / "target"), "speculative": speculative}
        job.write_text(json.dumps({**engine, "batches": batches}))
        process = subprocess.run(
            [PYTHON, str(HERE / "vllm_worker.py"), str(job), str(results)],
            env={**environment, "DSPARK_EXT_VLLM": setting},
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, (process.stdout + process.stderr)[-4000:]
        return {**json.loads(results.read_text()), "log": process.stdout + process.stderr}

    return run


@pytest.fixture(scope="module")
def draft_model(models):
    return {
        "method": "draft_model",
        "model": str(models["folder"] / "draft"),
        "draft_sample_method": "probabilistic",
    }


@pytest.fixture(scope="module")
def plain(serve):
    return serve("off", None, [GREEDY, CONTROLLED])


@pytest.fixture(scope="module")
def by_ngram(serve):
    batches = [GREEDY, CONTROLLED, SEEDED, *([request] for request in SEEDED), LAW]
    return serve("config", {**NGRAM, "rejection_sample_method": "block"}, batches)


@pytest.fixture(scope="module")
def by_adaptive_lookup(serve):
    drafter = {
        "method": "custom_class",
        "model": "dspark_ext.integrations.vllm_drafter.LookupDrafter",
    }
    batches = [GREEDY, CONTROLLED, SEEDED, LAW]
    return serve("config", {**drafter, "rejection_sample_method": "block"}, batches)


@pytest.fixture(scope="module", params=["token", "block"])
def by_draft_model(request, serve, draft_model):
    return request.param, serve(request.param, draft_model, [GREEDY, CONTROLLED, LAW])


def tokens(batch):
    return [request["tokens"] for request in batch]


def accepted(result):
    return result["metrics"]["vllm:spec_decode_num_accepted_tokens"]


def test_the_plugin_is_off_unless_asked_for(serve, plain):
    result = serve("off", NGRAM, [GREEDY])
    assert result["rule"] is None and accepted(result) > 0
    assert "dspark_ext judges" not in result["log"]
    assert tokens(result["batches"][0]) == tokens(plain["batches"][0])


def test_ngram_greedy_output_is_that_of_plain_decoding(plain, by_ngram):
    assert by_ngram["rule"] == "block" and accepted(by_ngram) > 0
    assert "dspark_ext judges drafts by the block rule (classic runner)" in by_ngram["log"]
    for theirs, ours in zip(plain["batches"], by_ngram["batches"]):
        assert tokens(ours) == tokens(theirs)


def test_adaptive_lookup_greedy_output_is_that_of_plain_decoding(plain, by_adaptive_lookup):
    assert by_adaptive_lookup["rule"] == "block" and accepted(by_adaptive_lookup) > 0
    for theirs, ours in zip(plain["batches"], by_adaptive_lookup["batches"]):
        assert tokens(ours) == tokens(theirs)


def test_adaptive_lookup_verifies_fewer_drafts_in_vain(by_ngram, by_adaptive_lookup):
    def share(result):
        return accepted(result) / result["metrics"]["vllm:spec_decode_num_draft_tokens"]

    assert share(by_adaptive_lookup) > share(by_ngram)


def test_draft_model_greedy_output_is_that_of_plain_decoding(plain, by_draft_model):
    rule, result = by_draft_model
    assert result["rule"] == rule and accepted(result) > 0
    for theirs, ours in zip(plain["batches"], result["batches"]):
        assert tokens(ours) == tokens(theirs)


def test_log_probabilities_are_those_of_plain_decoding(plain, by_ngram):
    for theirs, ours in zip(plain["batches"][0], by_ngram["batches"][0]):
        assert torch.allclose(
            torch.tensor(ours["logprobs"]), torch.tensor(theirs["logprobs"]), atol=1e-3
        )


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(by_ngram):
    together, alone = by_ngram["batches"][2], by_ngram["batches"][3 : 3 + len(SEEDED)]
    assert tokens(together) == [tokens(batch)[0] for batch in alone]
    assert tokens(together)[:3] != tokens(together)[3:], "the seed changed nothing"


@torch.no_grad()
def law_of_continuations(first, later, prompt=LAW[0]["prompt"], temperature=TEMPERATURE):
    """P [V^LENGTH sparse] of LENGTH tokens: the first by one model, the later by another."""
    law = {(): 1.0}
    for position in range(LENGTH):
        model = first if position == 0 else later
        prefixes = [*law]
        ids = torch.tensor([[*prompt, *prefix] for prefix in prefixes])
        logits = model(ids).logits[:, -1] / temperature
        values, tokens = logits.topk(TOP_K)
        law = {
            (*prefix, int(token)): law[prefix] * float(p)
            for prefix, row, probs in zip(prefixes, tokens, values.softmax(-1))
            for token, p in zip(row, probs)
        }
    return law


def counts_of(batch, law):
    cells = {continuation: cell for cell, continuation in enumerate(law)}
    found = [tuple(request["tokens"]) for request in batch]
    assert set(found) <= set(cells), "a token outside the top k"
    return torch.tensor([cells[continuation] for continuation in found])


def test_sampled_output_follows_the_law_of_the_target(
    models, by_ngram, by_adaptive_lookup, by_draft_model
):
    law = law_of_continuations(models["target"], models["target"])
    rule, drafted = by_draft_model
    results = {"n-gram": by_ngram, "adaptive": by_adaptive_lookup, rule: drafted}
    for what, result in results.items():
        assert_law(counts_of(result["batches"][-1], law), list(law.values()), what)


def test_the_law_test_would_see_the_drafters_law(models):
    law = law_of_continuations(models["target"], models["target"])
    other = law_of_continuations(models["target"], models["draft"])
    counts = [REQUESTS * other.get(continuation, 0.0) for continuation in law]
    assert chi_square_p(counts, list(law.values())) < FALSE_ALARM


# ---- a language model ---------------------------------------------------------------------------

QUESTIONS = [
    "Write the word banana ten times.",
    "Repeat three times: the quick brown fox jumps over the lazy dog.",
    "Explain how a refrigerator keeps food cold.",
]
REPETITION = "red green blue red green blue red green"
LANGUAGE_REQUESTS = 600


@pytest.fixture(scope="module")
def language(serve):
    """SmolLM2-135M-Instruct of the demo's cache, and what vLLM makes of it in three ways."""
    from dspark_ext.demo import smollm2

    if not (smollm2.cache_dir() / "smollm2-135m-instruct" / "complete").exists():
        pytest.skip("needs the demo's model: make demo fetches it")
    path = smollm2.prepare()
    model, tokenizer = smollm2.load()
    prompt = tokenizer(REPETITION, add_special_tokens=False)["input_ids"]
    greedy = [
        {
            "prompt": smollm2.encode_chat(tokenizer, question),
            "params": {"temperature": 0.0, "max_tokens": 32, "ignore_eos": True},
        }
        for question in QUESTIONS
    ]
    sampled = [{"prompt": prompt, "params": LAW[0]["params"]}] * LANGUAGE_REQUESTS
    block = {**NGRAM, "rejection_sample_method": "block"}
    return {
        "model": model,
        "prompt": prompt,
        "plain": serve("off", None, [greedy], path),
        "theirs": serve("off", NGRAM, [greedy], path),
        "ours": serve("config", block, [greedy, sampled], path),
    }


def test_a_language_models_greedy_text_is_that_of_plain_decoding(language):
    plain, theirs, ours = (language[name] for name in ("plain", "theirs", "ours"))
    assert (theirs["rule"], ours["rule"]) == (None, "block")
    assert accepted(theirs) > 0 and accepted(ours) > 0
    assert tokens(theirs["batches"][0]) == tokens(plain["batches"][0])
    assert tokens(ours["batches"][0]) == tokens(plain["batches"][0])


def test_a_language_models_sampled_text_follows_its_law(language):
    model, prompt = language["model"], language["prompt"]
    law = law_of_continuations(model, model, prompt)
    assert_law(counts_of(language["ours"]["batches"][1], law), list(law.values()), "SmolLM2")
    cooler = law_of_continuations(model, model, prompt, temperature=0.8)
    counts = [LANGUAGE_REQUESTS * cooler.get(continuation, 0.0) for continuation in law]
    assert chi_square_p(counts, list(law.values())) < FALSE_ALARM, "it would not see another law"


# ---- without an engine --------------------------------------------------------------------------


def test_the_v2_runners_sampler_is_served(environment):
    process = subprocess.run(
        [PYTHON, str(HERE / "vllm_v2_worker.py")],
        env={**environment, "DSPARK_EXT_VLLM": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, (process.stdout + process.stderr)[-4000:]
    line = next(x for x in process.stdout.splitlines() if x.startswith("REPORT "))
    report = json.loads(line.removeprefix("REPORT "))
    assert report["function"] == report["plugin"]
    assert report["sampled"] == [[3, 1, 2], [0, -1, -1], [4, -1, -1]]
    assert report["num_sampled"] == [3, 1, 1]


def test_an_unknown_setting_stops_the_engine(environment):
    process = subprocess.run(
        [PYTHON, "-c", "from vllm.plugins import load_general_plugins as load; load()"],
        env={**environment, "DSPARK_EXT_VLLM": "blok"},
        capture_output=True,
        text=True,
    )
    assert process.returncode != 0 and "got 'blok'" in process.stderr
