"""The law of whole rounds through the operators: markov_sample, confidence, schedule, pack,
rejection_sample, commit.

Thousands of requests share one toy target and one toy drafter, both Markov chains given by tables
of logits. They run rounds until each has emitted LENGTH tokens; the sequences must follow the
target's chain. The confidence head is biased towards one token, so that the lengths verified depend
on what was drafted. The negative control breaks exactly that rule and has to be caught.
"""

import pytest
import torch
from lawkit import assert_law, chi_square_p

from dspark_ext import draft, sampling, verify

VOCAB, DRAFTS, RANK, LENGTH = 3, 3, 4, 3
BATCH = 8000


class Toy:
    """`target` [V, V]: logits of the next token by the last one; the drafter's are similar."""

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.target = torch.randn(VOCAB, VOCAB, generator=generator)
        self.w1 = torch.randn(VOCAB, RANK, generator=generator)
        self.w2 = torch.randn(VOCAB, RANK, generator=generator)
        self.base = torch.randn(DRAFTS, VOCAB, generator=generator) / 2
        # large after token 0, small after the others
        basis = torch.linalg.pinv(self.w1)
        self.weight = torch.cat([torch.zeros(1), basis @ torch.tensor([3.0, -3.0, -1.0])])

    def law(self, anchor):
        chances = torch.softmax(self.target.double(), 1)
        joint = chances[anchor]
        for _ in range(LENGTH - 1):
            joint = (joint[..., None] * chances).flatten(0, -2)
            joint = joint.reshape(-1, VOCAB)
        return joint.flatten()


def run_rounds(choose, method):
    """Codes of the first LENGTH tokens of every request, and the mean number of drafts verified."""
    toy = Toy()
    anchor = torch.ones(BATCH, dtype=torch.int64)
    seq_lens = torch.zeros(BATCH, dtype=torch.int64)
    seeds = torch.arange(BATCH) * 7919 + 5
    tokens = torch.full((BATCH, LENGTH + DRAFTS + 1), -1, dtype=torch.int64)
    verified = []
    while int(seq_lens.min()) < LENGTH:
        drafts = draft.markov_sample(
            toy.base.expand(BATCH, -1, -1).contiguous(),
            anchor,
            toy.w1,
            toy.w2,
            temperature=1.0,
            seeds=seeds,
            positions=seq_lens + 1,
        )
        hidden = torch.zeros(BATCH, DRAFTS, 1)
        confidence = draft.confidence(hidden, drafts.prev_embed, toy.weight)
        plan = choose(confidence, drafts.token_ids)
        verified.append(float(plan.verify_lens.double().mean()))
        rows = verify.pack(
            anchor, drafts.token_ids, seq_lens, plan, max_rows=int(plan.num_rows) + 5
        )
        output = sampling.rejection_sample(
            toy.target[rows.input_ids],
            drafts.token_ids,
            drafts.logits,
            query_start_loc=plan.query_start_loc,
            method=method,
            temperature=1.0,
            seeds=seeds,
            positions=seq_lens + 1,
        )
        place = seq_lens[:, None] + torch.arange(DRAFTS + 1)
        fresh = (output.token_ids >= 0) & (place < tokens.shape[1])
        request = torch.arange(BATCH)[:, None].expand_as(place)
        tokens[request[fresh], place[fresh]] = output.token_ids[fresh]
        after = verify.commit(output, rows, seq_lens)
        done = seq_lens >= LENGTH  # finished requests stay where they are
        seq_lens = torch.where(done, seq_lens, after.seq_lens)
        anchor = torch.where(done, anchor, after.anchor)
    codes = torch.zeros(BATCH, dtype=torch.int64)
    for place in range(LENGTH):
        codes = codes * VOCAB + tokens[:, place]
    return codes, sum(verified) / len(verified)


COST = torch.cat([torch.ones(1), 1 + torch.arange(4 * BATCH) / (1.6 * BATCH)]).double()

CHOICES = {
    "fixed": lambda c, _: verify.schedule(c, mode="fixed"),
    "threshold": lambda c, _: verify.schedule(c, mode="threshold", threshold=0.5),
    "early_stop": lambda c, _: verify.schedule(c, cost=COST),
    "max_rows": lambda c, _: verify.schedule(
        c, mode="threshold", threshold=0.2, max_rows=BATCH + BATCH // 2
    ),
}


@pytest.mark.parametrize("method", ["block", "token"])
@pytest.mark.parametrize("choice", CHOICES)
def test_rounds_follow_the_target(choice, method):
    """Chi-square over all sequences of three tokens; false alarm rate 1e-6 each."""
    codes, verified = run_rounds(CHOICES[choice], method)
    assert_law(codes, Toy().law(1), choice)
    if choice != "fixed":
        assert 0 < verified < DRAFTS  # the schedule does cut


@pytest.mark.parametrize("method", ["block", "token"])
def test_a_length_that_looks_at_the_draft_is_caught(method):
    """Verifying x_1 only if it is token 0 changes the law."""

    def peek(confidence, token_ids):
        seen = torch.where(token_ids[:, :1] == 0, 1.0, 0.0).expand_as(confidence)
        return verify.schedule(seen.contiguous(), mode="threshold", threshold=0.5)

    codes, _ = run_rounds(peek, method)
    law = Toy().law(1)
    assert chi_square_p(torch.bincount(codes, minlength=len(law)), law) < 1e-12
