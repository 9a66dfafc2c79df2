"""Prompt lookup: drafts copied from the request's own text."""

import torch

from .._upload import upload
from .drafter import Draft, DraftBatch
from .own_history import OwnHistory


class NGramDrafter:
    """Propose what followed the last n tokens where they stood before in the request's text.

    The longest n in max_ngram .. min_ngram that occurs counts, at its latest occurrence. Where the
    copied text reaches the end, it goes on with the proposal itself, so a loop is continued. No
    occurrence, no drafts: `Draft.num_proposed` is 0 and only the anchor is verified.

    max_requests  cache slots, the target's
    max_len       positions per slot, the target's
    block_size    drafts per block
    min_ngram     shortest suffix that is looked up
    max_ngram     longest

    A further block of a step (`blocks_per_step`) looks up the end of the one before.

    Reads no features, so it serves any target. Drafts are looked up, not drawn, hence judged as
    one-hot, and the same for any batch. The confidence of x_k starts at m / (m + 1), m = the length
    of the match with x_1 .. x_{k-1}, at most `max_ngram + block_size`, and follows the request's
    own history (`OwnHistory`).

    Source: Saxena, "Prompt lookup decoding", 2023; vLLM's method "ngram".
    """

    num_features = 0
    method = "ngram"
    chains_blocks = True
    capturable = False
    capture_obstacle = "it looks tokens up on the host"

    def __init__(
        self,
        *,
        max_requests: int,
        max_len: int,
        block_size: int = 5,
        min_ngram: int = 2,
        max_ngram: int = 4,
    ) -> None:
        if block_size < 1:
            raise ValueError(
                f"dspark_ext.engine.NGramDrafter: block_size: expected >= 1, got {block_size}"
            )
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                "dspark_ext.engine.NGramDrafter: min_ngram, max_ngram: expected 1 <= min_ngram <= "
                f"max_ngram, got {min_ngram} and {max_ngram}"
            )
        self.max_requests, self.max_len, self.block_size = max_requests, max_len, block_size
        self._texts = [_Text(min_ngram, max_ngram) for _ in range(max_requests)]
        self.identity = {
            "class": type(self).__name__,
            "block_size": str(block_size),
            "ngrams": f"{min_ngram}..{max_ngram}",
        }
        matched = torch.arange(max_ngram + block_size + 1, dtype=torch.float32, device="cpu")
        self._history = OwnHistory(max_requests, matched / (matched + 1))

    @classmethod
    def for_target(cls, target, **settings) -> "NGramDrafter":
        """A drafter of the sizes of `target`; settings: block_size, min_ngram, max_ngram."""
        return cls(max_requests=target.max_requests, max_len=target.max_len, **settings)

    def append(
        self,
        features: torch.Tensor | None,
        positions: torch.Tensor,
        slots: torch.Tensor,
        token_ids: torch.Tensor,
    ) -> None:
        """See `Drafter.append`; features are not read."""
        columns = (each.tolist() for each in (slots, positions, token_ids))
        for slot, position, token in zip(*columns, strict=True):
            if slot < 0:
                continue
            if position == 0:
                self._history.reset(slot)
            self._texts[slot].put(position, token)

    def draft(self, batch: DraftBatch, num_drafts: int, method: str) -> Draft:
        """See `Drafter.draft`; both methods are the same here."""
        proposals, matches, chained = [], [], []
        columns = (each.tolist() for each in (batch.slots, batch.anchor_positions, batch.anchor))
        for slot, position, anchor in zip(*columns, strict=True):
            text = self._texts[slot]
            chained.append(text.continues(position, anchor))
            length, tokens = text.propose(position, anchor, num_drafts)
            missing = num_drafts - len(tokens)
            proposals.append(tokens + [-1] * missing)
            matches.append([length + k for k in range(len(tokens))] + [-1] * missing)
        device = batch.anchor.device
        shape = (len(proposals), num_drafts)
        token_ids = upload(proposals, torch.int64).view(shape)
        kinds = upload(matches, torch.int64).view(shape)
        confidence = self._history.confidence(batch.slots.cpu(), kinds, chained)
        return Draft(
            token_ids.to(device),
            None,
            confidence.to(device),
            num_proposed=(token_ids >= 0).sum(1).to(device),
        )

    def observe(self, slots, verify_lens, num_accepted) -> None:
        """See `Drafter`."""
        self._history.observe(slots, verify_lens, num_accepted)

    def release(self, slot: int) -> None:
        """See `Drafter`."""
        self._texts[slot].cut(0)
        self._history.reset(slot)

    def export_slot(self, slot: int, length: int) -> dict[str, torch.Tensor]:
        """The request's history, see `handover`; its text comes with the tokens."""
        return self._history.export(slot)

    def check_slot(self, tensors: dict[str, torch.Tensor], token_ids) -> None:
        """HandoverError unless `import_slot` can take them."""
        self._history.check(tensors)

    def import_slot(self, slot: int, tensors: dict[str, torch.Tensor], token_ids) -> None:
        """Make what `export_slot` gave the slot's; token_ids of its positions."""
        self._history.restore(slot, tensors)
        self._texts[slot].cut(0)
        for position, token in enumerate(token_ids):
            self._texts[slot].put(position, token)

    def token_ids(self, slot: int) -> list[int]:
        """The kept tokens of a request, in order."""
        return list(self._texts[slot].tokens)


class _Text:
    """Tokens of a request, and where each n-gram of them last ended."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._lengths = range(min_ngram, max_ngram + 1)
        self.tokens: list[int] = []
        self._drafted: list[int] = []  # the last anchors and drafts, behind the tokens
        self._ends: dict[tuple[int, ...], int] = {}

    def put(self, position: int, token: int) -> None:
        if position > len(self.tokens):
            raise ValueError(
                "dspark_ext.engine.NGramDrafter: append: positions: expected at most "
                f"{len(self.tokens)}, got {position}"
            )
        if position < len(self.tokens):
            self.cut(position)
        self.tokens.append(token)
        self._drafted = []
        self._index(position)

    def cut(self, length: int) -> None:
        self._drafted = []
        del self.tokens[length:]
        self._ends.clear()
        for end in range(length):
            self._index(end)

    def _index(self, end: int) -> None:
        for length in self._lengths:
            if length > end + 1:
                break
            self._ends[tuple(self.tokens[end + 1 - length : end + 1])] = end

    def continues(self, position: int, anchor: int) -> bool:
        """Whether the anchor is the last draft of a block that is not verified."""
        drafts = len(self._drafted) - 1
        return drafts > 0 and (position, anchor) == (
            len(self.tokens) + drafts,
            self._drafted[-1],
        )

    def propose(self, position: int, anchor: int, count: int) -> tuple[int, list[int]]:
        """Length of the match and what followed it: `count` tokens, or none."""
        if self.continues(position, anchor):
            behind = self._drafted[:-1]
        elif position == len(self.tokens):
            behind = []
        else:
            raise ValueError(
                f"dspark_ext.engine.NGramDrafter: draft: anchor_positions: expected "
                f"{len(self.tokens)} (tokens appended so far), got {position}"
            )
        text = [*self.tokens, *behind, anchor]
        self._drafted = text[len(self.tokens) :]
        for length in reversed(self._lengths):
            if length > len(text):
                continue
            end = self._ends.get(tuple(text[len(text) - length :]))
            if end is not None:
                for place in range(count):
                    text.append(text[end + 1 + place])
                self._drafted = text[len(self.tokens) :]
                return length, text[position + 1 :]
        return 0, []
