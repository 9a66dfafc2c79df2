"""Every flavour against the float64 reference, which shares no code with the modules."""

import draft_heads
import pytest
import torch

from dspark_ext.reference import draft_head as reference

CONFIGS = {
    **draft_heads.CONFIGS,
    "v41-2-passes": draft_heads.deepseek("deepseek_v41", hc_sinkhorn_iters=2),
    "v41-1-pass": draft_heads.deepseek("deepseek_v41", hc_sinkhorn_iters=1),
    "qwen3-gated": draft_heads.dense("qwen3", markov_head_type="gated"),
    "qwen3-rnn": draft_heads.dense("qwen3", markov_head_type="rnn"),
}
WINDOW = CONFIGS["v41"].window
POSITIONS = [0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3]
ANCHOR, SLOT = 11, 2


def expected(head, position, drafts):
    rows = draft_heads.features(head.config, position).to(head.dtype)
    return reference.block(
        head.state_dict(),
        head.config,
        rows,
        ANCHOR,
        drafts,
        head.embedding_weight,
        head.output_weight,
    )


def found(head, position, drafts):
    hidden = draft_heads.hidden(head, [ANCHOR], [position], [SLOT], drafts)
    normed = head.norm(hidden)
    return head.head_state(hidden, normed)[0], head.base_logits(normed)[0]


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_and_base_logits(name, position):
    head = draft_heads.make(CONFIGS[name])
    draft_heads.fill(head, SLOT, position)
    drafts = head.config.trained_drafts
    state, logits = found(head, position, drafts)
    wanted = expected(head, position, drafts)
    assert state.shape == wanted.state.shape and logits.shape == wanted.base_logits.shape
    torch.testing.assert_close(state.double(), wanted.state, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(logits.double(), wanted.base_logits, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("drafts", range(1, 17))
@pytest.mark.parametrize("name", ["v41", "v4", "qwen3", "qwen3-1+K", "gemma4"])
def test_blocks_smaller_and_larger_than_trained_br026(name, drafts):
    head = draft_heads.make(CONFIGS[name])
    draft_heads.fill(head, SLOT, 9)
    state, logits = found(head, 9, drafts)
    wanted = expected(head, 9, drafts)
    torch.testing.assert_close(state.double(), wanted.state, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(logits.double(), wanted.base_logits, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_stays_close(name):
    head = draft_heads.make(CONFIGS[name], dtype=torch.bfloat16)
    draft_heads.fill(head, SLOT, 9)
    drafts = head.config.trained_drafts
    _, logits = found(head, 9, drafts)
    wanted = expected(head, 9, drafts).base_logits
    assert logits.dtype == torch.bfloat16
    error = (logits.double() - wanted).norm() / wanted.norm()
    assert error < 0.03


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_confidences_along_the_drafts(name):
    head = draft_heads.make(CONFIGS[name])
    draft_heads.fill(head, SLOT, 9)
    drawn = draft_heads.draft(head, [ANCHOR], [9], [SLOT])
    config, ids = head.config, drawn.token_ids[0].tolist()
    block, previous = expected(head, 9, config.trained_drafts), [ANCHOR, *ids[:-1]]
    logits = block.base_logits
    if config.markov_rank:
        linear = {"gated": "gate_proj", "rnn": "joint_proj"}.get(config.markov_head_type)
        extra = getattr(head.markov, linear) if linear else None
        logits = reference.markov_logits(
            config.markov_head_type,
            logits,
            block.state,
            previous,
            head.markov.w1,
            head.markov.w2,
            *(() if extra is None else (extra.weight, extra.bias)),
        )
    if head.d2t is not None:
        wide = torch.full((len(ids), config.vocab_size), float("-inf"), dtype=torch.float64)
        wide[:, torch.arange(config.draft_vocab_size) + head.d2t] = logits
        logits = wide
    torch.testing.assert_close(drawn.logits[0].double(), logits, rtol=1e-5, atol=3e-5)
    if head.confidence is None:
        assert drawn.confidence is None
        return
    embeds = head.markov.w1[torch.tensor(previous)] if head.confidence.markov else None
    proj = head.confidence.proj
    wanted = reference.confidences(block.state, embeds, proj.weight, proj.bias)
    torch.testing.assert_close(drawn.confidence[0].double(), wanted, rtol=1e-5, atol=2e-6)


def test_the_tolerances_see_every_tensor():
    """Each tensor of a head moves its rows, logits or confidences by more than the tolerance."""
    every_expert = {"dspark_n_routed_experts": 3, "dspark_num_experts_per_tok": 3}
    for name in ("v41", "v4", "qwen3", "gemma4"):
        changes = every_expert if name.startswith("v4") else {}
        head = draft_heads.make(draft_heads.replace(CONFIGS[name], **changes))

        def outputs(head=head):
            draft_heads.fill(head, SLOT, 9)
            made = draft_heads.draft(head, [ANCHOR], [9], [SLOT], method="greedy")
            return torch.cat([made.logits.flatten(), made.confidence.flatten()])

        before = outputs()
        for key, value in head.state_dict().items():
            if "gate.bias" in key or key == "layers.1.layer_scalar":
                continue  # chooses where all are chosen (bias_vl: unused); undone by the norm
            kept = value.clone()
            value.add_(torch.linspace(0.1, 0.5, value.numel()).view(value.shape))
            assert not torch.allclose(outputs(), before, rtol=1e-4, atol=1e-4), key
            value.copy_(kept)


def test_more_drafts_than_trained_extend_the_block_br064():
    """The default block holds at least the trained drafts, so fewer are its first ones."""
    head = draft_heads.make(CONFIGS["v41"])
    draft_heads.fill(head, SLOT, 9)
    whole = draft_heads.draft(head, [ANCHOR], [9], [SLOT])
    for count in range(8):
        made = draft_heads.draft(head, [ANCHOR], [9], [SLOT], num_drafts=count)
        assert made.token_ids.shape == (1, count) and made.confidence.shape == (1, count)
        if count <= 5:
            assert torch.equal(made.token_ids, whole.token_ids[:, :count])
            torch.testing.assert_close(made.logits, whole.logits[:, :count])
    narrow = draft_heads.draft(head, [ANCHOR], [9], [SLOT], num_drafts=3, block_drafts=3)
    assert not torch.allclose(narrow.logits, whole.logits[:, :3], atol=1e-3)
    with pytest.raises(ValueError, match="block_drafts: expected at least num_drafts 3"):
        draft_heads.draft(head, [ANCHOR], [9], [SLOT], num_drafts=3, block_drafts=2)


def test_drafting_is_drawn_from_its_logits():
    """temperature 0, greedy and the draws of markov_sample are those of the logits returned."""
    head = draft_heads.make(CONFIGS["v41"])
    draft_heads.fill(head, SLOT, 9)
    cold = draft_heads.draft(head, [ANCHOR], [9], [SLOT], temperature=0.0)
    greedy = draft_heads.draft(head, [ANCHOR], [9], [SLOT], method="greedy")
    assert torch.equal(cold.token_ids, cold.logits.argmax(-1))
    assert torch.equal(cold.token_ids, greedy.token_ids)
