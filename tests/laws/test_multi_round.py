"""Many rounds of draft and verify in a row: the joint law of the first emitted tokens.

One round being lossless is not enough. A position can be drafted and judged in several rounds
before it is emitted, so a draw keyed by the position alone would be used again after its value has
become known. docs/numerics.md section 5 therefore puts the slot into the counter; the negative
controls here take it out and the law breaks.
"""

import numpy as np
import pytest
import torch
from kit import METHODS, log_rows, starts
from lawkit import assert_law, chi_square_p

from dspark_ext import sampling
from dspark_ext.reference import numerics

VOCAB, WIDTH, LENGTH, START = 3, 3, 4, 7
TRAJECTORIES = 25_000

# Weights of the next token given the last two, (target, draft): one chain on which a wrong key of
# the acceptance draws shows best, one for a wrong key of the drafts.
CHAINS = {
    "sharp": (
        [
            [4, 1, 5], [1, 5, 5], [5, 5, 1],
            [1, 6, 3], [5, 3, 1], [1, 1, 8],
            [1, 8, 1], [8, 1, 1], [3, 1, 5],
        ],
        [
            [1, 1, 8], [7, 1, 2], [8, 1, 1],
            [6, 1, 4], [1, 1, 8], [1, 3, 7],
            [1, 8, 2], [4, 5, 1], [1, 2, 7],
        ],
    ),
    "flat": (
        [
            [7, 2, 1], [1, 6, 3], [3, 1, 6],
            [2, 5, 3], [6, 3, 1], [1, 2, 7],
            [5, 1, 4], [2, 2, 6], [3, 6, 1],
        ],
        [
            [3, 3, 4], [4, 3, 3], [6, 2, 2],
            [5, 2, 3], [2, 4, 4], [4, 4, 2],
            [2, 5, 3], [5, 3, 2], [2, 3, 5],
        ],
    ),
}  # fmt: skip


def uniforms(seed, position, stream: str, slot) -> torch.Tensor:
    """Philox draws of many requests at once (checked against numerics.uniform below)."""
    mask = np.uint64(0xFFFFFFFF)
    c0, c1 = position.numpy().astype(np.uint64), np.zeros(len(seed), np.uint64)
    c2 = np.full(len(seed), numerics.STREAMS[stream], np.uint64)
    c3 = np.broadcast_to(np.uint64(slot), len(seed))
    k0, k1 = seed.numpy().astype(np.uint64), np.zeros(len(seed), np.uint64)
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (b >> np.uint64(32)) ^ c1 ^ k0, b & mask
        c2, c3 = (a >> np.uint64(32)) ^ c3 ^ k1, a & mask
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    bits = (((c1 << np.uint64(32)) | c0) >> np.uint64(11)) | np.uint64(1)
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)


def test_vectorised_uniforms_equal_the_oracle():
    seed, position = torch.tensor([0, 1, 99, 2**31]), torch.tensor([0, 7, 8, 2**31])
    for stream in ("draft", "accept"):
        for slot in (0, 2):
            want = [
                numerics.uniform(s, p, stream, slot)
                for s, p in zip(seed.tolist(), position.tolist(), strict=True)
            ]
            assert uniforms(seed, position, stream, slot).tolist() == want


