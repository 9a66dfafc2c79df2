"""Text out of tokens as they come: no character is split, nothing is shown and taken back."""

from collections.abc import Sequence

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 8  # tokens of the prompt
_MOST_PARTS = 3  # tokens of a character before its last, as it has up to four bytes


class TextStream:
    """Decodes a request's tokens step by step and watches for its stop strings.

    decode   token ids -> text
    stop     strings that end the text; what is before the first of them is the text
    context  tokens that the text goes on from, a prompt: a tokeniser may drop the space before the
             first word of a text, which this one is not

    A character whose bytes lie in several tokens appears with the last of them. What might become
    the beginning of a stop string is held back until it is decided. `text` is what was decided so
    far; the pieces that `push` and `finish` return are its parts.

    Only the last tokens are decoded again at a push: from the last but one place on where a
    character ended, since a tokeniser may decode a token differently at the beginning of a text.
    An unfinished character may spoil the characters before it, too: some tokenisers decode a run of
    bytes that is no text yet as one U+FFFD for each byte.
    """

    def __init__(self, decode, stop: Sequence[str] = (), context: Sequence[int] = ()) -> None:
        self._decode, self._stop = decode, tuple(stop)
        self._token_ids: list[int] = list(context[-_CONTEXT:])
        # decoded from, and the last place where a character ended
        self._start, self._clean = 0, len(self._token_ids)
        # characters of the decoded window that are in the context, `_decided` or `_held`
        self._shown: int | None = None
        self._held = ""
        self._decided: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        return "".join(self._decided)

    def push(self, token_ids: Sequence[int], watch: bool = True) -> tuple[str, int]:
        """Take in tokens. Returns the text they decide and how many of them were taken: all, or up
        to the one that completes a stop string (`stopped`). Without `watch`, stop strings in their
        text are let pass."""
        if not self._stop or not watch:
            piece = self._new_text(token_ids)
            return self._decide(self._held + piece, ""), len(token_ids)
        pieces = []
        for taken, token in enumerate(token_ids, 1):
            text = self._held + self._new_text([token])
            found = [at for stop in self._stop if (at := text.find(stop)) >= 0]
            if found:
                self.stopped = True
                pieces.append(self._decide(text[: min(found)], ""))
                return "".join(pieces), taken
            keep = len(text) - self._possible_start(text)
            pieces.append(self._decide(text[:keep], text[keep:]))
        return "".join(pieces), len(token_ids)

    def finish(self) -> str:
        """The text that was held back, at the end of a request that no stop string ended. An
        unfinished character counts as U+FFFD."""
        if self.stopped or self._shown is None:
            return ""
        window = self._decode(self._token_ids[self._start :])
        rest, self._shown = window[self._shown :], len(window)
        return self._decide(self._held + rest, "")

    def _new_text(self, token_ids: Sequence[int]) -> str:
        if not token_ids:
            return ""
        if self._shown is None:
            context = self._decode(self._token_ids) if self._token_ids else ""
            self._shown = len(context.rstrip(_UNFINISHED))
        self._token_ids.extend(token_ids)
        window = self._decode(self._token_ids[self._start :])
        undecided = len(window) - len(window.rstrip(_UNFINISHED))
        if undecided and len(token_ids) > 1:  # one by one, to see where characters end
            del self._token_ids[-len(token_ids) :]
            return "".join(self._new_text([token]) for token in token_ids)
        if undecided:
            if (
                len(self._token_ids) - self._clean > _MOST_PARTS
            ):  # no text; the last may become some
                undecided = 1
            stable = window[: len(window) - undecided]
            piece, self._shown = stable[self._shown :], max(self._shown, len(stable))
            return piece
        piece = window[self._shown :]
        self._start, self._clean = self._clean, len(self._token_ids)
        self._shown = len(self._decode(self._token_ids[self._start :]))
        return piece

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _decide(self, text: str, held: str) -> str:
        self._held = held
        if text:
            self._decided.append(text)
        return text
