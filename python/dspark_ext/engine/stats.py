"""What a generation reports: events as it goes, outputs and statistics at its end."""

import dataclasses

from ..verify import AcceptanceReport


@dataclasses.dataclass(frozen=True)
class StepEvent:
    """What one target pass did for one request.

    request        its index in the call
    token_ids      emitted tokens, in order
    accepted       for each of them, whether it was an accepted draft
    confidences    conditional confidences of the drafts that were verified
    num_accepted   how many of these the verification accepted (a stop token or a limit may have cut
                   the emitted tokens shorter)
    finish_reason  None, "stop" or "length"
    """

    request: int
    token_ids: list[int]
    accepted: list[bool]
    confidences: list[float]
    num_accepted: int
    finish_reason: str | None


@dataclasses.dataclass(frozen=True)
class RequestOutput:
    """A finished request.

    token_ids, accepted  emitted tokens and which of them were accepted drafts
    text                 decoded, None without a tokenizer
    passes               target passes that verified for it
    seconds              time of the engine from the start of the call to its last token; what the
                         taker of a stream does between events does not count
    first_token_seconds  the same up to its first token
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    accepted: list[bool]
    text: str | None
    finish_reason: str
    passes: int
    seconds: float
    first_token_seconds: float

    @property
    def tokens_per_pass(self) -> float:
        return len(self.token_ids) / self.passes


@dataclasses.dataclass
class GenerationStats:
    """Totals of a call.

    steps            target passes, each for all running requests together
    passes           the same counted per request: a pass that verifies for 8 requests counts 8
    emitted          tokens
    prefill_rows     prompt tokens that went through the target before their anchors
    verified_rows    anchors and drafts that went through the target
    seconds          time of the engine, of which draft_seconds (drafter, its context, scheduling),
                     target_seconds and sample_seconds (rejection sampling)
    acceptance       by position and by request; see `AcceptanceReport`
    """

    steps: int = 0
    passes: int = 0
    emitted: int = 0
    prefill_rows: int = 0
    verified_rows: int = 0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    sample_seconds: float = 0.0
    acceptance: AcceptanceReport | None = None

    @property
    def tokens_per_pass(self) -> float:
        """Tokens emitted per request and target pass, bonus included."""
        return self.emitted / self.passes if self.passes else float("nan")

    @property
    def tokens_per_second(self) -> float:
        return self.emitted / self.seconds if self.seconds else float("nan")

    @property
    def other_seconds(self) -> float:
        return self.seconds - self.draft_seconds - self.target_seconds - self.sample_seconds
