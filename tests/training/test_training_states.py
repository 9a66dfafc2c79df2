"""What training computes for a block is what drafting computes for it."""

import dataclasses

import draft_heads
import pytest
import torch

from dspark_ext.demo import tiny
from dspark_ext.draft_head.compact import CompactDraftHead
from dspark_ext.engine import DraftBatch, DSparkDrafter

ANCHORS = [3, 7, 7, 12]
DENSE = {
    "vanilla": draft_heads.dense("qwen3"),
    "gated": draft_heads.dense("qwen3", markov_head_type="gated"),
    "rnn": draft_heads.dense("qwen3", markov_head_type="rnn", num_attention_heads=2),
    "reduced": draft_heads.dense("qwen3", draft_vocab_size=20, confidence_head_with_markov=False),
    "unsure": draft_heads.dense("qwen3", enable_confidence_head=False),
}


def batch_of(features, tokens, anchors):
    """One row of text in which blocks of `tokens` [A, 1+K] were drafted at `anchors`."""
    from drafter_training.samples import Batch

    places = torch.tensor(anchors)[None]
    shape = (1, len(anchors), tokens.shape[1] - 1)
    return Batch(
        features[None], places, tokens[None], torch.zeros(*shape, 1), torch.zeros(shape),
        torch.ones(shape, dtype=torch.bool),
    )  # fmt: skip


def drafted_logits(trainee, states):
    return states.hidden @ trainee.vocab_weight.T + states.bias_input @ trainee.w2.T


def check_against(trainee, batch, logits, confidence):
    with torch.no_grad():
        states = trainee.states(batch)
        found = drafted_logits(trainee, states)
    shape = batch.valid.shape[1:]
    served = logits.view(-1, logits.shape[-1])[:, trainee.draft_token_ids]
    torch.testing.assert_close(found, served, rtol=1e-4, atol=1e-4)
    if confidence is not None:
        sure = torch.sigmoid(states.confidence).view(shape)
        torch.testing.assert_close(sure, confidence, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DENSE)
def test_dense_blocks(name):
    from drafter_training.trainees import Qwen3Trainee

    head = draft_heads.make(DENSE[name])
    draft_heads.fill(head, slot=0, count=max(ANCHORS))
    first = [1, 5, 9, 30]
    served = draft_heads.draft(head, first, ANCHORS, [0] * len(ANCHORS))
    tokens = torch.cat([torch.tensor(first)[:, None], served.token_ids], 1)
    features = draft_heads.features(head.config, max(ANCHORS))
    batch = batch_of(features, tokens, ANCHORS)
    assert (served.confidence is None) == (name == "unsure")
    check_against(Qwen3Trainee(head), batch, served.logits, served.confidence)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_compact_blocks(generator, groups):
    from drafter_training.trainees import CompactTrainee

    config = dataclasses.replace(
        tiny.draft_config(), sliding_window=6, num_key_value_heads=groups, draft_vocab_size=50
    )
    torch.manual_seed(2)
    head = CompactDraftHead(config)
    with torch.no_grad():
        head.d2t.copy_(2 * torch.arange(50) + 3 - torch.arange(50))
        head.markov_w2.normal_()
        head.confidence_weight.normal_(std=0.1)
    weight = torch.randn(256, 128, generator=generator) * 0.3
    head.bind_target(weight, weight)
    features = torch.randn(max(ANCHORS), 384, generator=generator)
    drafter = DSparkDrafter(head, weight, weight, max_requests=4, max_len=32)
    for slot, end in enumerate(ANCHORS):
        drafter.append(features[:end], torch.arange(end), torch.full((end,), slot))
    first, count = torch.tensor([1, 5, 9, 200]), len(ANCHORS)
    served = drafter.draft(
        DraftBatch(
            first, torch.tensor(ANCHORS), torch.arange(count), torch.ones(count),
            torch.arange(count),
        ),
        5, "probabilistic",
    )  # fmt: skip
    batch = batch_of(features, torch.cat([first[:, None], served.token_ids], 1), ANCHORS)
    check_against(CompactTrainee(head), batch, served.logits, served.confidence)


@pytest.mark.parametrize("flavour", ["compact", "qwen3"])
def test_a_block_sees_what_stands_before_its_anchor_and_itself(begin, flavour):
    """Of three blocks in a row of text, by changing one input at a time."""
    trainee, _, _ = begin(flavour)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(20, trainee.num_features, generator=generator)
    tokens = torch.randint(0, 200, (3, trainee.num_drafts + 1), generator=generator)
    anchors = [4, 9, 20]

    def hidden(features, tokens):
        with torch.no_grad():
            rows = trainee.states(batch_of(features, tokens, anchors)).hidden
        return rows.view(3, trainee.num_drafts, -1)

    def moved(features, tokens):
        return [bool(each) for each in (hidden(features, tokens) != before).flatten(1).any(1)]

    before = hidden(features, tokens)
    for position in range(20):
        changed = features.clone()
        changed[position] += 1
        assert moved(changed, tokens) == [position < anchor for anchor in anchors], position
    for block in range(3):
        changed = tokens.clone()
        changed[block, 0] = (tokens[block, 0] + 1) % 200
        assert moved(features, changed) == [other == block for other in range(3)]
        rows = hidden(features, changed)[block] != before[block]
        assert rows.any(-1).all()  # the anchor is seen by every row of its block
        changed = tokens.clone()
        changed[block, 1:] = (tokens[block, 1:] + 1) % 200  # what is to be predicted
        assert moved(features, changed) == [False] * 3
