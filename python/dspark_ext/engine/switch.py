"""Whether a step drafts at all: decided before anything of it is drawn, from steps that are over.

Lossless for that reason: docs/losslessness.md, point 4, and docs/draft-gate.md.
"""

import collections

from ..verify import CostTable, DraftGate
from .config import SpeculativeConfig


class AlwaysDraft:
    """No switch."""

    def should_draft(self, num_requests: int, num_other_rows: int) -> bool:
        return num_requests > 0

    def update(self, num_requests, drafted, num_verified, num_accepted, num_other_rows) -> None:
        pass


class CostSwitch:
    """Off while drafting costs more time than it brings, by a cost table."""

    def __init__(self, table: CostTable) -> None:
        self.gate = DraftGate(table)

    def should_draft(self, num_requests: int, num_other_rows: int) -> bool:
        return self.gate.should_draft(num_requests, num_other_rows)

    def update(self, num_requests, drafted, num_verified, num_accepted, num_other_rows) -> None:
        self.gate.update(num_requests, drafted, num_verified, num_accepted, num_other_rows)


class AcceptanceSwitch:
    """Off while too few of the verified drafts are accepted.

    min_acceptance  accepted / verified over the last blocks has to reach it
    window          blocks that count; before so many were drafted the switch stays on
    probe_interval  plain steps after which one step drafts again. A quarter of the window of such
                    blocks, drafted since the switch went off, decides whether it goes on again.
    """

    def __init__(self, min_acceptance: float, window: int, probe_interval: int) -> None:
        self.min_acceptance = min_acceptance
        self.window = window
        self.probe_interval = probe_interval
        self.on = True
        self._blocks: collections.deque[tuple[int, int, int]] = collections.deque()
        self._num_blocks = 0
        self._plain = 0

    def should_draft(self, num_requests: int, num_other_rows: int) -> bool:
        return num_requests > 0 and (self.on or self._plain >= self.probe_interval)

    def update(self, num_requests, drafted, num_verified, num_accepted, num_other_rows) -> None:
        if not drafted:
            self._plain += num_requests > 0
            return
        self._plain = 0
        self._take(num_requests, num_verified, num_accepted)
        needed = self.window if self.on else max(1, self.window // 4)
        verified = sum(step[1] for step in self._blocks)
        if self._num_blocks < needed or not verified:
            return
        good = sum(step[2] for step in self._blocks) >= self.min_acceptance * verified
        if good != self.on:
            self.on = good
            self._blocks.clear()
            self._num_blocks = 0

    def _take(self, *step: int) -> None:
        self._blocks.append(step)
        self._num_blocks += step[0]
        while self._num_blocks - self._blocks[0][0] >= self.window:
            self._num_blocks -= self._blocks.popleft()[0]


def make_switch(config: SpeculativeConfig, cost_table: CostTable | None):
    if config.draft_gate:
        return CostSwitch(cost_table)
    if config.min_acceptance > 0:
        return AcceptanceSwitch(
            config.min_acceptance, config.acceptance_window, config.probe_interval
        )
    return AlwaysDraft()
