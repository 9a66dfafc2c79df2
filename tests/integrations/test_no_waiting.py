"""No adapter reads a value of a tensor on the host: fake tensors, which have none, pass through.

On a GPU such a read would wait for it, and could not be captured.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dspark_ext.integrations import flashinfer, layouts, sglang, vllm

BATCH, DRAFTS, VOCAB, SLOTS = 3, 4, 10, 6
COUNTS = [4, 0, 3]
FLAT = sum(COUNTS)


def flat_layouts():
    ends, ids = torch.zeros(BATCH, dtype=torch.int32), torch.zeros(FLAT, dtype=torch.int32)
    logits, bonus = torch.zeros(FLAT, VOCAB), torch.zeros(BATCH, 1, dtype=torch.int32)
    return (
        layouts.query_start_loc_from_ends(ends),
        layouts.pad_ids(ids, ends, DRAFTS),
        layouts.pad_rows(logits, ends, DRAFTS),
        layouts.rows_with_given_bonus(logits, bonus, ends),
        layouts.emitted_as_rows(torch.zeros(BATCH, DRAFTS + 1, dtype=torch.int64), 7),
    )


def vllm_classic():
    ends, keys = torch.zeros(BATCH, dtype=torch.int32), torch.zeros(BATCH, dtype=torch.int64)
    logits = torch.zeros(FLAT, VOCAB)
    vllm.sampling_constraints(
        logits,
        ends,
        temperature=torch.zeros(BATCH),
        top_k=keys,
        top_p=None,
        apply_top_k_top_p=lambda rows, k, p: rows,
    )
    return vllm.rejection_sample(
        *(torch.zeros(FLAT, dtype=torch.int32), COUNTS, DRAFTS, ends),
        *(torch.zeros(FLAT, VOCAB), logits, torch.zeros(BATCH, 1, dtype=torch.int32)),
        greedy=torch.zeros(BATCH, dtype=torch.bool),
        keys=keys,
    )


def vllm_v2():
    rows = FLAT + BATCH
    index = torch.zeros(BATCH, dtype=torch.int32)
    vllm.assign_draft_token_budget(torch.zeros(SLOTS, DRAFTS), index, index.clone(), 5, DRAFTS)
    return vllm.rejection_sample_v2(
        *(torch.zeros(rows, VOCAB), torch.zeros(SLOTS, DRAFTS, VOCAB)),
        *(torch.zeros(rows, dtype=torch.int64), torch.zeros(BATCH + 1, dtype=torch.int32)),
        *(torch.zeros(rows, dtype=torch.int64), index, None, None),
        *(torch.zeros(SLOTS), torch.zeros(SLOTS, dtype=torch.int64), DRAFTS),
    )


def sglang_chain():
    slots = DRAFTS + 1
    return sglang.chain_speculative_sampling(
        torch.zeros(BATCH * slots, dtype=torch.int32),
        torch.zeros(BATCH, slots, dtype=torch.int32),
        torch.zeros(BATCH, dtype=torch.int32),
        torch.zeros(BATCH, slots, dtype=torch.int64),
        torch.zeros(BATCH, slots, dtype=torch.int64),
        *(None, None, torch.zeros(BATCH, slots), torch.zeros(BATCH)),
        *(torch.zeros(BATCH, slots, VOCAB), torch.zeros(BATCH, DRAFTS, VOCAB)),
    )


def flashinfer_chain():
    return flashinfer.chain_speculative_sampling(
        torch.zeros(BATCH, DRAFTS, VOCAB),
        torch.zeros(BATCH, DRAFTS, dtype=torch.int32),
        torch.zeros(BATCH, DRAFTS + 1, VOCAB),
    )


ADAPTERS = (flat_layouts, vllm_classic, vllm_v2, sglang_chain, flashinfer_chain)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
def test_an_adapter_reads_no_values(adapter):
    with FakeTensorMode():
        adapter()


def test_a_read_would_be_seen():
    with FakeTensorMode(), pytest.raises(RuntimeError):
        torch.zeros(()).item()
