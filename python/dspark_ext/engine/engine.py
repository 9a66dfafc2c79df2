"""The serving loop: admit, prefill, draft, schedule, pack, verify, accept, commit."""

import time
from collections.abc import Iterator, Sequence

import torch

from .. import sampling, verify
from .cache import SlotAllocator
from .config import SamplingParams, SpeculativeConfig
from .drafter import Draft, DraftBatch, Drafter
from .request import Prompt, Request, make_requests
from .stats import GenerationStats, RequestOutput, StepEvent
from .target import Target, TargetBatch


class DSparkEngine:
    """Serve `target`, with drafts of `drafter`, without changing its output law.

    drafter    None = plain decoding only
    tokenizer  for text prompts and text outputs: anything with encode(str) -> ids and decode(ids)

    Greedy requests emit the same tokens as plain decoding if the target is row-invariant. Sampled
    ones follow the target's filtered law exactly, and with the schedules "fixed" and "threshold"
    their tokens depend on nothing but prompt, parameters and seed. The schedule "early_stop" weighs
    the requests of a batch against each other, so there the tokens (not their law) depend on the
    company.

    One call of `generate` or `stream` at a time; the caches are the target's and the drafter's.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        config: SpeculativeConfig | None = None,
        tokenizer=None,
    ) -> None:
        self.target, self.drafter, self.tokenizer = target, drafter, tokenizer
        self.config = config or SpeculativeConfig()
        self.num_drafts = 0 if drafter is None else _num_drafts(self.config, drafter)
        if drafter is not None:
            _check_pair(target, drafter)
        self.cost_table = self.config.cost_table
        if self.config.schedule == "early_stop" and self.cost_table is None:
            self.cost_table = profile_target(target, self.num_drafts)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculative: bool = True,
    ) -> "Generation":
        """Run all prompts to their ends. Returns the finished `Generation`.

        prompts      token ids (lists or tensors) or texts; more than cache slots are queued
        params       one for all, or one each; default `SamplingParams()`
        speculative  False = plain decoding, by the same code with no drafts
        """
        generation = self.stream(prompts, params, speculative=speculative)
        for _ in generation:
            pass
        return generation

    def stream(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculative: bool = True,
    ) -> "Generation":
        """As `generate`, but the returned `Generation` runs as its events are taken from it."""
        if speculative and self.drafter is None:
            raise ValueError("dspark_ext.engine: speculative: expected False without a drafter")
        requests = make_requests(
            prompts,
            SamplingParams() if params is None else params,
            tokenizer=self.tokenizer,
            vocab_size=self.target.vocab_size,
            max_len=self.target.max_len,
            engine_seed=self.config.seed,
        )
        return Generation(self, requests, speculative)


class Generation:
    """A call in progress: an iterator of `StepEvent`, then `outputs` and `stats`.

    outputs  `RequestOutput` per prompt; None until it is finished
    stats    `GenerationStats`, complete once the iterator is exhausted
    """

    def __init__(self, engine: DSparkEngine, requests: list[Request], speculative: bool) -> None:
        self.engine = engine
        self.outputs: list[RequestOutput | None] = [None] * len(requests)
        self.stats = GenerationStats()
        self._requests = requests
        self._num_drafts = engine.num_drafts if speculative else 0
        self._waiting = list(requests)
        self._running: list[Request] = []
        self._slots = SlotAllocator(engine.target.max_requests)
        self._acceptance = verify.AcceptanceStats(len(requests), self._num_drafts)
        self._passes = [0] * len(requests)
        self._first_token_seconds = [0.0] * len(requests)
        self._events = self._run()

    def __iter__(self) -> Iterator[StepEvent]:
        return self._events

    def _run(self) -> Iterator[StepEvent]:
        start = time.perf_counter()
        while self._waiting or self._running:
            self._admit()
            events = self._step()
            self.stats.seconds = time.perf_counter() - start
            for event in events:
                self._record(event)
            self.stats.acceptance = self._acceptance.read()
            yield from events

    def _admit(self) -> None:
        while self._waiting and self._slots.available:
            request = self._waiting.pop(0)
            request.slot = self._slots.take()
            self._running.append(request)

    @torch.inference_mode()
    def _step(self) -> list[StepEvent]:
        """One target pass: the anchors and chosen drafts of ready requests, and some prompt
        tokens."""
        stats, target = self.stats, self.engine.target
        ready = [request for request in self._running if request.prefill_left == 0]
        prefill = self._take_prefill()
        num_prefill = len(prefill.input_ids)
        begin = time.perf_counter()
        law = _Law(ready)
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
            )
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


class _Law:
    """Sampling parameters of some requests as tensors."""

    def __init__(self, requests: list[Request]) -> None:
        params = [request.params for request in requests]
        self.temperature = torch.tensor([each.temperature for each in params], dtype=torch.float32)
        self.top_k = torch.tensor([each.top_k for each in params], dtype=torch.int32)
        self.top_p = torch.tensor([each.top_p for each in params], dtype=torch.float32)
        self.min_p = torch.tensor([each.min_p for each in params], dtype=torch.float32)
        self.seeds = torch.tensor([request.seed for request in requests], dtype=torch.int64)

    def arguments(self) -> dict[str, torch.Tensor]:
        """Keyword arguments of `rejection_sample`; a filter that nobody uses is left out."""
        filters = {
            "top_k": (self.top_k, 0),
            "top_p": (self.top_p, 1),
            "min_p": (self.min_p, 0),
        }
        used = {name: value for name, (value, off) in filters.items() if (value != off).any()}
        return {"temperature": self.temperature, "seeds": self.seeds, **used}


def profile_target(target: Target, num_drafts: int) -> verify.CostTable:
    """Seconds of a target pass by number of rows, up to a full batch of verified blocks.

    Overwrites the target's caches."""
    most = target.max_requests * (num_drafts + 1)
    counts = [n for n in (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192) if n < most]

    def step(rows: int) -> None:
        index = torch.arange(rows)
        slots, positions = index % target.max_requests, index // target.max_requests
        positions = positions.clamp(max=target.max_len - 1)
        target.forward(TargetBatch(torch.zeros_like(index), positions, slots, index))

    return verify.profile_cost_table(step, [*counts, most])


def _num_drafts(config: SpeculativeConfig, drafter: Drafter) -> int:
    wanted = config.num_speculative_tokens
    if wanted is not None and wanted > drafter.block_size:
        raise ValueError(
            "dspark_ext.engine: num_speculative_tokens: expected at most the drafter's block of "
            f"{drafter.block_size}, got {wanted}"
        )
    return drafter.block_size if wanted is None else wanted


def _check_pair(target: Target, drafter: Drafter) -> None:
    for name in ("num_features", "max_requests", "max_len"):
        if getattr(target, name) != getattr(drafter, name):
            raise ValueError(
                f"dspark_ext.engine: drafter: expected the target's {name} "
                f"{getattr(target, name)}, got {getattr(drafter, name)}"
            )
