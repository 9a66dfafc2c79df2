"""Biases, masks and penalties: in every row of a block as in plain decoding, and nobody else's."""

import itertools
import math

import pytest
import torch
from lawkit import assert_law
from table_models import TableDrafter, TableTarget, table

from dspark_ext.engine import DSparkEngine, SamplingParams, SpeculativeConfig

SIZE, START, LENGTH, RUNS = 4, 0, 3, 4000
TARGET = table([[5, 3, 2, 1], [3, 1, 4, 2], [2, 3, 3, 4], [4, 2, 1, 3]]).contiguous()
DRAFTER = table([[3, 3, 2, 2], [4, 2, 2, 1], [1, 3, 3, 2], [3, 1, 2, 4]])


def make_engine(slots=64, target=TARGET, **config):
    sizes = {"max_requests": slots, "max_len": 24}
    drafter = TableDrafter(DRAFTER, torch.full((SIZE,), 0.8), 3, **sizes)
    config = SpeculativeConfig(prefill_chunk=400, **config)
    return DSparkEngine(TableTarget(target, **sizes), drafter, config)


def no_repeats(emitted):
    """A grammar: no token may follow itself."""
    return [token for token in range(SIZE) if not emitted or token != emitted[-1]]


def alternating(emitted):
    """Even tokens, then odd ones, as booleans."""
    return torch.arange(SIZE) % 2 == len(emitted) % 2


RULES = {
    "bias": {"logit_bias": {1: 1.5, 2: -0.75}},
    "ban": {"logit_bias": {0: -math.inf}},
    "allowed": {"allowed_token_ids": (1, 3)},
    "grammar of ids": {"token_mask": no_repeats},
    "grammar of booleans": {"token_mask": alternating},
    "presence": {"presence_penalty": 1.2},
    "frequency": {"frequency_penalty": 0.9},
    "negative": {"frequency_penalty": -0.6, "presence_penalty": -0.5},
    "repetition": {"repetition_penalty": 1.8},
    "all": {
        "logit_bias": ((2, 0.5), (3, -0.5)),
        "allowed_token_ids": (0, 2, 3),
        "token_mask": no_repeats,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.3,
    },
}


def row_of(rules, prompt, emitted, temperature=1.0):
    """The reference: one row, in float64, as the docstrings say it."""
    row = TARGET[[*prompt, *emitted][-1]].double().tolist()
    allowed = set(range(SIZE)) & set(rules.get("allowed_token_ids", range(SIZE)))
    if "token_mask" in rules:
        said = rules["token_mask"](list(emitted))
        said = said.nonzero()[:, 0].tolist() if isinstance(said, torch.Tensor) else said
        allowed &= set(said)
    for token, bias in dict(rules.get("logit_bias", ())).items():
        row[token] += bias
    for token in range(SIZE):
        count = list(emitted).count(token)
        if count or token in prompt:
            ratio = rules.get("repetition_penalty", 1.0)
            row[token] = row[token] / ratio if row[token] > 0 else row[token] * ratio
        row[token] -= rules.get("frequency_penalty", 0.0) * count
        row[token] -= rules.get("presence_penalty", 0.0) * (count > 0)
        if token not in allowed:
            row[token] = -math.inf
    return torch.tensor(row, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "method"), [*((name, "block") for name in RULES), ("all", "token")]
)
def test_texts_follow_the_changed_law(name, method):
    engine = make_engine(rejection_sample_method=method)
    rules, prompt = RULES[name], [1, START]
    params = [SamplingParams(seed=seed, max_new_tokens=LENGTH + 2, **rules) for seed in range(RUNS)]
    generation = engine.generate([prompt] * RUNS, params)
    tokens = torch.tensor([output.token_ids[:LENGTH] for output in generation.outputs])
    joint = torch.ones(1, dtype=torch.float64)
    for length in range(LENGTH):
        texts = itertools.product(range(SIZE), repeat=length)
        laws = [
            row_of(rules, prompt, text).softmax(-1) if mass > 0 else torch.zeros(SIZE).double()
            for text, mass in zip(texts, joint)
        ]
        joint = (joint[:, None] * torch.stack(laws)).flatten()
    cells = (tokens * SIZE ** torch.arange(LENGTH - 1, -1, -1)).sum(1)
    assert_law(cells, joint, name)
    assert generation.stats.acceptance.accepted > 0


