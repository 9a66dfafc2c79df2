"""A language model as drafter: its cache, its draws, and that it changes no law."""

import copy

import pytest
import torch
from lawkit import FALSE_ALARM, chi_square_p
from random_models import random_model, served_model
from test_law import assert_pair_law, next_law

from dspark_ext import sampling
from dspark_ext.demo import tiny
from dspark_ext.engine import (
    CausalLMTarget,
    DraftBatch,
    DSparkEngine,
    HuggingFaceTarget,
    SamplingParams,
    SmallModelDrafter,
    SpeculativeConfig,
    VocabularyMismatchError,
    check_tokenizers,
)
from dspark_ext.engine.costs import describe

PROMPT = tiny.encode("self.")


@pytest.fixture(scope="module")
def blurred(tiny_pair):
    """The tiny target with noise on its weights: right often enough."""
    model = copy.deepcopy(tiny_pair[0])
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.15 * parameter.std() * noise)
    return model


@pytest.fixture(scope="module")
def target(tiny_pair):
    return HuggingFaceTarget(tiny_pair[0], [], max_requests=64, max_len=96)


def drafter_of(kind, blurred, target, **settings):
    if kind == "lean":
        return SmallModelDrafter.for_target(blurred, target, **settings)
    model = CausalLMTarget(
        copy.deepcopy(blurred),
        max_requests=target.max_requests,
        max_len=target.max_len,
        block_size=8,
    )
    return SmallModelDrafter(model, **settings)


@torch.inference_mode()
def own_logits(model, text):
    return model(torch.tensor([text]), use_cache=False).logits[0, -1]


def batch_of(texts, slots, temperature=0.8):
    count = len(texts)
    return DraftBatch(
        torch.tensor([text[-1] for text in texts]),
        torch.tensor([len(text) - 1 for text in texts]),
        torch.tensor(slots),
        torch.full((count,), temperature),
        torch.arange(count) + 11,
    )


def append(drafter, text, slot, start=0):
    positions = torch.arange(start, len(text))
    drafter.append(None, positions, torch.full_like(positions, slot), torch.tensor(text[start:]))


@pytest.mark.parametrize("kind", ["lean", "generic"])
def test_drafts_are_draws_of_the_models_law_whatever_was_accepted(kind, blurred, target):
    """Rounds of two requests with all, some and none of the drafts kept: the logits are always
    those of the model over the true text and the drafts before, the ids the draws from them."""
    drafter = drafter_of(kind, blurred, target, max_rows=7) if kind == "generic" else drafter_of(
        kind, blurred, target
    )  # fmt: skip
    texts = [tiny.encode("def f(self"), tiny.encode("import os, sys")]
    slots = [5, 2]
    for text, slot in zip(texts, slots):
        append(drafter, text[:-1], slot)
    for kept in ([4, 0], [2, 1], [0, 4], [3, 3]):
        batch = batch_of(texts, slots)
        draft = drafter.draft(batch, 4, "probabilistic")
        assert draft.num_proposed.tolist() == [4, 4]
        for row, text in enumerate(texts):
            for k in range(4):
                before = [*text, *draft.token_ids[row, :k].tolist()]
                wanted = own_logits(blurred, before)
                torch.testing.assert_close(draft.logits[row, k], wanted, rtol=1e-3, atol=1e-3)
        for k in range(4):
            again = sampling.sample(
                draft.logits[:, k],
                temperature=batch.temperature,
                seeds=batch.seeds,
                positions=batch.anchor_positions + 1 + k,
                stream="draft",
                slots=k,
            )
            assert torch.equal(again.ids.long(), draft.token_ids[:, k])
        for row, count in enumerate(kept):
            start = len(texts[row]) - 1
            texts[row] = [*texts[row], *draft.token_ids[row, :count].tolist(), 60 + count]
            append(drafter, texts[row][:-1], slots[row], start)


