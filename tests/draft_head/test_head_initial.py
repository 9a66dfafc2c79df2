"""Weights to train from: finite, repeatable, of the right size, trainable through `backbone`."""

import draft_heads
import pytest
import torch

from dspark_ext.draft_head import make_draft_head, reset_parameters

CONFIGS = {
    "v41": draft_heads.CONFIGS["v41"],
    "v4": draft_heads.CONFIGS["v4"],
    "qwen3-reduced": draft_heads.CONFIGS["qwen3-reduced"],
    "gemma4": draft_heads.CONFIGS["gemma4"],
    "v41-quantized": draft_heads.deepseek(
        "deepseek_v41",
        moe_intermediate_size=32,
        hidden_size=32,
        dense_format="fp8_e4m3",
        expert_format="mxfp4",
        weight_block_size=(16, 16),
    ),
}


def fresh(config, seed=0):
    head = make_draft_head(config, dtype=torch.float32)
    reset_parameters(head, torch.Generator().manual_seed(seed))
    size = (config.vocab_size, config.hidden_size)
    generator = torch.Generator().manual_seed(9)
    head.bind_target(*(torch.randn(size, generator=generator) for _ in range(2)))
    head.allocate_context(4, 30)
    return head


@pytest.mark.parametrize("name", CONFIGS)
def test_a_fresh_head_drafts(name):
    head, again = fresh(CONFIGS[name]), fresh(CONFIGS[name])
    for each in (head, again):
        draft_heads.fill(each, 1, 9)
    first, second = (draft_heads.draft(each, [11], [9], [1]) for each in (head, again))
    assert torch.equal(first.logits, second.logits)
    finite = first.logits.isfinite()
    assert finite.all() or head.d2t is not None
    assert 0.3 < first.logits[finite].std() < 30
    assert torch.equal(first.confidence, torch.full((1, 5), 0.5))
    other = fresh(CONFIGS[name], seed=1)
    draft_heads.fill(other, 1, 9)
    assert not torch.equal(draft_heads.draft(other, [11], [9], [1]).logits, first.logits)


class Recomputed:
    """A view for training: the context of one request, with its graph."""

    def __init__(self, head, rows):
        self.rows = rows
        self.count = next(iter(rows.values())).shape[1]

    def visible(self, rows):
        return torch.ones(1, self.count + rows, dtype=torch.bool)

    def joined(self, name, layer, block):
        return torch.cat([self.rows[name][layer][None], block], 1)


@pytest.mark.parametrize("name", ["v41", "v4", "qwen3-reduced", "gemma4"])
def test_backbone_trains_through_any_view(name):
    """Every float tensor but the unused ones gets a gradient, and the rows are those of `draft`."""
    head = draft_heads.make(CONFIGS[name])
    config, count = head.config, 4
    features, positions = draft_heads.features(config, count), torch.arange(count)
    view = Recomputed(head, head.context_rows(head.combine(features), positions))
    ids = torch.full((1, 5), config.mask_token)
    ids[0, 0] = 11
    rows = head.backbone(head.embed(ids), count + torch.arange(5)[None], view)
    head.append(features, positions, torch.zeros_like(positions))
    torch.testing.assert_close(rows, draft_heads.hidden(head, [11], [count], [0]))
    (head.norm(rows) ** 3).sum().backward()
    without = {
        key
        for key, value in head.named_parameters()
        if value.grad is None and value.requires_grad and ".experts." not in key
    }
    assert all("markov" in key or "confidence" in key for key in without), without