class Loop:
    """Emitted tokens of many trajectories, one seed each."""

    def __init__(
        self, chain: str, method: str, draft_by_slot=True, accept_by_slot=True, count=TRAJECTORIES
    ):
        self.p, self.q = map(log_rows, CHAINS[chain])
        self.method = method
        self.draft_by_slot, self.accept_by_slot = draft_by_slot, accept_by_slot
        self.tokens = torch.zeros(count, 2 + LENGTH + WIDTH, dtype=torch.int64)  # prompt 0, 0
        self.emitted = torch.zeros(count, dtype=torch.int64)
        self.rounds = 0

    def run(self) -> torch.Tensor:
        while True:
            active = (self.emitted < LENGTH).nonzero()[:, 0]
            if len(active) == 0:
                return self.tokens[:, 2 : 2 + LENGTH]
            self.round(active)

    def round(self, seeds: torch.Tensor) -> None:
        count, begin = len(seeds), self.emitted[seeds]
        last = self.tokens[seeds[:, None], begin[:, None] + torch.arange(2)]  # the last two tokens
        ids = torch.zeros(count, WIDTH, dtype=torch.int64)
        target = torch.zeros(count, WIDTH + 1, VOCAB)
        draft = torch.zeros(count, WIDTH, VOCAB)
        for slot in range(WIDTH + 1):
            state = last[:, 0] * VOCAB + last[:, 1]
            target[:, slot] = self.p[state]
            if slot == WIDTH:
                break
            draft[:, slot] = self.q[state]
            position = START + begin + slot
            ids[:, slot], _ = sampling.sample(
                draft[:, slot].contiguous(), temperature=1.0, seeds=seeds, positions=position,
                uniforms=uniforms(seeds, position, "draft", slot if self.draft_by_slot else 0),
            )  # fmt: skip
            last = torch.stack([last[:, 1], ids[:, slot]], 1)
        call = self.arguments(seeds, begin, target, ids, draft)
        if not self.accept_by_slot:
            call["uniforms"] = self.draws_without_slot(seeds, begin, call)
        out = sampling.rejection_sample(**call)
        columns = 2 + begin[:, None] + torch.arange(WIDTH + 1)
        kept = out.token_ids >= 0
        rows = seeds[:, None].expand_as(columns)
        self.tokens[rows[kept], columns[kept]] = out.token_ids[kept]
        self.emitted[seeds] += out.num_emitted
        self.rounds += 1

    def arguments(self, seeds, begin, target, ids, draft) -> dict:
        return {
            "target_logits": target.flatten(0, 1),
            "draft_token_ids": ids,
            "draft_logits": draft,
            "query_start_loc": starts([WIDTH] * len(seeds)),
            "method": self.method,
            "temperature": 1.0,
            "seeds": seeds,
            "positions": START + begin,
        }

    def draws_without_slot(self, seeds, begin, call) -> torch.Tensor:
        """The wrong keying: acceptance by position alone. The final draw stays as documented."""
        draws = [uniforms(seeds, START + begin + i, "accept", 0) for i in range(WIDTH)]
        draws = torch.stack([*draws, draws[0]], 1)
        tau = sampling.rejection_sample(**call, uniforms=draws).num_accepted
        draws[:, WIDTH] = uniforms(seeds, START + begin + tau, "resample", 0)
        return draws


def cells(tokens: torch.Tensor) -> torch.Tensor:
    return (tokens * VOCAB ** torch.arange(LENGTH - 1, -1, -1)).sum(1)


def exact_law(chain: str) -> torch.Tensor:
    law = {(0, 0): 1.0}
    p = log_rows(CHAINS[chain][0]).double().softmax(-1)
    for _ in range(LENGTH):
        law = {
            (*tokens, x): chance * float(p[tokens[-2] * VOCAB + tokens[-1], x])
            for tokens, chance in law.items()
            for x in range(VOCAB)
        }
    return torch.tensor([law[tokens] for tokens in sorted(law)])


def p_value(chain: str, tokens: torch.Tensor) -> float:
    return chi_square_p(torch.bincount(cells(tokens), minlength=VOCAB**LENGTH), exact_law(chain))


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("method", METHODS)
def test_joint_law_over_rounds(method, chain):
    loop = Loop(chain, method)
    tokens = loop.run()
    assert loop.rounds == LENGTH  # some trajectories need one round per token
    assert_law(cells(tokens), exact_law(chain))


def test_acceptance_keyed_by_position_alone_is_seen():
    assert p_value("sharp", Loop("sharp", "block", accept_by_slot=False).run()) < 1e-30


def test_drafts_keyed_by_position_alone_are_seen():
    assert p_value("flat", Loop("flat", "block", draft_by_slot=False).run()) < 1e-15


@pytest.mark.parametrize("method", METHODS)
def test_rounds_are_reproducible(method):
    tokens = Loop("flat", method, count=2000).run()
    assert torch.equal(tokens, Loop("flat", method, count=2000).run())
    assert torch.equal(tokens[:100], Loop("flat", method, count=100).run())