def test_only_new_tokens_enter_the_model(blurred, target):
    drafter = drafter_of("lean", blurred, target)
    seen = []
    forward = drafter.model.forward
    drafter.model.forward = lambda batch: (seen.append(len(batch.slots)), forward(batch))[1]
    text = tiny.encode("class A(object)")
    append(drafter, text[:-1], 1)
    draft = drafter.draft(batch_of([text], [1]), 3, "greedy")
    assert draft.logits is None and seen == [len(text), 1, 1]
    # two drafts accepted: the cache has them, the new anchor is all that enters
    longer = [*text, *draft.token_ids[0, :2].tolist(), 200]
    append(drafter, longer[:-1], 1, len(text) - 1)
    del seen[:]
    drafter.draft(batch_of([longer], [1]), 2, "greedy")
    assert seen == [1, 1]
    # everything accepted: the last draft and the anchor
    del seen[:]
    last = drafter.draft(batch_of([longer], [1]), 2, "greedy").token_ids[0].tolist()
    append(drafter, [*longer, *last], 1, len(longer) - 1)
    drafter.draft(batch_of([[*longer, *last, 7]], [1]), 1, "greedy")
    assert seen[-1] == 2
    del drafter.model.forward


def test_the_end_of_the_context_is_respected(blurred, tiny_pair):
    target = HuggingFaceTarget(tiny_pair[0], [], max_requests=2, max_len=20)
    drafter = SmallModelDrafter.for_target(blurred, target)
    texts = [[65] * 18, [66] * 6]
    for slot, text in enumerate(texts):
        append(drafter, text[:-1], slot)
    draft = drafter.draft(batch_of(texts, [0, 1]), 4, "probabilistic")
    assert draft.num_proposed.tolist() == [2, 4]
    assert draft.token_ids[0, 2:].tolist() == [-1, -1] and (draft.token_ids[1] >= 0).all()
    assert draft.confidence[0, 2:].tolist() == [0, 0] and (draft.confidence[1] > 0.2).all()


def test_drafting_changes_nothing_that_a_cost_table_is_kept_by(blurred, target):
    drafter = drafter_of("lean", blurred, target)
    before = describe(drafter)
    append(drafter, PROMPT[:-1], 0)
    drafter.draft(batch_of([PROMPT], [0]), 3, "probabilistic")
    assert describe(drafter) == before and before["block_size"] == 4


def test_a_further_block_goes_on_as_more_drafts_would(blurred, target):
    one, other = (drafter_of("lean", blurred, target, block_size=6) for _ in range(2))
    texts = [tiny.encode("def f(self"), tiny.encode("import os, sys")]
    for drafter in (one, other):
        for slot, text in enumerate(texts):
            append(drafter, text[:-1], slot)
    batch = batch_of(texts, [0, 1], temperature=0.0)
    wanted = one.draft(batch, 6, "probabilistic")
    first = other.draft(batch, 2, "probabilistic")
    behind = first.token_ids[:, -1], batch.anchor_positions + 2
    batch = DraftBatch(*behind, batch.slots, batch.temperature, batch.seeds)
    then = other.draft(batch, 4, "probabilistic")
    for name in ("token_ids", "logits", "confidence"):
        parts = [getattr(each, name) for each in (first, then)]
        assert torch.equal(torch.cat(parts, 1), getattr(wanted, name))
    lengths = torch.tensor([6, 5]), torch.tensor([3, 0])
    for drafter in (one, other):
        drafter.observe(batch.slots, *lengths)
        append(drafter, [*texts[0], *wanted.token_ids[0, :3].tolist()], 0, len(texts[0]) - 1)
    texts[0] = [*texts[0], *wanted.token_ids[0, :3].tolist(), 33]
    again = [each.draft(batch_of(texts, [0, 1]), 3, "probabilistic") for each in (one, other)]
    assert torch.equal(again[0].token_ids, again[1].token_ids)
    assert torch.equal(again[0].confidence, again[1].confidence)


