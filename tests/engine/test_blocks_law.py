"""Every schedule, several blocks per step and switching off keep the law of whole texts: the joint
law of the first tokens, against the product of the target's table."""

import pytest
import torch
from lawkit import assert_law, chi_square_p
from table_models import TableDrafter, TableTarget, table

from dspark_ext.engine import DSparkEngine, SamplingParams, SpeculativeConfig, drafting
from dspark_ext.verify import CostTable

TARGET = table([[6, 2, 1], [1, 5, 3], [2, 1, 4]])
DRAFTER = table([[3, 3, 2], [4, 2, 2], [1, 3, 3]])
CONFIDENCE = torch.tensor([0.9, 0.4, 0.7])
START, LENGTH, RUNS, SLOTS = 0, 4, 6000, 96
COST = CostTable([1, 50, 500], [1.0, 1.5, 4.0], request_rows=[1], request_seconds=[0.1])


def make_engine(block_size=2, slots=SLOTS, **config):
    sizes = {"max_requests": slots, "max_len": 12}
    return DSparkEngine(
        TableTarget(TARGET, **sizes),
        TableDrafter(DRAFTER, CONFIDENCE, block_size, **sizes),
        SpeculativeConfig(prefill_chunk=400, **config),
    )


def draw(engine, runs=RUNS, seed=0):
    params = [SamplingParams(seed=seed + index, max_new_tokens=LENGTH + 3) for index in range(runs)]
    generation = engine.generate([[1, START]] * runs, params)
    tokens = torch.tensor([output.token_ids[:LENGTH] for output in generation.outputs])
    weights = 3 ** torch.arange(LENGTH - 1, -1, -1)
    return (tokens * weights).sum(1), generation


def law():
    step = TARGET.double().softmax(-1)
    joint = step[START]
    for _ in range(LENGTH - 1):
        joint = (joint.view(-1, 3)[:, :, None] * step[None]).flatten()
    return joint


