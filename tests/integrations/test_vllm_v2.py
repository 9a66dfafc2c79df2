"""The functions of vLLM's model runner V2 on ours."""

import pytest
import torch

from dspark_ext import sampling
from dspark_ext.integrations import vllm

VOCAB, STEPS, SLOTS = 13, 4, 7
LENGTHS = [4, 0, 2, 3]


@pytest.fixture
def call(generator):
    starts = torch.tensor([0, *(n + 1 for n in LENGTHS)]).cumsum(0).int()
    rows = int(starts[-1])
    return {
        "target_logits": torch.randn(rows, VOCAB, generator=generator),
        "draft_logits": torch.randn(SLOTS, STEPS, VOCAB, generator=generator),
        "draft_sampled": torch.randint(VOCAB, (rows,), generator=generator, dtype=torch.int32),
        "cu_num_logits": starts,
        "pos": 50 + torch.arange(rows),
        "idx_mapping": torch.tensor([5, 0, 6, 2], dtype=torch.int32),
        "expanded_idx_mapping": torch.empty(rows, dtype=torch.int32),
        "expanded_local_pos": torch.empty(rows, dtype=torch.int32),
        "temperature": torch.tensor([1.0, 9.0, 0.7, 9.0, 9.0, 1.3, 0.0]),
        "seed": torch.arange(1000, 1000 + SLOTS),
        "num_speculative_steps": STEPS,
    }


def alone(call, request, method, draft_logits):
    start, end = call["cu_num_logits"][request : request + 2].tolist()
    slot = int(call["idx_mapping"][request])
    temperature = float(call["temperature"][slot])
    drafts = call["draft_sampled"][start + 1 : end].long()
    return sampling.rejection_sample(
        call["target_logits"][start:end],
        drafts[None],
        None if draft_logits is None else draft_logits[slot, : end - start - 1][None],
        query_start_loc=torch.tensor([0, end - start]),
        method=method,
        temperature=float(temperature != 0),
        draft_temperature=temperature,
        seeds=int(call["seed"][slot]),
        positions=50 + start + 1,
    )


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("with_logits", [False, True])
def test_a_batch_is_its_requests_one_by_one(call, block, with_logits):
    call["draft_sampled"][2] = -1
    if not with_logits:
        call["draft_logits"] = None
    sampled, num_sampled = vllm.rejection_sample_v2(**call, use_block_verification=block)
    assert sampled.shape == (4, STEPS + 1) and sampled.dtype == torch.int64
    for request in range(4):
        method = "block" if block else "token"
        expected = alone(call, request, method, call["draft_logits"])
        emitted = expected.token_ids[0, : expected.num_emitted[0]].tolist()
        assert num_sampled[request] == expected.num_emitted[0]
        assert sampled[request].tolist() == [*emitted, *[-1] * (STEPS + 1 - len(emitted))]
    assert num_sampled[0] <= 2, "the draft after a placeholder was accepted"


def test_the_draft_vocabulary_may_be_smaller_or_padded(call):
    ids = call["draft_sampled"].remainder(8)
    for width in (8, VOCAB + 3):
        logits = torch.full((SLOTS, STEPS, width), float("-inf"))
        logits[:, :, :8] = call["draft_logits"][:, :, :8]
        same = {**call, "draft_sampled": ids}
        full = torch.full((SLOTS, STEPS, VOCAB), float("-inf"))
        full[:, :, :8] = call["draft_logits"][:, :, :8]
        got = vllm.rejection_sample_v2(**{**same, "draft_logits": logits})
        want = vllm.rejection_sample_v2(**{**same, "draft_logits": full})
        assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_padding_requests_change_nothing(call):
    sampled, num_sampled = vllm.rejection_sample_v2(**call)
    call["cu_num_logits"] = torch.cat([call["cu_num_logits"], call["cu_num_logits"][-1:]])
    call["idx_mapping"] = torch.cat([call["idx_mapping"], torch.tensor([-1], dtype=torch.int32)])
    padded, num_padded = vllm.rejection_sample_v2(**call)
    assert torch.equal(padded[:4], sampled) and torch.equal(num_padded[:4], num_sampled)
    assert num_padded[4] == 0


def test_synthetic_acceptance_is_refused(call):
    with pytest.raises(ValueError, match="synthetic"):
        vllm.rejection_sample_v2(**call, synthetic_conditional_rates=torch.ones(STEPS))


def by_sorting(confidence, slots, capacities, budget):
    """Survival descending, position ascending, request ascending; the first `budget`."""
    drafts = []
    for request, slot in enumerate(slots):
        survival = 1.0
        for position in range(capacities[request]):
            survival *= confidence[slot][position]
            drafts.append((-survival, position, request))
    lengths = [0] * len(slots)
    for _, _, request in sorted(drafts)[:budget]:
        lengths[request] += 1
    return lengths


@pytest.mark.parametrize("values", [(0.5, 1.0), (0.0, 0.5, 1.0), (0.0,), (1.0,)], ids=str)
def test_a_budget_is_spent_in_full_in_one_order(values, generator):
    """Ties, certainties and drafts without hope; sums of halves are exact."""
    slots = [3, 1, 4, 0]
    for capacities in ([4, 4, 4, 4], [4, 0, 1, 3], [0, 0, 2, 0]):
        for budget in range(sum(capacities)):
            pick = torch.randint(len(values), (6, 4), generator=generator)
            confidence = torch.tensor(values)[pick]
            admitted = torch.tensor(capacities, dtype=torch.int32)
            vllm.assign_draft_token_budget(confidence, torch.tensor(slots), admitted, budget, 4)
            assert admitted.sum() == budget
            assert admitted.tolist() == by_sorting(confidence.tolist(), slots, capacities, budget)


def test_a_confidence_that_is_not_a_number_ranks_last():
    admitted = torch.tensor([2, 2], dtype=torch.int32)
    confidence = torch.tensor([[float("nan"), 0.9], [0.1, 0.1]])
    vllm.assign_draft_token_budget(confidence, torch.tensor([0, 1]), admitted, 2, 2)
    assert admitted.tolist() == [0, 2]