SCHEDULES = {
    "fixed": {},
    "two blocks": {"num_speculative_tokens": 2, "blocks_per_step": 2, "continue_threshold": 0.3},
    "threshold": {"schedule": "threshold", "confidence_threshold": 0.4},
}
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=24)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_greedy_is_plain_and_a_seed_gives_its_tokens_in_any_batch(
    blurred, target, prompts, schedule
):
    config = SpeculativeConfig(**SCHEDULES[schedule], prefill_chunk=11)

    def engine():
        return DSparkEngine(target, SmallModelDrafter.for_target(blurred, target), config)

    runs = [engine().generate(prompts, GREEDY, speculative=flag) for flag in (True, False)]
    drafted, plain = ([output.token_ids for output in run.outputs] for run in runs)
    assert drafted == plain
    assert runs[0].stats.tokens_per_pass > 1.3

    params = [SamplingParams(temperature=0.7, seed=50 + n, max_new_tokens=16) for n in range(5)]
    texts = (prompts * 5)[:5]
    together = engine().generate(texts, params).outputs
    for text, each, output in zip(texts, params, together):
        assert engine().generate([text], each).outputs[0].token_ids == output.token_ids


def draws(engine, params, runs):
    generation = engine.generate([PROMPT] * runs, params)
    drawn = torch.tensor([output.token_ids[:2] for output in generation.outputs])
    return drawn, generation.stats.acceptance.accepted


@pytest.mark.parametrize(("method", "schedule"), [("token", "fixed"), ("block", "threshold")])
def test_text_follows_the_target(blurred, target, method, schedule):
    """First token and pairs, 800 runs; false alarms: lawkit."""
    config = SpeculativeConfig(rejection_sample_method=method, **SCHEDULES[schedule])
    engine = DSparkEngine(target, SmallModelDrafter.for_target(blurred, target), config)
    params = SamplingParams(temperature=1.2, top_k=20, max_new_tokens=3)
    drawn, accepted = draws(engine, params, 800)
    assert accepted > 100
    assert_pair_law(drawn, engine, PROMPT, params)


def test_the_law_test_sees_logits_that_are_not_those_drawn_from(blurred, target):
    """Negative control: q handed over flatter than it was."""

    class Flattened(SmallModelDrafter):
        def draft(self, batch, num_drafts, method):
            draft = super().draft(batch, num_drafts, method)
            draft.logits = draft.logits * 0.3
            return draft

    engine = DSparkEngine(target, Flattened.for_target(blurred, target))
    params = SamplingParams(temperature=1.2, top_k=20, max_new_tokens=2)
    drawn, _ = draws(engine, params, 800)
    law = next_law(engine, [PROMPT], params)[0]
    assert chi_square_p(torch.bincount(drawn[:, 0], minlength=256), law) < FALSE_ALARM


def test_any_pair_of_models_of_one_vocabulary(prompts):
    """A generic target and a generic drafter: greedy text is plain on these prompts."""
    target = CausalLMTarget(served_model("gemma2, softcap, windows of 6"), max_requests=3,
                            max_len=40, block_size=4)  # fmt: skip
    drafter = SmallModelDrafter.for_target(served_model("gpt2"), target)
    assert isinstance(drafter.model, CausalLMTarget)
    engine = DSparkEngine(target, drafter)
    texts = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7]]
    greedy = SamplingParams(temperature=0.0, max_new_tokens=10)
    runs = [engine.generate(texts, greedy, speculative=flag) for flag in (True, False)]
    assert [o.token_ids for o in runs[0].outputs] == [o.token_ids for o in runs[1].outputs]
    assert target.pool.available == target.pool.num_blocks


def test_another_vocabulary_is_refused(target):
    other = random_model("Llama", {"num_key_value_heads": 2})
    with pytest.raises(VocabularyMismatchError, match="vocabulary of 256 tokens, got 90"):
        SmallModelDrafter.for_target(other, target)


