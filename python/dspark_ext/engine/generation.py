"""What a caller holds: a call with several prompts, or one submitted request."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .request import Prompt, Request
from .sampling_params import SamplingParams
from .session import Session
from .stats import GenerationStats, RequestOutput, StepEvent, acceptance_report

if TYPE_CHECKING:
    from .engine import DSparkEngine


class Generation:
    """A call in progress: an iterator of `StepEvent`, then `outputs` and `stats`.

    outputs  `RequestOutput` per prompt; None until it is finished
    stats    `GenerationStats`; `stats.acceptance` is there once the iterator is exhausted or closed

    While it runs, `submit` adds a prompt to its passes and `cancel` takes one out.
    """

    def __init__(self, engine: DSparkEngine, requests: list[Request], speculative: bool) -> None:
        self.engine = engine
        self.outputs: list[RequestOutput | None] = [None] * len(requests)
        self._requests = requests
        self._speculative = speculative
        self._session = Session(engine, self._take)
        self._given_up = False
        for request in requests:
            self._session.submit(request)
        self._events = self._run()

    @property
    def stats(self) -> GenerationStats:
        return self._session.stats

    def __iter__(self) -> Iterator[StepEvent]:
        return self._events

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0
    ) -> int:
        """Add a prompt; it shares the next passes. Returns its index in `outputs`. RuntimeError if
        the iterator has ended."""
        if self._given_up:
            raise RuntimeError("dspark_ext.engine: submit: the stream has ended")
        request = self.engine.make_request(
            len(self._requests), prompt, params, self._speculative, priority
        )
        self._requests.append(request)
        self.outputs.append(None)
        self._session.submit(request)
        return request.index

    def cancel(self, index: int) -> bool:
        """Give up a prompt: no event of it follows, its output says "cancelled". False if it is
        finished."""
        return self._session.cancel(self._requests[index])

    def close(self) -> None:
        """Give up what is unfinished and free its cache slots."""
        self._given_up = True
        self._events.close()
        self._end()

    def _run(self) -> Iterator[StepEvent]:
        session = self._session
        try:
            while session.has_work:
                events = session.step()
                if session.stuck:
                    raise RuntimeError(
                        "dspark_ext.engine: other streams hold all cache slots, or the target's "
                        "cache has no room for a request"
                    )
                for event in events:
                    if self._requests[event.request].finish_reason != "cancelled":
                        yield event
        finally:
            self._given_up = True
            self._end()

    def _end(self) -> None:
        self._session.close()
        if self.stats.acceptance is None:
            most = self.engine.most_drafts if self._speculative else 0
            self.stats.acceptance = acceptance_report(self._requests, most)

    def _take(self, request, event, output) -> None:
        if output is not None and not (output.finish_reason == "cancelled" and self._given_up):
            self.outputs[request.index] = output


class RequestHandle:
    """A submitted request: an iterator of its `StepEvent`s, and its output.

    id      what `StepEvent.request` says
    output  `RequestOutput`, None until it is finished
    error   whether its pass failed

    Taking an event that is not there yet runs the engine, all submitted requests together. Where a
    thread of the caller's runs `DSparkEngine.step`, take events from there and only `output` here.
    """

    def __init__(self, engine: DSparkEngine, request: Request) -> None:
        self.id = request.index
        self.output: RequestOutput | None = None
        self.request = request
        self._engine = engine
        self._pending: collections.deque[StepEvent] = collections.deque()

    @property
    def finished(self) -> bool:
        """True from its last event, or from its cancellation, on."""
        return self.output is not None or self.request.finish_reason == "cancelled"

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.request.token_ids[: self.request.prompt_length]

    @property
    def token_ids(self) -> list[int]:
        """Emitted so far."""
        return self.request.token_ids[self.request.prompt_length :]

    @property
    def text(self) -> str | None:
        """Decided so far."""
        return None if self.request.text is None else self.request.text.text

    def cancel(self) -> bool:
        """No event follows; the slot is free for others. False if it is finished."""
        return self._engine.cancel(self)

    def __iter__(self) -> Iterator[StepEvent]:
        return self

    def __next__(self) -> StepEvent:
        while not self._pending:
            if self.finished:
                raise StopIteration
            self._engine.advance()
        if self.request.finish_reason == "cancelled":
            self._pending.clear()
            raise StopIteration
        return self._pending.popleft()

    def result(self) -> RequestOutput:
        """Run to the end."""
        while not self.finished:
            self._engine.advance()
        return self.output

    def _take(self, event: StepEvent | None, output: RequestOutput | None) -> None:
        if event is not None:
            self._pending.append(event)
        if output is not None:
            self.output = output
