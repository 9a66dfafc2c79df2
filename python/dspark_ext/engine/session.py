"""Requests that share passes: admission, the loop over steps, cancellation."""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import sampling
from .._upload import current
from ..ranges import ranged
from .request import Request
from .stats import GenerationStats, RequestOutput, StepEvent, request_output, token_latencies
from .step import StepResult, run_step

if TYPE_CHECKING:
    from .engine import DSparkEngine

_FAULTS = {
    sampling.STATUS_NAN_ROW: "NaN",
    sampling.STATUS_EMPTY_ROW: "nothing above -inf",
    sampling.STATUS_INVALID_REQUEST: "a parameter out of range",
}
_log = logging.getLogger(__name__)

Listener = Callable[[Request, StepEvent | None, RequestOutput | None], None]


class Session:
    """A continuous batch: requests enter at any time and leave when they are done.

    stats     `GenerationStats` of all requests so far
    stuck     whether the last step could not run because the first request in the queue found no
              room and none of the session holds any: others do
    listener  called with (request, event, output) for what happens to a request; event is None
              when it was cancelled or its pass failed, output None until it is finished

    `submit`, `cancel` may be called from any thread; `step` from one at a time (the engine's lock
    sees to it). Sessions of one engine share its cache slots and take their passes in turns.
    """

    def __init__(self, engine: DSparkEngine, listener: Listener) -> None:
        self.engine = engine
        self.stats = GenerationStats()
        self._listener = listener
        self._queue_lock = threading.Lock()
        self._waiting: list[tuple[int, int, Request]] = []
        self._running: list[Request] = []
        self._cancelled: set[Request] = set()
        self._arrivals = 0
        self.stuck = False

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def submit(self, request: Request) -> None:
        """Put a request in the queue: higher priority first, then the order of arrival."""
        with self._queue_lock:
            request.submitted = self.stats.seconds
            self._arrivals += 1
            bisect.insort(self._waiting, (-request.priority, self._arrivals, request))

    def cancel(self, request: Request) -> bool:
        """Give a request up: no event follows, its slot is free at once or, if another thread is
        in a step, after it. False if it is finished."""
        with self._queue_lock:
            if request.finish_reason is not None or request in self._cancelled:
                return False
            self._cancelled.add(request)
            request.finish_reason = "cancelled"
        if self.engine.lock.acquire(blocking=False):
            try:
                self._reap()
            finally:
                self.engine.lock.release()
        return True

    def step(self) -> list[StepEvent]:
        """One target pass for all running requests, after admitting those that fit. Returns its
        events; none if nothing could run. A pass that fails ends its requests ("error")."""
        with self.engine.lock:
            self._reap()
            found_room = self._admit()
            self.stuck = not (found_room or self._running)
            if not self._running:
                return []
            start = time.perf_counter()
            try:
                with current(self.engine.device):
                    result = run_step(self.engine, self._running)
                self.engine.count(result)
                events = self._emit(result, start)
            except BaseException:
                self._abandon()
                raise
            self._reap()
            return events

    def close(self) -> None:
        """Cancel everything."""
        for request in [*self._running, *(entry[2] for entry in self._waiting)]:
            self.cancel(request)

    @ranged("dspark.admission")
    def _admit(self) -> bool:
        """Let in what fits. False if a request waits for room."""
        while self._waiting:
            with self._queue_lock:
                if not self._waiting:
                    break
                request = self._waiting[0][2]
                if request not in self._cancelled:
                    try:
                        slot = self._take_slot(request)
                    except Exception:  # it would never fit; the others shall not wait behind it
                        del self._waiting[0]
                        self._fail(request)
                        raise
                    if slot is None:
                        return False
                    request.slot = slot
                    self._running.append(request)
                del self._waiting[0]
            if request.slot >= 0:
                try:
                    self.engine.admitted(request)
                except Exception:
                    self._leave(request)
                    self._fail(request)
                    raise
        return True

    def _take_slot(self, request: Request) -> int | None:
        slots = self.engine.slots
        if not slots.available:
            return None
        return slots.take(request.prompt_length + request.limit)

    @ranged("dspark.text")
    def _emit(self, result: StepResult, start: float) -> list[StepEvent]:
        stats = self.stats
        stats.steps += 1
        stats.plain_steps += bool(result.ready) and not any(result.num_verified)
        stats.prefill_rows += result.prefill_rows
        stats.draft_seconds += result.draft_seconds
        stats.target_seconds += result.target_seconds
        stats.sample_seconds += result.sample_seconds
        with self._queue_lock:  # whoever cancels from here on finds what has finished
            events = [
                self._fault(result, place) or self._event(result, place)
                for place, request in enumerate(result.ready)
                if request not in self._cancelled
            ]
        stats.seconds += time.perf_counter() - start
        return [event for request, event in events if self._record(request, event)]

    def _fault(self, result: StepResult, place: int) -> tuple[Request, StepEvent] | None:
        """The end of a request whose rows of the target were no distribution."""
        request, status = result.ready[place], result.status[place]
        found = [text for bit, text in _FAULTS.items() if status & bit]
        if not found:
            return None
        request.finish_reason = "error"
        _log.error(
            "dspark_ext.engine: request %d ends: the target's logits behind its token %d hold %s",
            request.index,
            request.num_emitted,
            ", ".join(found),
        )
        return request, StepEvent(request.index, [], [], [], 0, "error")

    def _event(self, result: StepResult, place: int) -> tuple[Request, StepEvent]:
        request, stats = result.ready[place], self.stats
        verified, accepted = result.num_verified[place], result.num_accepted[place]
        taken, text = request.emit(result.token_ids[place], accepted)
        request.count(verified, accepted)
        request.drafted += result.made[place]
        logprobs = result.logprobs[place]
        if logprobs is not None:
            logprobs = logprobs[:taken]
            request.logprobs += logprobs
        stats.passes += 1
        stats.emitted += taken
        stats.drafted += result.made[place]
        stats.verified_rows += 1 + verified
        return request, StepEvent(
            request.index,
            request.token_ids[-taken:],
            request.accepted[-taken:],
            result.confidences[place],
            accepted,
            request.finish_reason,
            text,
            logprobs,
            self.engine.config.lossy and request.speculative,
        )

    def _record(self, request: Request, event: StepEvent) -> bool:
        """Pass an event on, unless its request was cancelled meanwhile."""
        stats = self.stats
        if request in self._cancelled:
            return False
        if event.token_ids:
            request.passes.append((stats.seconds, len(event.token_ids)))
            if len(request.passes) == 1:
                stats.first_token_seconds.append(stats.seconds - request.submitted)
        output = None
        if event.finish_reason is not None:
            self._leave(request)
            stats.finished += 1
            stats.token_seconds.extend(token_latencies(request))
            output = self._output(request, event.finish_reason)
        self._listener(request, event, output)
        return True

    def _reap(self) -> None:
        """Let go of what was cancelled."""
        while self._cancelled:
            with self._queue_lock:
                request = self._cancelled.pop()
                self._waiting = [each for each in self._waiting if each[2] is not request]
            if request in self._running:
                self._leave(request)
            self.stats.cancelled += 1
            self._listener(request, None, self._output(request, "cancelled"))

    def _abandon(self) -> None:
        for request in list(self._running):
            self._leave(request)
            if request not in self._cancelled:
                self._fail(request)

    def _fail(self, request: Request) -> None:
        request.finish_reason = "error"
        self._listener(request, None, self._output(request, "error"))

    def _leave(self, request: Request) -> None:
        self._running.remove(request)
        self.engine.slots.give_back(request.slot)
        request.slot = -1

    def _output(self, request: Request, reason: str) -> RequestOutput:
        return request_output(request, reason, self.stats.seconds, self.engine.config.lossy)
