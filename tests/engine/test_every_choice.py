"""The law of whole texts through the engine, exactly: every run there can be, with its chance.

Chi-square over drawn texts (test_blocks_law.py) sees biases of a percent; this sees 1e-6, in the
joint law of two requests that share passes too. The noise is not looked at here: reuse of it is
what the drawn texts are for.
"""

import itertools

import numpy as np
import pytest
import torch
from every_choice import law_of_runs
from law_oracle import target_law
from table_models import TableDrafter, TableTarget, table

from dspark_ext.engine import DSparkEngine, NGramDrafter, SamplingParams, SpeculativeConfig, step
from dspark_ext.verify import CostTable

TARGET = table([[6, 2, 1], [1, 5, 3], [2, 1, 4]])
DRAFTER = table([[3, 3, 2], [4, 2, 2], [1, 3, 3]])
CONFIDENCE = torch.tensor([0.9, 0.4, 0.7])
ROWS, SECONDS = [1, 2, 3, 4, 5, 6, 9], [1.0, 1.2, 1.7, 1.8, 2.5, 2.6, 4.0]
COST = CostTable(ROWS, SECONDS, request_rows=[1, 2], request_seconds=[0.2, 0.3])
START = 0


def run_of(texts, config, drafter, params, vocab):
    """A function that serves `texts` on a new engine and returns what was written."""

    def run():
        sizes = {"max_requests": len(texts), "max_len": 12}
        target = TableTarget(TARGET[:vocab, :vocab].contiguous(), **sizes)
        if drafter == "ngram":
            drafts = NGramDrafter.for_target(target, block_size=2, min_ngram=1, max_ngram=2)
        else:
            logits = DRAFTER[:vocab, :vocab].contiguous()
            drafts = TableDrafter(logits, CONFIDENCE[:vocab], 2, **sizes)
        engine = DSparkEngine(target, drafts, SpeculativeConfig(**config))
        outputs = engine.generate(texts, params).outputs
        return tuple(tuple(output.token_ids) for output in outputs)

    return run


def plain_law(text, params, vocab):
    """{written tokens: chance} of the target alone, by the rules as docs/engine.md words them."""
    law, left = {}, [((), 1.0)]
    while left:
        written, chance = left.pop()
        if len(written) == params.max_new_tokens or (
            written and written[-1] in params.stop_token_ids
        ):
            law[written] = law.get(written, 0.0) + chance
            continue
        row = TARGET[(*text, *written)[-1], :vocab].double().numpy().copy()
        for token in range(vocab):
            row[token] = ruled(row[token], token, text, written, params)
        filters = {name: getattr(params, name) for name in ("top_k", "top_p", "min_p")}
        filters = {name: value for name, value in filters.items() if value is not None}
        chances = target_law(row, params.temperature, **filters)
        left += [((*written, y), chance * p) for y, p in enumerate(chances) if p > 0]
    return law


def ruled(value, token, text, written, params):
    allowed, mask = params.allowed_token_ids, params.token_mask
    if allowed is not None and token not in allowed:
        return -np.inf
    if mask is not None and token not in mask(list(written)):
        return -np.inf
    if token in params.stop_token_ids and len(written) < params.min_new_tokens:
        return -np.inf
    value += dict(params.logit_bias or ()).get(token, 0.0)
    if token in (*text, *written):
        ratio = params.repetition_penalty
        value = value / ratio if value > 0 else value * ratio
    count = written.count(token)
    return value - params.frequency_penalty * count - params.presence_penalty * (count > 0)


def assert_exact(law, laws, tolerance=1e-6):
    """The joint law of independent requests, each with its own."""
    assert abs(sum(law.values()) - 1) < tolerance
    for texts in {*law, *itertools.product(*laws)}:
        chance = np.prod([each.get(text, 0.0) for each, text in zip(laws, texts, strict=True)])
        assert abs(law.get(texts, 0.0) - chance) < tolerance, texts


def check(monkeypatch, config, drafter="table", requests=1, vocab=3, **params):
    params = [SamplingParams(seed=index, **params) for index in range(requests)]
    texts = [[1, (START + index) % vocab] for index in range(requests)]
    law, runs = law_of_runs(monkeypatch, run_of(texts, config, drafter, params, vocab))
    laws = [plain_law(tuple(text), each, vocab) for text, each in zip(texts, params, strict=True)]
    assert_exact(law, laws)


