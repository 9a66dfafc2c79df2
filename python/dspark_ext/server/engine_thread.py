"""The engine in a thread of its own, and requests as queues that the event loop reads."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable

from ..engine import SamplingParams, StepEvent
from ..engine.paging import CacheFullError

logger = logging.getLogger("dspark_ext.server")

IDLE_SECONDS = 0.02  # between two looks while requests wait and nothing can run
HOOK_SECONDS = 1.0  # between two calls of `on_pause`


class BusyError(Exception):
    """Too many requests are running and queued."""


class Job:
    """One request on its way: an asynchronous iterator of `StepEvent`.

    output  `RequestOutput` once it is finished
    failed  why it ended early: "error" (its pass failed), "no_room" (in the engine's cache, even
            alone), "shutdown" or "cancelled"; else None
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.handle = None
        self.failed: str | None = None
        self.started = time.monotonic()
        self._loop, self._events = loop, asyncio.Queue()

    @property
    def output(self):
        return self.handle.output

    async def events(self) -> AsyncIterator[StepEvent]:
        """Until the last one; ends early with `failed` set."""
        while True:
            event = await self._events.get()
            if event is None:
                return
            yield event
            if event.finish_reason is not None:
                return

    def deliver(self, event: StepEvent) -> None:
        self._events.put_nowait(event)

    def end(self, reason: str) -> None:
        if self.failed is None:
            self.failed = reason
            self._events.put_nowait(None)


class EngineThread:
    """Runs `engine.step` while there is work. All methods are for the event loop's thread.

    engine         of `submit`, `cancel`, `step` and `has_work`, as `DSparkEngine` has them
    max_in_flight  requests running and queued
    on_pause       called in the engine's thread about every second while it works, and when it
                   runs out of work; for what reads counters from the device
    """

    def __init__(
        self, engine, max_in_flight: int, on_pause: Callable[[], None] | None = None
    ) -> None:
        self.engine, self.max_in_flight = engine, max_in_flight
        self._on_pause = on_pause or (lambda: None)
        self._jobs: dict[int, Job] = {}
        self._work = threading.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="dspark-engine", daemon=True)

    @property
    def in_flight(self) -> int:
        return len(self._jobs)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, work: list[tuple[list[int], SamplingParams]]) -> list[Job]:
        """Queue prompts, all or none. `BusyError` if there is no room for all; ValueError as the
        engine raises it."""
        if len(self._jobs) + len(work) > self.max_in_flight:
            raise BusyError
        jobs = []
        try:
            for token_ids, params in work:
                job = Job(self._loop)
                job.handle = self.engine.submit(token_ids, params)
                self._jobs[job.handle.id] = job
                jobs.append(job)
        except ValueError:
            self.cancel(jobs)
            raise
        self._work.set()
        return jobs

    def cancel(self, jobs: list[Job], reason: str = "cancelled") -> None:
        """Give requests up; those that are finished stay so."""
        for job in jobs:
            if self._jobs.pop(job.handle.id, None) is not None:
                self.engine.cancel(job.handle)
                job.end(reason)
        self._work.set()

    def cancel_all(self, reason: str) -> None:
        self.cancel(list(self._jobs.values()), reason)

    async def close(self, timeout: float = 10.0) -> None:
        """Cancel everything and wait for the thread's end."""
        self.cancel_all("shutdown")
        self._stopping = True
        self._work.set()
        await asyncio.to_thread(self._thread.join, timeout)

    def _run(self) -> None:
        last = 0.0
        while not self._stopping:
            if not self.engine.has_work:
                self._pause()
                self._work.wait()
                self._work.clear()
                continue
            try:
                events = self.engine.step()
            except CacheFullError as error:
                logger.warning("%s", error)
                self._tell(self._end_failed, "no_room")
                continue
            except Exception:
                logger.exception("a pass failed; its requests end")
                self._tell(self._end_failed, "error")
                continue
            if events:
                self._tell(self._deliver, events)
            elif not self.engine.num_running:
                time.sleep(IDLE_SECONDS)
            if time.monotonic() - last > HOOK_SECONDS:
                last = time.monotonic()
                self._pause()

    def _pause(self) -> None:
        try:
            self._on_pause()
        except Exception:  # the engine can do without
            logger.exception("the hook between passes failed")

    def _tell(self, function, *arguments) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self._stopping = True

    def _deliver(self, events: list[StepEvent]) -> None:
        for event in events:
            job = self._jobs.get(event.request)
            if job is None:
                continue
            if event.finish_reason is not None:
                del self._jobs[event.request]
            if event.finish_reason == "error":
                job.end("error")
            else:
                job.deliver(event)

    def _end_failed(self, reason: str) -> None:
        for number, job in list(self._jobs.items()):
            # Others may be finished already, with events that are still on their way.
            if job.handle.output is not None and job.handle.output.finish_reason == "error":
                del self._jobs[number]
                job.end(reason)


async def merge(jobs: list[Job]):
    """(index, event) of several jobs as they come, until all have ended."""
    if len(jobs) == 1:
        async for event in jobs[0].events():
            yield 0, event
        return
    merged: asyncio.Queue = asyncio.Queue()

    async def forward(index: int, job: Job) -> None:
        async for event in job.events():
            merged.put_nowait((index, event))
        merged.put_nowait(None)

    tasks = [asyncio.create_task(forward(index, job)) for index, job in enumerate(jobs)]
    try:
        open_jobs = len(jobs)
        while open_jobs:
            item = await merged.get()
            if item is None:
                open_jobs -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