@pytest.mark.parametrize("padded", ["drafter", "target"])
def test_padded_vocabularies_fit(tiny_pair, blurred, target, prompts, padded):
    """Tables of 256 and 300 rows over the same 256 tokens: drafts as without padding, greedy text
    that of plain decoding, also behind an id that the smaller table has not."""

    class Bytes:
        @staticmethod
        def get_vocab():
            return {str(token): token for token in range(256)}

    wide = copy.deepcopy(blurred if padded == "drafter" else tiny_pair[0])
    wide.resize_token_embeddings(300)
    served, model = target, wide
    if padded == "target":
        served, model = HuggingFaceTarget(wide, [], max_requests=64, max_len=96), blurred
    with pytest.raises(VocabularyMismatchError, match="if one of them is padded, give tokenizers"):
        SmallModelDrafter.for_target(model, served)
    drafter = SmallModelDrafter.for_target(model, served, tokenizers=(Bytes, Bytes))
    unpadded = SmallModelDrafter.for_target(blurred, target)
    for each in (drafter, unpadded):
        append(each, prompts[0][:-1], 3)
    batch = batch_of([prompts[0]], [3])
    found, expected = (each.draft(batch, 4, "probabilistic") for each in (drafter, unpadded))
    assert torch.equal(found.token_ids, expected.token_ids)
    assert found.logits.shape[2] == 256
    drafter.release(3)
    engine = DSparkEngine(served, drafter)
    texts = prompts[:3] if padded == "drafter" else [*prompts[:3], [*prompts[0], 299]]
    greedy = SamplingParams(temperature=0.0, max_new_tokens=16)
    drafted, plain = (engine.generate(texts, greedy, speculative=way) for way in (True, False))
    assert [o.token_ids for o in drafted.outputs] == [o.token_ids for o in plain.outputs]
    assert drafted.stats.acceptance.acceptance_rate > 0.3
    sampled = SamplingParams(temperature=1.5, seed=1, max_new_tokens=16)
    assert len(engine.generate(texts, sampled).outputs[0].token_ids) == 16

    Bytes.get_vocab = staticmethod(lambda: {str(token): token for token in range(280)})
    with pytest.raises(VocabularyMismatchError, match="expected room for 280 tokens, got "):
        SmallModelDrafter.for_target(model, served, tokenizers=(Bytes, Bytes))


def test_tokenizers_that_differ_are_refused(blurred, target):
    class Tokenizer:
        def __init__(self, *tokens):
            self.get_vocab = lambda: {token: index for index, token in enumerate(tokens)}

    check_tokenizers(Tokenizer("a", "b"), Tokenizer("a", "b"))
    with pytest.raises(VocabularyMismatchError, match="token 'b' is 1 for the target and 2 for"):
        check_tokenizers(Tokenizer("a", "b", "c"), Tokenizer("a", "c", "b"))
    with pytest.raises(VocabularyMismatchError, match="token 'd' is None for the target and 2"):
        pair = Tokenizer("a", "b"), Tokenizer("a", "b", "d")
        SmallModelDrafter.for_target(blurred, target, tokenizers=pair)


def test_bad_settings_are_named(blurred, target):
    with pytest.raises(ValueError, match="block_size: expected >= 1, got 0"):
        SmallModelDrafter.for_target(blurred, target, block_size=0)
    drafter = SmallModelDrafter.for_target(blurred, target)
    with pytest.raises(ValueError, match="anchor_positions: expected 0 for slot 1 .* got 2"):
        drafter.draft(batch_of([[1, 2, 3]], [1]), 1, "greedy")
    zero = torch.tensor([0])
    with pytest.raises(ValueError, match="positions: expected at most 0 for slot 0, got 1"):
        drafter.append(None, zero + 1, zero, zero)