@pytest.mark.parametrize("name", RULES)
def test_greedy_text_is_that_of_plain_decoding(name):
    """And of the reference, among others that have no rules or other ones."""
    engine, prompts = make_engine(slots=5), [[2, 1], [START], [3], [1, 1, 3], [2]]
    mine = SamplingParams(temperature=0.0, max_new_tokens=12, logprobs=1, **RULES[name])
    bare = SamplingParams(temperature=0.0, max_new_tokens=12)
    params = [bare, mine, SamplingParams(seed=1, max_new_tokens=12), mine, bare]
    drafted, plain = (
        [output.token_ids for output in engine.generate(prompts, params, speculative=way).outputs]
        for way in (True, False)
    )
    assert [drafted[at] for at in (0, 1, 3, 4)] == [plain[at] for at in (0, 1, 3, 4)]
    for at in (1, 3):
        for place, token in enumerate(drafted[at]):
            row = row_of(RULES[name], prompts[at], drafted[at][:place])
            assert float(row[token]) == pytest.approx(float(row.max()), abs=1e-5)
    for at in (0, 2, 4):
        alone = engine.generate([prompts[at]], [params[at]]).outputs[0]
        assert at == 2 or alone.token_ids == drafted[at]


def test_a_seed_gives_its_tokens_alone_or_in_a_batch():
    engine = make_engine(slots=6)
    params = [
        SamplingParams(seed=seed, max_new_tokens=12, **rules)
        for seed, rules in enumerate((RULES["all"], {}, RULES["frequency"], RULES["bias"], {}))
    ]
    together = engine.generate([[1, 2]] * 5, params).outputs
    for each, output in zip(params, together):
        assert engine.generate([[1, 2]], each).outputs[0].token_ids == output.token_ids


def test_stop_tokens_stay_masked_whatever_the_bias():
    params = SamplingParams(
        max_new_tokens=8, min_new_tokens=4, stop_token_ids=2, logit_bias={2: 50.0}, seed=3
    )
    output = make_engine().generate([[START]], params).outputs[0]
    assert 2 not in output.token_ids[:4] and output.token_ids[4:] == [2]


def test_a_grammar_is_asked_along_the_drafts_and_no_further():
    """Of texts that can be: behind a draft that may not follow it is not asked."""
    asked = []

    def mask(emitted):
        assert all(first != second for first, second in zip(emitted, emitted[1:]))
        asked.append(tuple(emitted))
        return no_repeats(emitted)

    params = [SamplingParams(seed=seed, max_new_tokens=9, token_mask=mask) for seed in range(20)]
    outputs = make_engine().generate([[1, START]] * 20, params).outputs
    for output in outputs:
        assert output.finish_reason == "length"
        assert {tuple(output.token_ids[:place]) for place in range(9)} <= set(asked)


@pytest.mark.parametrize(
    "mask", [lambda emitted: [], lambda emitted: [9], lambda emitted: torch.ones(3).bool()]
)
def test_a_grammar_that_fails_ends_its_request_alone(mask, caplog):
    engine = make_engine(slots=2)
    bare = SamplingParams(temperature=0.0, max_new_tokens=6)
    params = [SamplingParams(max_new_tokens=6, token_mask=mask), bare]
    broken, other = engine.generate([[START], [START]], params).outputs
    assert broken.finish_reason == "error" and broken.token_ids == []
    assert "request 0" in caplog.text
    assert other.token_ids == engine.generate([[START]], bare).outputs[0].token_ids


def test_log_probabilities_are_of_the_changed_law():
    rules = RULES["all"]
    params = SamplingParams(seed=5, max_new_tokens=9, logprobs=2, **rules)
    output = make_engine().generate([[1, START]], params).outputs[0]
    for place, (token, told) in enumerate(zip(output.token_ids, output.logprobs)):
        law = row_of(rules, [1, START], output.token_ids[:place]).softmax(-1)
        assert told.logprob == pytest.approx(float(law[token].log()), abs=1e-5)
        for other, value in told.top:
            assert value == pytest.approx(float(law[other].log()), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {"1": 2.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", 5),
        ("logit_bias", [1, 2]),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", 1.5),
        ("token_mask", [1]),
        ("presence_penalty", 2.5),
        ("frequency_penalty", math.nan),
        ("frequency_penalty", True),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
    ],
)
def test_bad_rules_are_named(name, value):
    with pytest.raises(ValueError, match=f"SamplingParams: {name}: expected "):
        SamplingParams(**{name: value})


def test_ids_of_rules_are_in_the_vocabulary():
    for rules in ({"logit_bias": {SIZE: 1.0}}, {"allowed_token_ids": (0, SIZE)}):
        with pytest.raises(ValueError, match=rf"{next(iter(rules))} 0: expected token ids in \[0"):
            make_engine().generate([[0]], SamplingParams(**rules))


def test_rules_are_written_and_read():
    params = SamplingParams(**{**RULES["all"], "token_mask": None})
    assert SamplingParams.from_dict(params.to_dict()) == params
    assert params.to_dict()["logit_bias"] == [[2, 0.5], [3, -0.5]]
    with pytest.raises(ValueError, match="token_mask: expected None, a function cannot be"):
        SamplingParams(token_mask=no_repeats).to_dict()
