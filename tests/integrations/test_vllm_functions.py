"""vLLM's verification functions on ours: layouts, randomness, laws."""

import pytest
import torch
from lawkit import assert_law

from dspark_ext import sampling
from dspark_ext.integrations import vllm

VOCAB = 11


def ragged(lengths, generator, vocab=VOCAB):
    total = sum(lengths)
    return {
        "draft_token_ids": torch.randint(vocab, (total,), generator=generator, dtype=torch.int32),
        "num_draft_tokens": lengths,
        "max_spec_len": max([*lengths, 1]),
        "cu_num_draft_tokens": torch.tensor(lengths).cumsum(0).int(),
        "draft_probs": torch.randn(total, vocab, generator=generator).softmax(-1),
        "target_logits": torch.randn(total, vocab, generator=generator),
        "bonus_token_ids": torch.randint(vocab, (len(lengths), 1), generator=generator).int(),
    }


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("one_hot", [False, True])
def test_a_batch_is_its_requests_one_by_one(method, one_hot, generator):
    lengths = [3, 0, 1, 4, 2, 2]
    batch = ragged(lengths, generator)
    greedy = torch.tensor([False, False, True, False, True, False])
    keys = torch.arange(100, 106)
    if one_hot:
        batch["draft_probs"] = None
    out = vllm.rejection_sample(**batch, greedy=greedy, keys=keys, method=method)
    assert out.shape == (6, 5) and out.dtype == torch.int32
    at = 0
    for request, n in enumerate(lengths):
        rows = slice(at, at + n)
        at += n
        last = torch.full((1, VOCAB), float("-inf"))
        last[0, batch["bonus_token_ids"][request]] = 0.0
        alone = sampling.rejection_sample(
            torch.cat([batch["target_logits"][rows], last]),
            batch["draft_token_ids"][rows][None],
            draft_probs=None if one_hot else batch["draft_probs"][rows][None],
            query_start_loc=torch.tensor([0, n + 1]),
            method=method,
            temperature=0.0 if greedy[request] else 1.0,
            seeds=keys[request : request + 1],
            positions=0,
        )
        emitted = alone.token_ids[0, : alone.num_emitted[0]].tolist()
        assert out[request].tolist() == [*emitted, *[-1] * (5 - len(emitted))]
        if alone.num_accepted[0] == n:
            assert emitted[-1] == batch["bonus_token_ids"][request]


@pytest.mark.parametrize("width", [0, 2])
def test_without_drafts_the_bonus_tokens_are_all_there_is(width, generator):
    batch = {**ragged([0, 0], generator), "max_spec_len": width}
    out = vllm.rejection_sample(
        **batch, greedy=torch.tensor([False, True]), keys=torch.tensor([1, 2])
    )
    assert torch.equal(out[:, :1], batch["bonus_token_ids"]) and (out[:, 1:] == -1).all()


def test_when_all_are_greedy_draft_probs_may_be_logits(generator):
    """vLLM's drafters hand over logits then; read as probabilities they would end every block."""
    batch = ragged([2, 3], generator)
    batch["draft_token_ids"] = batch["target_logits"].argmax(-1).int()
    batch["draft_probs"] = 100 * torch.randn(5, VOCAB, generator=generator)
    out = vllm.rejection_sample(**batch, greedy=None, keys=None)
    drafts, bonus = batch["draft_token_ids"].tolist(), batch["bonus_token_ids"][:, 0].tolist()
    assert out.tolist() == [[*drafts[:2], bonus[0], -1], [*drafts[2:], bonus[1]]]


def test_a_placeholder_is_never_accepted(generator):
    batch = ragged([3], generator)
    batch["draft_token_ids"][:] = torch.tensor([int(batch["target_logits"][0].argmax()), -1, 5])
    out = vllm.rejection_sample(**batch, greedy=None, keys=None)[0].tolist()
    assert out == [*batch["target_logits"][:2].argmax(-1).tolist(), -1, -1]


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("one_hot", [False, True])
def test_emitted_tokens_follow_the_target_law(method, one_hot, generator):
    """The first token of every request, and the second where the first was drafted, K = 2."""
    trials, vocab = 40_000, 5
    law = torch.randn(2, vocab, generator=generator).softmax(-1)
    proposal = torch.randn(2, vocab, generator=generator).softmax(-1)
    drafts = torch.stack(
        [torch.multinomial(q, trials, replacement=True, generator=generator) for q in proposal], 1
    )
    if one_hot:
        drafts[:] = torch.tensor([1, 3])
    bonus = torch.multinomial(law[1], trials, replacement=True, generator=generator)
    out = vllm.rejection_sample(
        drafts.flatten().int(),
        [2] * trials,
        2,
        torch.arange(2, 2 * trials + 1, 2).int(),
        None if one_hot else proposal.repeat(trials, 1),
        law.log().repeat(trials, 1),
        bonus[:, None].int(),
        greedy=torch.zeros(trials, dtype=torch.bool),
        keys=vllm.draw_keys({}, [2] * trials, torch.device("cpu")),
        method=method,
    ).long()
    assert_law(out[:, 0], law[0], "first token")
    assert_law(out[out[:, 1] >= 0, 1], law[1], "second token, given that it was verified")


def test_keys_come_from_the_requests_own_generators(generator):
    def generators():
        return {1: torch.Generator().manual_seed(5), 3: torch.Generator().manual_seed(5)}

    device = torch.device("cpu")
    first = generators()
    keys = vllm.draw_keys(first, [2, 2, 2, 0], device)
    assert keys[1] == vllm.draw_keys({0: generators()[1]}, [1], device)[0]
    assert keys[0] != keys[2]
    # No drafts, no numbers taken; with drafts, other numbers in the next step.
    assert torch.equal(first[3].get_state(), generators()[3].get_state())
    assert vllm.draw_keys(first, [2, 2, 2, 0], device)[1] != keys[1]
    # A key is not the seed: the drafter may use that.
    assert keys[1] != 5


@pytest.mark.parametrize("lengths", [[2, 0, 3], [0], [1]], ids=str)
def test_constraints_apply_each_requests_own_values(lengths, generator):
    batch = ragged(lengths, generator)
    temperature = torch.tensor([0.5, 2.0, 0.0][: len(lengths)])
    top_k = torch.tensor([3, 5, VOCAB][: len(lengths)])
    seen = []

    def filters(logits, k, p):
        seen.append((k, p))
        k.max()  # as vLLM's, which takes no empty batch
        return logits

    logits = batch["target_logits"].clone()
    out = vllm.sampling_constraints(
        logits,
        batch["cu_num_draft_tokens"],
        temperature=temperature,
        top_k=top_k,
        top_p=None,
        apply_top_k_top_p=filters,
    )
    request = [b for b, n in enumerate(lengths) for _ in range(n)]
    divisor = torch.tensor([0.5, 2.0, 1.0])[request].view(-1, 1)
    assert torch.equal(out, batch["target_logits"] / divisor)
    assert [k.tolist() for k, _ in seen] == ([[top_k[b] for b in request]] if request else [])
    assert all(p is None for _, p in seen)
