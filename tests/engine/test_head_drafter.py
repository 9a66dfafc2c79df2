"""The engine with draft heads of the released flavours: slow drafts, right text."""

import draft_heads
import pytest
import torch

from dspark_ext.demo import tiny
from dspark_ext.engine import (
    DSparkEngine,
    HeadDrafter,
    HuggingFaceTarget,
    SamplingParams,
    SpeculativeConfig,
    output_taps,
)

SIZES = {"hidden_size": 128, "vocab_size": 256}
CONFIGS = {
    "v41": draft_heads.deepseek("deepseek_v41", dspark_noise_token_id=0, **SIZES),
    "v4": draft_heads.deepseek("deepseek_v4", dspark_noise_token_id=0, **SIZES),
    "qwen3": draft_heads.dense("qwen3", **SIZES),
    "qwen3-reduced": draft_heads.dense("qwen3", draft_vocab_size=100, **SIZES),
    "gemma4": draft_heads.dense("gemma4", **SIZES),
}


def serve(tiny_pair, name, **config):
    model, _ = tiny_pair
    head = draft_heads.make(CONFIGS[name])
    target = HuggingFaceTarget(model, output_taps(head.config), max_requests=3, max_len=64)
    drafter = HeadDrafter.for_target(head, target)
    return DSparkEngine(target, drafter, SpeculativeConfig(**config), tokenizer=tiny)


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_text_is_that_of_plain_decoding(tiny_pair, prompts, name):
    engine = serve(tiny_pair, name, prefill_chunk=7)
    params = SamplingParams(temperature=0.0, max_new_tokens=12)
    plain = engine.generate(prompts, params, speculative=False)
    drafted = engine.generate(prompts, params)
    texts = [[output.token_ids for output in run.outputs] for run in (plain, drafted)]
    assert texts[0] == texts[1]
    assert drafted.stats.verified_rows > 4 * drafted.stats.passes  # five drafts and an anchor each


def test_the_context_holds_what_the_target_has_kept(tiny_pair, prompts):
    """After a run a slot's context equals that of the finished text appended at once."""
    engine = serve(tiny_pair, "v41")
    params = SamplingParams(temperature=0.0, max_new_tokens=9)
    output = engine.generate(prompts[:1], params).outputs[0]
    context = engine.drafter.head.context
    length = int(context.lengths[0])
    whole = len(output.prompt_token_ids) + len(output.token_ids)
    assert whole - 1 <= length <= whole + engine.num_drafts
    state = engine.drafter.head.export_state(0)
    assert state.length == length

    again = serve(tiny_pair, "v41")
    tokens = [*output.prompt_token_ids, *output.token_ids]
    again.generate([tokens], SamplingParams(temperature=0.0, max_new_tokens=1))
    known = min(length, whole - 1)
    ours, theirs = (each.drafter.head for each in (engine, again))
    for head, end in ((ours, length), (theirs, int(theirs.context.lengths[0]))):
        head.truncate(torch.tensor([0]), torch.tensor([min(known, end)]))
    a, b = ours.export_state(0), theirs.export_state(0)
    assert torch.equal(a.positions, b.positions)
    torch.testing.assert_close(a.tensors["kv"], b.tensors["kv"], rtol=1e-4, atol=1e-4)


def test_more_drafts_than_trained_when_asked_for(tiny_pair, prompts):
    model, _ = tiny_pair
    head = draft_heads.make(CONFIGS["qwen3"])
    target = HuggingFaceTarget(model, output_taps(head.config), max_requests=3, max_len=64)
    wanted = {"num_speculative_tokens": 8}
    with pytest.raises(ValueError, match="at most the drafter's block of 5, got 8"):
        DSparkEngine(target, HeadDrafter.for_target(head, target), SpeculativeConfig(**wanted))
    drafter = HeadDrafter.for_target(head, target, block_size=8)
    engine = DSparkEngine(target, drafter, SpeculativeConfig(**wanted))
    params = SamplingParams(temperature=0.0, max_new_tokens=9)
    drafted = engine.generate(prompts[:2], params)
    plain = engine.generate(prompts[:2], params, speculative=False)
    assert [o.token_ids for o in drafted.outputs] == [o.token_ids for o in plain.outputs]


def test_a_head_refuses_further_blocks_with_the_reason(tiny_pair):
    with pytest.raises(ValueError, match="its context takes in verified tokens alone.*, got 2"):
        serve(tiny_pair, "qwen3", blocks_per_step=2)


def test_a_head_without_confidences_counts_every_draft_as_certain(tiny_pair, prompts):
    config = draft_heads.dense("qwen3", enable_confidence_head=False, markov_rank=0, **SIZES)
    model, _ = tiny_pair
    target = HuggingFaceTarget(model, output_taps(config), max_requests=3, max_len=64)
    engine = DSparkEngine(target, HeadDrafter.for_target(draft_heads.make(config), target))
    events = list(engine.stream(prompts[:1], SamplingParams(max_new_tokens=4, seed=1)))
    assert events[0].confidences == [1.0] * 3  # of the drafts there was room for


@pytest.mark.filterwarnings("ignore:.*flat:UserWarning")
def test_the_engine_times_a_head(tiny_pair, prompts):
    engine = serve(tiny_pair, "v41", schedule="early_stop")
    assert engine.cost_table.request_seconds is not None
    params = SamplingParams(temperature=0.0, max_new_tokens=8)
    drafted = engine.generate(prompts, params)
    plain = engine.generate(prompts, params, speculative=False)
    assert [o.token_ids for o in drafted.outputs] == [o.token_ids for o in plain.outputs]