CONFIGS = {
    "fixed": {},
    "token": {"rejection_sample_method": "token"},
    "greedy drafts": {"draft_sample_method": "greedy"},
    "threshold": {"schedule": "threshold", "confidence_threshold": 0.5},
    "by position": {"schedule": "threshold", "confidence_threshold": (0.3, 0.8)},
    "early_stop": {"schedule": "early_stop", "cost_table": COST},
    "budget": {"schedule": "budget", "verify_budget": 3},
    "lagged": {"schedule": "lagged", "cost_table": COST},
    "uniform": {"schedule": "uniform", "cost_table": COST},
    "blocks": {"num_speculative_tokens": 1, "blocks_per_step": 2, "continue_threshold": 0.6},
    "blocks, early_stop": {
        "num_speculative_tokens": 1,
        "blocks_per_step": 2,
        "continue_threshold": 0.6,
        "schedule": "early_stop",
        "cost_table": COST,
    },
    "switch": {"min_acceptance": 0.6, "acceptance_window": 1, "probe_interval": 1},
    "gate": {"draft_gate": True, "cost_table": COST},
}
LAWS = {
    "bias": {"logit_bias": {0: -1.5, 2: 0.7}},
    "penalties": {
        "repetition_penalty": 1.7,
        "presence_penalty": 0.6,
        "frequency_penalty": -0.4,
    },
    "mask by place": {"token_mask": lambda written: [0, 2] if len(written) % 2 else [1, 2]},
    "mask by token": {"token_mask": lambda written: [1] if written[-1:] == [0] else [0, 1, 2]},
    "allowed": {"allowed_token_ids": [0, 2]},
    "stop": {"stop_token_ids": (2,), "min_new_tokens": 2},
    "top_k": {"top_k": 2, "temperature": 0.7},
    "top_p": {"top_p": 0.8, "temperature": 1.3},
    "min_p": {"min_p": 0.3},
    "greedy": {"temperature": 0.0},
    "all": {
        "temperature": 1.4,
        "top_p": 0.9,
        "logit_bias": {0: 1.0},
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "stop_token_ids": (2,),
        "min_new_tokens": 1,
    },
}
SHORT = {"max_new_tokens": 3}
LONG = {"max_new_tokens": 4}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_text_has_its_law(monkeypatch, name):
    check(monkeypatch, CONFIGS[name], **SHORT)


@pytest.mark.parametrize("name", ["fixed", "blocks, early_stop"])
@pytest.mark.parametrize("law", LAWS)
def test_rules_and_filters_have_theirs(monkeypatch, law, name):
    check(monkeypatch, CONFIGS[name], **SHORT, **LAWS[law])


@pytest.mark.parametrize("name", ["lagged", "switch", "gate", "blocks, early_stop"])
def test_requests_that_share_passes_are_independent(monkeypatch, name):
    check(monkeypatch, CONFIGS[name], requests=2, vocab=2, **SHORT)


@pytest.mark.parametrize("name", ["fixed", "token", "threshold"])
def test_looked_up_drafts_change_nothing(monkeypatch, name):
    check(monkeypatch, CONFIGS[name], drafter="ngram", **LONG)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("law", [None, *LAWS])
def test_longer_texts_have_their_law(monkeypatch, law, name):
    check(monkeypatch, CONFIGS[name], **LONG, **LAWS.get(law, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_requests_of_any_schedule_are_independent(monkeypatch, name):
    check(monkeypatch, CONFIGS[name], requests=2, vocab=2, **SHORT)


def test_a_rule_that_looks_ahead_is_seen(monkeypatch):
    """Negative control: the second draft is verified only if it is token 0."""
    kept = step.propose

    def peeking(*args, **kwargs):
        proposal = kept(*args, **kwargs)
        ids = proposal.draft.token_ids
        if ids.shape[1] == 2:
            proposal.made = [2 if token == 0 else 1 for token in ids[:, 1].tolist()]
        return proposal

    monkeypatch.setattr(step, "propose", peeking)
    with pytest.raises(AssertionError):
        check(monkeypatch, CONFIGS["fixed"], **SHORT)
