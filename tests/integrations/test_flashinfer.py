"""FlashInfer's chain verification on ours."""

import pytest
import torch

from dspark_ext.integrations import flashinfer

BATCH, DRAFTS, VOCAB = 200, 3, 9


@pytest.fixture
def call(generator):
    draft_probs = torch.randn(BATCH, DRAFTS, VOCAB, generator=generator).softmax(-1)
    ids = torch.multinomial(draft_probs.view(-1, VOCAB), 1, generator=generator)
    return {
        "draft_probs": draft_probs,
        "draft_token_ids": ids.view(BATCH, DRAFTS).int(),
        "target_probs": torch.randn(BATCH, DRAFTS + 1, VOCAB, generator=generator).softmax(-1),
    }


def test_tokens_and_counts_are_those_of_the_token_rule(call):
    ids, alone, emitted = flashinfer.chain_speculative_sampling(
        **call, generator=torch.Generator().manual_seed(3)
    )
    coins = torch.rand(
        BATCH, DRAFTS + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    assert ids.dtype == alone.dtype == emitted.dtype == torch.int32
    for b in range(BATCH):
        stands = []
        for i, x in enumerate(call["draft_token_ids"][b].tolist()):
            p, q = call["target_probs"][b, i, x].double(), call["draft_probs"][b, i, x].double()
            stands.append(bool(coins[b, i] * q < p))
        length = stands.index(False) if False in stands else DRAFTS
        residual = call["target_probs"][b, length].double()
        if length < DRAFTS:
            residual = (residual - call["draft_probs"][b, length].double()).clamp(min=0)
        last = int((residual.cumsum(0) <= coins[b, DRAFTS] * residual.sum()).sum())
        want = [*call["draft_token_ids"][b, :length].tolist(), last]
        assert ids[b].tolist() == [*want, *[-1] * (DRAFTS + 1 - len(want))]
        assert (alone[b], emitted[b]) == (sum(stands), length)
    assert (alone > emitted).any(), "the two counts never differed"


def test_counters_are_added_to_in_place(call):
    counters = [torch.full((BATCH,), 10, dtype=torch.int32) for _ in range(2)]
    seeded = {**call, "generator": torch.Generator().manual_seed(1)}
    _, alone, emitted = flashinfer.chain_speculative_sampling(**seeded)
    seeded["generator"] = torch.Generator().manual_seed(1)
    result = flashinfer.chain_speculative_sampling(
        **seeded,
        maybe_output_accepted_token_num=counters[0],
        maybe_output_emitted_draft_token_num=counters[1],
    )
    assert result[1] is counters[0] and result[2] is counters[1]
    assert torch.equal(counters[0], alone + 10) and torch.equal(counters[1], emitted + 10)


def test_the_block_rule_accepts_more(call):
    lengths = {
        method: flashinfer.chain_speculative_sampling(
            **call, method=method, generator=torch.Generator().manual_seed(2)
        )[2].sum()
        for method in ("token", "block")
    }
    assert lengths["block"] > lengths["token"]


def test_no_drafts_and_no_requests():
    probs = torch.tensor([[[0.0, 1.0]]])
    ids, alone, emitted = flashinfer.chain_speculative_sampling(
        torch.empty(1, 0, 2), torch.empty(1, 0, dtype=torch.int32), probs
    )
    assert ids.tolist() == [[1]] and alone.tolist() == emitted.tolist() == [0]
    empty = flashinfer.chain_speculative_sampling(
        torch.empty(0, 2, 2), torch.empty(0, 2, dtype=torch.int32), torch.empty(0, 3, 2)
    )
    assert empty[0].shape == (0, 3)
