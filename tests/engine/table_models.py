"""A target and a drafter that read their next-token logits from tables: laws known exactly, and
fast enough to draw tens of thousands of texts through the engine."""

import torch

from dspark_ext import sampling
from dspark_ext.engine import Draft, TargetOutput


class TableTarget:
    """The next token depends on the last one: logits [V, V]."""

    num_features = 1

    def __init__(self, logits, max_requests=4, max_len=16):
        self.logits = logits
        self.vocab_size = len(logits)
        self.max_requests, self.max_len = max_requests, max_len
        self.rows = []  # of each pass

    def forward(self, batch):
        self.rows.append(len(batch.input_ids))
        logits = self.logits[batch.input_ids[batch.logit_rows]]
        return TargetOutput(logits.clone(), batch.positions[:, None].float())


class TableDrafter:
    """Drafts by its own table; what it says of its confidence depends on the token before, as a
    draft head's does. It checks that what it is told of a slot comes without gaps."""

    num_features = 1
    chains_blocks = True

    def __init__(self, logits, confidence, block_size=3, max_requests=4, max_len=16):
        self.logits, self.confidence = logits, confidence  # [V, V], [V]
        self.block_size = block_size
        self.max_requests, self.max_len = max_requests, max_len
        self.lengths = [0] * max_requests
        self.calls = 0

    def append(self, features, positions, slots, token_ids):
        assert torch.equal(features[:, 0], positions.float())
        for position, slot in zip(positions.tolist(), slots.tolist()):
            assert position in (0, self.lengths[slot])
            self.lengths[slot] = position + 1

    def draft(self, batch, num_drafts, method):
        self.calls += 1
        last, ids, logits, confidence = batch.anchor, [], [], []
        for place in range(num_drafts):
            row = self.logits[last]
            confidence.append(self.confidence[last])
            last = sampling.sample(
                row,
                temperature=batch.temperature if method == "probabilistic" else 0.0,
                seeds=batch.seeds,
                positions=batch.anchor_positions + 1 + place,
                stream="draft",
                slots=place,
            ).ids
            ids.append(last)
            logits.append(row)
        drawn = torch.stack(logits, 1) if method == "probabilistic" else None
        return Draft(torch.stack(ids, 1), drawn, torch.stack(confidence, 1))


def table(weights) -> torch.Tensor:
    return torch.tensor(weights, dtype=torch.float32).log()
