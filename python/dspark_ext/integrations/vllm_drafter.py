"""A drafter for vLLM's classic runner that proposes only what is likely to stand.

That runner verifies every draft it is given, so the length of a block is its drafter's to choose.
`LookupDrafter` is the class for `method: custom_class` in the speculative configuration
(docs/integrations.md). vLLM itself is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


def find_continuation(
    context: np.ndarray, shortest: int, longest: int, num_drafts: int
) -> tuple[int, np.ndarray]:
    """What followed the latest earlier occurrence of the context's longest known suffix.

    Returns the suffix's length, from `shortest` to `longest`, and up to `num_drafts` tokens; 0 and
    none if no such suffix occurred before.

    Example:
        >>> find_continuation(np.array([5, 1, 2, 7, 8, 1, 2]), 1, 3, 2)
        (2, array([7, 8]))
    """
    for size in range(min(longest, len(context) - 1), shortest - 1, -1):
        windows = sliding_window_view(context[:-1], size)
        (starts,) = np.nonzero((windows == context[-size:]).all(axis=1))
        if len(starts):
            follows = int(starts[-1]) + size
            return size, context[follows : follows + num_drafts]
    return 0, context[:0]


class AcceptanceByMatch:
    """Conditional acceptance by length of the match and position in the block, with fading memory.

    The lengths it gives depend on what was known before the block was proposed, so they change no
    law; they depend on all requests, so a request's text may depend on its company.
    """

    def __init__(self, longest: int, num_drafts: int, memory: float = 0.98, probe: int = 32):
        # Before anything is known, nine of ten drafts stand.
        self.stood = np.full((longest + 1, num_drafts), 1.8)
        self.tried = np.full((longest + 1, num_drafts), 2.0)
        self.proposals = np.zeros(longest + 1, dtype=np.int64)
        self.memory, self.probe = memory, probe

    def length(self, match: int, min_survival: float) -> int:
        """Drafts of a block whose chance to be reached and to stand is at least `min_survival`;
        all of them at every `probe`-th proposal, so that a length given up can come back."""
        self.proposals[match] += 1
        survival = np.cumprod(self.stood[match] / self.tried[match])
        if self.proposals[match] % self.probe == 0:
            return len(survival)
        return int((survival >= min_survival).sum())

    def observe(self, match: int, stood: int, failed: bool) -> None:
        """`stood` drafts stood; the one behind them was refused if `failed`, else not judged."""
        judged = stood + failed
        self.stood[match, :judged] *= self.memory
        self.tried[match, :judged] *= self.memory
        self.stood[match, :stood] += 1
        self.tried[match, :judged] += 1


class Proposal(NamedTuple):
    """What was proposed for a row, and how to know that row's request again."""

    num_tokens: int
    last_token: int
    match: int
    drafts: list[int]


class LookupDrafter:
    """Prompt lookup with blocks as long as their drafts are likely to be reached and to stand.

    `num_speculative_tokens` of the speculative configuration is the longest block. vLLM hands a
    drafter of this kind no other setting; subclass it to change them.
    """

    shortest, longest = 1, 4  # suffixes looked up
    # A block ends before its first draft less likely than this to be reached and to stand. 0
    # proposes every draft found; the more a row of the target costs against a pass, the higher.
    min_survival = 0.25

    def __init__(self, vllm_config):
        self.num_drafts = vllm_config.speculative_config.num_speculative_tokens
        self.max_len = vllm_config.model_config.max_model_len
        self.acceptance = AcceptanceByMatch(self.longest, self.num_drafts)
        self.proposed: dict[int, Proposal] = {}

    def load_model(self, *args, **kwargs) -> None:
        """There is none."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings=None,
    ) -> list[list[int]]:
        """Drafts of each row; none for a row that sampled nothing.

        Args:
            sampled_token_ids: tokens that each row has just emitted.
            num_tokens_no_spec: int [rows], tokens of each row, those included.
            token_ids_cpu: int [rows, max_len], the tokens.
        """
        del slot_mappings
        before, self.proposed = self.proposed, {}
        blocks = []
        for row, sampled in enumerate(sampled_token_ids):
            context = token_ids_cpu[row, : int(num_tokens_no_spec[row])]
            if row in before:
                self._learn(before[row], context, len(sampled))
            blocks.append(self._block(row, context) if len(sampled) else [])
        return blocks

    def _learn(self, proposal: Proposal, context: np.ndarray, num_sampled: int) -> None:
        start, drafts = proposal.num_tokens, proposal.drafts
        # vLLM moves requests between rows; only the row's own continuation is evidence.
        if num_sampled == 0 or len(context) != start + num_sampled:
            return
        if context[start - 1] != proposal.last_token:
            return
        count = min(num_sampled, len(drafts))
        same = context[start : start + count] == np.asarray(drafts[:count], dtype=context.dtype)
        stood = count if same.all() else int(same.argmin())
        self.acceptance.observe(proposal.match, stood, failed=stood < count)

    def _block(self, row: int, context: np.ndarray) -> list[int]:
        room = min(self.num_drafts, self.max_len - len(context) - 1)
        if room <= 0:
            return []
        match, found = find_continuation(context, self.shortest, self.longest, room)
        if not match:
            return []
        length = self.acceptance.length(match, self.min_survival)
        drafts = found[:length].tolist()
        if drafts:
            self.proposed[row] = Proposal(len(context), int(context[-1]), match, drafts)
        return drafts
