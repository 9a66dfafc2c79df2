"""The serving loop: admit, prefill, draft, schedule, pack, verify, accept, commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from .. import sampling, verify
from .drafter import Draft, DraftBatch
from .request import Request, SamplingTensors
from .stats import GenerationStats, RequestOutput, StepEvent
from .target import TargetBatch

if TYPE_CHECKING:
    from .engine import DSparkEngine


class Generation:
    """A call in progress: an iterator of `StepEvent`, then `outputs` and `stats`.

    outputs  `RequestOutput` per prompt; None until it is finished
    stats    `GenerationStats`; `stats.acceptance` is there once the iterator is exhausted or closed
    """

    def __init__(self, engine: DSparkEngine, requests: list[Request], speculative: bool) -> None:
        self.engine = engine
        self.outputs: list[RequestOutput | None] = [None] * len(requests)
        self.stats = GenerationStats()
        self._requests = requests
        self._num_drafts = engine.num_drafts if speculative else 0
        self._waiting = list(requests)
        self._running: list[Request] = []
        self._slots = engine.slots
        self._acceptance = verify.AcceptanceStats(len(requests), self._num_drafts)
        self._passes = [0] * len(requests)
        self._first_token_seconds = [0.0] * len(requests)
        self._events = self._run()

    def __iter__(self) -> Iterator[StepEvent]:
        return self._events

    def close(self) -> None:
        """Give up what is unfinished and free its cache slots."""
        self._events.close()

    def _run(self) -> Iterator[StepEvent]:
        try:
            while self._waiting or self._running:
                start = time.perf_counter()
                self._admit()
                events = self._step()
                self.stats.seconds += time.perf_counter() - start
                for event in events:
                    self._record(event)
                yield from events
        finally:
            self.stats.acceptance = self._acceptance.read()
            while self._running:
                self._slots.give_back(self._running.pop().slot)

    def _admit(self) -> None:
        while self._waiting and self._slots.available:
            request = self._waiting[0]
            slot = self._slots.take(request.prompt_length + request.limit)
            if slot is None:
                break
            request.slot = slot
            self._running.append(self._waiting.pop(0))
        if not self._running:
            raise RuntimeError(
                "dspark_ext.engine: other streams hold all cache slots, or the target's cache has "
                "no room for a request"
            )

    @torch.inference_mode()
    def _step(self) -> list[StepEvent]:
        """One target pass: the anchors and chosen drafts of ready requests, and some prompt
        tokens."""
        stats, target = self.stats, self.engine.target
        ready = [request for request in self._running if request.prefill_left == 0]
        prefill = self._take_prefill()
        num_prefill = len(prefill.input_ids)
        begin = time.perf_counter()
        law = SamplingTensors(ready)
        anchor = torch.tensor([request.token_ids[-1] for request in ready], dtype=torch.int64)
        seq_lens = torch.tensor([request.num_cached for request in ready], dtype=torch.int64)
        slots = torch.tensor([request.slot for request in ready], dtype=torch.int64)
        draft = self._draft(DraftBatch(anchor, seq_lens, slots, law.temperature, law.seeds))
        plan = self._schedule(ready, draft, num_prefill)
        rows = int(plan.num_rows)
        batch = verify.pack(anchor, draft.token_ids, seq_lens, plan, max_rows=rows)
        row_slots = slots[batch.request_ids.long()]
        drafted = time.perf_counter()

        output = target.forward(
            TargetBatch(
                torch.cat([batch.input_ids, prefill.input_ids]),
                torch.cat([batch.positions, prefill.positions]),
                torch.cat([row_slots, prefill.slots]),
                torch.arange(rows),
            )
        )
        verified = time.perf_counter()

        result = sampling.rejection_sample(
            output.logits,
            draft.token_ids,
            draft.logits,
            query_start_loc=plan.query_start_loc,
            method=self.engine.config.rejection_sample_method,
            positions=seq_lens + 1,
            draft_statistics=draft.statistics,
            **law.arguments(),
        )
        sampled = time.perf_counter()

        committed = verify.commit(result, batch, seq_lens)
        if ready:
            indices = torch.tensor([request.index for request in ready], dtype=torch.int32)
            self._acceptance.update(plan.verify_lens, result.num_accepted, indices)
        if self._num_drafts:
            kept = torch.cat([committed.row_kept, torch.ones(num_prefill, dtype=torch.bool)])
            self.engine.drafter.append(
                output.features[kept],
                torch.cat([batch.positions, prefill.positions])[kept],
                torch.cat([row_slots, prefill.slots])[kept],
                torch.cat([batch.input_ids, prefill.input_ids])[kept],
            )
            if ready and hasattr(self.engine.drafter, "observe"):
                self.engine.drafter.observe(slots, plan.verify_lens, result.num_accepted)
        stats.draft_seconds += drafted - begin + time.perf_counter() - sampled
        stats.target_seconds += verified - drafted
        stats.sample_seconds += sampled - verified
        stats.steps += 1
        stats.passes += len(ready)
        stats.prefill_rows += num_prefill
        stats.verified_rows += rows
        return self._emit(ready, draft, plan, result, committed)

    def _take_prefill(self) -> TargetBatch:
        """Prompt tokens for this pass, in the order of admission, and their bookkeeping."""
        budget = self.engine.config.prefill_chunk
        ids, positions, slots = [], [], []
        for request in self._running:
            start = request.num_cached
            stop = start + min(budget, request.prefill_left)
            ids += request.token_ids[start:stop]
            positions += range(start, stop)
            slots += [request.slot] * (stop - start)
            budget -= stop - start
            request.num_cached = stop
        none = torch.empty(0, dtype=torch.int64)
        return TargetBatch(
            *(torch.tensor(values, dtype=torch.int64) for values in (ids, positions, slots)), none
        )

    def _draft(self, batch: DraftBatch) -> Draft:
        if self._num_drafts and len(batch.anchor):
            method = self.engine.config.draft_sample_method
            return self.engine.drafter.draft(batch, self._num_drafts, method)
        shape = (len(batch.anchor), self._num_drafts)
        return Draft(torch.empty(shape, dtype=torch.int64), None, torch.empty(shape))

    def _schedule(self, ready: list[Request], draft: Draft, num_prefill: int) -> verify.Schedule:
        config, max_len = self.engine.config, self.engine.target.max_len
        capacity = verify.draft_capacity(
            [max_len - request.num_cached for request in ready],
            [request.output_left for request in ready],
            self._num_drafts,
        )
        if draft.num_proposed is not None:
            capacity = torch.minimum(capacity, draft.num_proposed.to(capacity))
        return verify.schedule(
            draft.confidence,
            mode=config.schedule,
            capacity=capacity,
            cost=self.engine.cost_table if config.schedule == "early_stop" else None,
            threshold=config.confidence_threshold if config.schedule == "threshold" else None,
            num_other_rows=num_prefill,
        )

    def _emit(self, ready, draft, plan, result, committed) -> list[StepEvent]:
        events = []
        columns = (
            result.token_ids.tolist(),
            result.num_emitted.tolist(),
            plan.verify_lens.tolist(),
            draft.confidence.tolist(),
            committed.seq_lens.tolist(),
        )
        for request, token_ids, emitted, verified, conf, seq_len in zip(
            ready, *columns, strict=True
        ):
            accepted = emitted - 1
            taken = request.emit(token_ids[:emitted], accepted)
            request.num_cached = seq_len
            events.append(
                StepEvent(
                    request.index,
                    request.token_ids[-taken:],
                    request.accepted[-taken:],
                    conf[:verified],
                    accepted,
                    request.finish_reason,
                )
            )
        return events

    def _record(self, event: StepEvent) -> None:
        index = event.request
        request = self._requests[index]
        self.stats.emitted += len(event.token_ids)
        self._passes[index] += 1
        if self._passes[index] == 1:
            self._first_token_seconds[index] = self.stats.seconds
        if event.finish_reason is None:
            return
        self._running.remove(request)
        self._slots.give_back(request.slot)
        emitted = request.token_ids[request.prompt_length :]
        tokenizer = self.engine.tokenizer
        self.outputs[index] = RequestOutput(
            prompt_token_ids=request.token_ids[: request.prompt_length],
            token_ids=emitted,
            accepted=request.accepted,
            text=None if tokenizer is None else tokenizer.decode(emitted),
            finish_reason=event.finish_reason,
            passes=self._passes[index],
            seconds=self.stats.seconds,
            first_token_seconds=self._first_token_seconds[index],
        )
