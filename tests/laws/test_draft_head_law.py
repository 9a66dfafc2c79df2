"""Text drafted by a random draft head and verified by the engine follows the target's law.

The target is a table, p(next | last two tokens), so its law is known exactly; its features are
another. Each chi-square fails by chance with probability lawkit.FALSE_ALARM; there are 9 of them,
so a correct build fails here with 9e-6 at most.
"""

import itertools

import draft_heads
import pytest
import torch
from lawkit import FALSE_ALARM, assert_law, chi_square_p

from dspark_ext.engine import (
    Draft,
    DSparkEngine,
    HeadDrafter,
    SamplingParams,
    SpeculativeConfig,
    TargetOutput,
)
from dspark_ext.verify import CostTable

VOCAB, LENGTH, RUNS, SLOTS = 5, 3, 4000, 500
PROMPT = [1, 3, 0, 2, 4, 4, 0, 1]  # longer than the window


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with draft_heads.one_thread():
        yield


class TableTarget:
    """Logits and features are functions of the last two tokens of a slot."""

    vocab_size, max_requests, max_len = VOCAB, SLOTS, 16

    def __init__(self, num_features: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.num_features = num_features
        self.logits = 1.5 * torch.randn(VOCAB, VOCAB, VOCAB, generator=generator)
        self.features = torch.randn(VOCAB, VOCAB, num_features, generator=generator)
        self.tokens = torch.zeros(SLOTS, self.max_len, dtype=torch.int64)

    def forward(self, batch) -> TargetOutput:
        self.tokens[batch.slots, batch.positions] = batch.input_ids
        before = self.tokens[batch.slots, (batch.positions - 1).clamp(min=0)]
        key = before, batch.input_ids
        return TargetOutput(self.logits[key][batch.logit_rows], self.features[key])

    def law(self, temperature: float) -> torch.Tensor:
        """Joint law [VOCAB ** LENGTH] of the first tokens after the prompt."""
        p = (self.logits.double() / temperature).softmax(-1)
        chances = []
        for text in itertools.product(range(VOCAB), repeat=LENGTH):
            whole = [*PROMPT[-2:], *text]
            chances.append(torch.stack([p[whole[i], whole[i + 1], x] for i, x in enumerate(text)]))
        return torch.stack(chances).prod(1)


def cost_table() -> CostTable:
    """Rows get dearer from half a batch on, so that early_stop has something to stop for."""
    return CostTable([1, SLOTS, 4 * SLOTS], [1.0, 1.4, 4.0])


CONFIGS = {
    "deepseek_v41": draft_heads.deepseek("deepseek_v41", vocab_size=VOCAB, dspark_noise_token_id=0),
    "qwen3": draft_heads.dense("qwen3", vocab_size=VOCAB, block_size=5),
}
SCHEDULES = {
    "fixed": {},
    "early_stop": {"schedule": "early_stop", "cost_table": cost_table()},
}


def serve(flavour, drafter_type=HeadDrafter, dtype=torch.float32, **config):
    head = draft_heads.make(CONFIGS[flavour], dtype=dtype)
    target = TableTarget(head.config.num_features)
    drafter = drafter_type(head, max_requests=SLOTS, max_len=target.max_len)
    settings = SpeculativeConfig(num_speculative_tokens=3, prefill_chunk=8 * SLOTS, **config)
    return DSparkEngine(target, drafter, settings)


def write(engine, temperature):
    params = SamplingParams(temperature=temperature, max_new_tokens=LENGTH)
    generation = engine.generate([PROMPT] * RUNS, params)
    tokens = torch.tensor([output.token_ids for output in generation.outputs])
    cells = (tokens * VOCAB ** torch.arange(LENGTH - 1, -1, -1)).sum(1)
    return cells, generation.stats


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", ["block", "token"])
def test_a_v41_head_is_lossless_br064(method, schedule):
    """With three drafts of a block trained for five."""
    engine = serve("deepseek_v41", rejection_sample_method=method, **SCHEDULES[schedule])
    assert engine.num_drafts == 3 < engine.drafter.head.config.trained_drafts
    cells, stats = write(engine, 0.9)
    assert_law(cells, engine.target.law(0.9), f"{method}, {schedule}")
    assert stats.tokens_per_pass > 1.1  # drafts were accepted
    if schedule == "early_stop":
        assert stats.passes < stats.verified_rows < 3 * stats.passes  # some verified, some not


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_dense_head_is_lossless(schedule):
    engine = serve("qwen3", **SCHEDULES[schedule])
    cells, stats = write(engine, 1.3)
    assert_law(cells, engine.target.law(1.3), schedule)
    assert stats.tokens_per_pass > 1.1


def test_a_bfloat16_head_is_lossless_br010():
    """Drafts are drawn from bf16 logits; the verifier reads the same ones."""
    engine = serve("deepseek_v41", dtype=torch.bfloat16)
    cells, stats = write(engine, 0.7)
    assert_law(cells, engine.target.law(0.7), "bf16")
    assert stats.tokens_per_pass > 1.1


class WrongLogits(HeadDrafter):
    """Hands over logits that the drafts were not drawn from."""

    def draft(self, batch, num_drafts, method):
        made = super().draft(batch, num_drafts, method)
        return Draft(made.token_ids, 0.5 * made.logits, made.confidence)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_other_logits_than_those_drawn_from_are_seen(schedule):
    """Negative control."""
    engine = serve("deepseek_v41", WrongLogits, **SCHEDULES[schedule])
    cells, _ = write(engine, 0.9)
    counts = torch.bincount(cells, minlength=VOCAB**LENGTH)
    assert chi_square_p(counts, engine.target.law(0.9)) < FALSE_ALARM