CONFIGS = {
    "two blocks, fixed": {"blocks_per_step": 2, "continue_threshold": 0.3},
    "two blocks of one, token": {
        "num_speculative_tokens": 1,
        "blocks_per_step": 2,
        "continue_threshold": 0.5,
        "rejection_sample_method": "token",
    },
    "three blocks of one, threshold": {
        "num_speculative_tokens": 1,
        "blocks_per_step": 3,
        "continue_threshold": 0.3,
        "schedule": "threshold",
        "confidence_threshold": 0.5,
    },
    "two blocks, early_stop": {
        "blocks_per_step": 2,
        "continue_threshold": 0.25,
        "schedule": "early_stop",
        "cost_table": COST,
    },
    "two blocks, budget": {
        "blocks_per_step": 2,
        "continue_threshold": 0.3,
        "schedule": "budget",
        "verify_budget": 200,
    },
    "thresholds by position": {
        "schedule": "threshold",
        "confidence_threshold": (0.3, 0.8),
        "num_speculative_tokens": 2,
    },
    "budget": {"schedule": "budget", "verify_budget": 150},
    "lagged": {"schedule": "lagged", "cost_table": COST},
    "uniform": {"schedule": "uniform", "cost_table": COST},
    "min_acceptance": {"min_acceptance": 0.5, "acceptance_window": 200, "probe_interval": 2},
    "draft_gate": {"draft_gate": True, "cost_table": COST},
    "drafts by batch size": {
        "num_speculative_tokens_per_batch_size": ((1, 40, 2), (41, 90, 1), (91, 99, 0))
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_follow_the_target(name):
    engine = make_engine(**CONFIGS[name])
    cells, generation = draw(engine)
    assert_law(cells, law(), name)
    stats = generation.stats
    assert stats.drafted > 0
    if "two blocks" in name:
        assert engine.most_drafts > engine.num_drafts
        by_position = stats.acceptance.accepted_by_position
        assert (by_position[engine.num_drafts :] > 0).all()
    if engine.config.schedule != "fixed":
        assert stats.trimmed_rows > 0


@pytest.mark.parametrize("method", ["block", "token"])
def test_masked_stop_tokens_leave_the_rest_of_the_law(method):
    """`min_new_tokens`: the law of the target without the stop token, in every row of a block."""
    engine = make_engine(rejection_sample_method=method)
    params = [
        SamplingParams(
            seed=index, max_new_tokens=LENGTH + 3, min_new_tokens=LENGTH, stop_token_ids=(2,)
        )
        for index in range(RUNS)
    ]
    outputs = engine.generate([[1, START]] * RUNS, params).outputs
    tokens = torch.tensor([output.token_ids[:LENGTH] for output in outputs])
    assert (tokens < 2).all()
    step = TARGET.double()[:2, :2].softmax(-1)
    joint = step[START]
    for _ in range(LENGTH - 1):
        joint = (joint.view(-1, 2)[:, :, None] * step[None]).flatten()
    assert_law((tokens * 2 ** torch.arange(LENGTH - 1, -1, -1)).sum(1), joint, method)
    ends = [output.finish_reason == "stop" for output in outputs]
    assert 0.2 < sum(ends) / RUNS < 0.8


def test_reused_noise_breaks_the_law(monkeypatch):
    """Negative control: a second block that draws its drafts under the request's own seed."""
    monkeypatch.setattr(drafting, "_GOLDEN", 0)
    config = {
        "num_speculative_tokens": 1,
        "blocks_per_step": 3,
        "continue_threshold": 0.0,
        "rejection_sample_method": "block",
    }
    cells, _ = draw(make_engine(**config), 8000)
    counts = torch.bincount(cells, minlength=3**LENGTH)
    assert chi_square_p(counts, law()) < 1e-6


def test_a_rule_that_looks_ahead_breaks_the_law(monkeypatch):
    """Negative control: a second block that is verified only if its own drafts look good."""
    from dspark_ext.engine import step

    kept = step.propose

    def peeking(*args, **kwargs):
        proposal = kept(*args, **kwargs)
        ids = proposal.draft.token_ids
        if ids.shape[1] == 2:
            proposal.made = [
                min(made, 2 if token == 0 else 1)
                for made, token in zip(proposal.made, ids[:, 1].tolist())
            ]
        return proposal

    monkeypatch.setattr(step, "propose", peeking)
    config = {"num_speculative_tokens": 1, "blocks_per_step": 2, "continue_threshold": 0.0}
    cells, _ = draw(make_engine(**config))
    counts = torch.bincount(cells, minlength=3**LENGTH)
    assert chi_square_p(counts, law()) < 1e-6


@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
def test_a_seed_gives_its_tokens_alone_or_in_a_batch(method):
    config = {
        "blocks_per_step": 2,
        "continue_threshold": 0.3,
        "draft_sample_method": method,
    }
    together, _ = draw(make_engine(**config), 40, seed=100)
    alone = [draw(make_engine(slots=1, **config), 1, seed=100 + n)[0] for n in range(40)]
    assert torch.equal(together, torch.cat(alone))


def test_who_gets_a_further_block():
    engine = make_engine(blocks_per_step=3, continue_threshold=0.5)
    target, drafter = engine.target, engine.drafter
    target.logits = torch.where(torch.eye(3) > 0, 9.0, -9.0).float()  # a token repeats itself
    drafter.logits = target.logits
    # 0.9 to the fourth is 0.66, so token 0 gets all blocks; 0.4 and 0.7 squared are below 0.5
    for token, verified in ((0, [2, 1, 1, 1, 1, 1]), (1, [3, 3]), (2, [3, 3])):
        params = SamplingParams(temperature=0.0, max_new_tokens=9)
        output = engine.generate([[token]], params).outputs[0]
        assert output.token_ids == [token] * 9
        assert output.stats.verified_by_position == verified
    # room ends it: of four tokens, three may be drafts
    output = engine.generate([[0]], SamplingParams(temperature=0.0, max_new_tokens=3)).outputs[0]
    assert output.stats.verified_by_position == [1, 1] and output.stats.drafted == 2


def test_the_trained_drafter_chains_blocks(serve, prompts):
    params = SamplingParams(temperature=0.0, max_new_tokens=40)
    engine = serve(
        max_requests=3, num_speculative_tokens=2, blocks_per_step=3, continue_threshold=0.2
    )
    generation = engine.generate(prompts, params)
    plain = engine.generate(prompts, params, speculative=False)
    assert [output.token_ids for output in generation.outputs] == [
        output.token_ids for output in plain.outputs
    ]
    accepted = generation.stats.acceptance.accepted_by_position
    assert len(accepted) == 6 and accepted[2] > 0


def test_chained_blocks_need_a_drafter_that_can(serve, monkeypatch):
    monkeypatch.setattr(TableDrafter, "chains_blocks", False)
    with pytest.raises(ValueError, match="blocks_per_step: TableDrafter cannot draft behind"):
        make_engine(blocks_per_step=2)
