"""The engine: a target, a drafter and how to use them. The loop over steps is in `session`, one
step in `step`."""

from __future__ import annotations

import collections
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from .. import verify
from .._upload import upload
from .cache import SlotAllocator
from .config import SpeculativeConfig
from .costs import Progress, cached_profile, device_of, profile_step
from .drafter import Drafter
from .drafting import CONTINUE_THRESHOLD
from .generation import Generation, RequestHandle
from .graphs import Capture, CudaCapture, DraftGraphs, TargetGraphs, not_captured
from .pairing import check_pair, num_drafts
from .request import Prompt, Request, make_request
from .sampling_params import SamplingParams
from .session import Session
from .stats import GenerationStats, StepEvent
from .step import StepResult
from .switch import make_switch
from .target import Target, TargetBatch, TargetOutput

__all__ = ["DSparkEngine", "profile_step"]

_log = logging.getLogger(__name__)


class DSparkEngine:
    """Serve `target`, with drafts of `drafter`, without changing its output law.

    drafter    None = plain decoding only
    tokenizer  for text prompts, text outputs and stop strings: anything with encode(str) -> ids and
               decode(ids)
    graphs     capture passes as graphs, on a GPU: None = of a target or drafter that says it can be
               captured (`capturable`); True = unless it says it cannot; False = never. What is not
               captured, and why: `not_captured`, by "target" and "drafter", None where it is
    progress   called with (done, total, what) while a cost table is measured

    Greedy requests emit the same tokens as plain decoding if the target is row-invariant. Sampled
    ones follow the target's filtered law exactly, and with the schedules "fixed" and "threshold"
    their tokens depend on nothing but prompt, parameters and seed. Other schedules, switching off
    and lengths by batch size weigh the requests of a batch together, so there the tokens (not their
    law) depend on the company. `rejection_sample_method` "synthetic" keeps neither, and marks what
    it did.

    Prompts given to one `generate` or `stream`, and those given to `submit`, share passes. Several
    streams may be taken in turns; they share the cache slots. `submit` and `cancel` may be called
    from any thread; steps are taken one at a time.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        config: SpeculativeConfig | None = None,
        tokenizer=None,
        *,
        graphs: bool | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.target, self.drafter, self.tokenizer = target, drafter, tokenizer
        self.config = config = config or SpeculativeConfig()
        self.device = device_of(target)
        self.lock = threading.RLock()
        self.slots = SlotAllocator(target.max_requests, (target, drafter))
        self.num_drafts = 0 if drafter is None else num_drafts(config, drafter)
        if drafter is not None:
            check_pair(target, drafter, config)
        self.target_graphs = self.draft_graphs = None
        self.not_captured: dict[str, str | None] = {}
        self._start_graphs(graphs)
        self.cost_table = self._make_cost_table(progress)
        self.switch = make_switch(config, None if drafter is None else self.cost_table)
        threshold = config.continue_threshold
        self.continue_threshold = CONTINUE_THRESHOLD if threshold is None else threshold
        shape = (target.max_requests, self.most_drafts)
        self.acceptance = verify.AcceptanceStats(*shape, device="cpu")
        self.lagged = None
        if config.schedule == "lagged":
            self.lagged = torch.ones(shape, dtype=torch.float32, device=self.device)
        self._rates = None
        if config.lossy and drafter is not None:
            self._rates = config.conditional_acceptance_rates(self.most_drafts).to(self.device)
        self._session = Session(self, self._take)
        self._handles: dict[int, RequestHandle] = {}
        self._subscribers: list[collections.deque] = []
        self._ids = itertools.count()

    @property
    def most_drafts(self) -> int:
        """Drafts a request may have in a step."""
        return self.num_drafts * self.config.blocks_per_step

    # -- whole calls

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculative: bool = True,
    ) -> Generation:
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
    ) -> Generation:
        """As `generate`, but the returned `Generation` runs as its events are taken from it."""
        if isinstance(prompts, str | bytes | Mapping):
            raise ValueError(
                "dspark_ext.engine: prompts: expected a list of prompts, got a "
                f"{type(prompts).__name__}; a single one is [prompt]"
            )
        prompts = list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(
                f"dspark_ext.engine: params: expected one for all or {len(prompts)}, "
                f"got {len(params)}"
            )
        requests = [
            self.make_request(index, *each, speculative)
            for index, each in enumerate(zip(prompts, params))
        ]
        if not requests:
            self._check_speculative(speculative)
        return Generation(self, requests, speculative)

    # -- single requests

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        speculative: bool | None = None,
    ) -> RequestHandle:
        """Queue a prompt. It shares passes with all other submitted requests, from the next step
        on. Iterate the handle, or run `step` or `events`.

        priority     higher ones leave the queue first; what runs is not interrupted
        speculative  None = if there is a drafter
        """
        if speculative is None:
            speculative = self.drafter is not None
        request = self.make_request(self.next_id(), prompt, params, speculative, priority)
        return self.enqueue(request)

    def next_id(self) -> int:
        """Of the next submitted request."""
        return next(self._ids)

    def enqueue(self, request: Request) -> RequestHandle:
        """As `submit`, of a request that is made already."""
        handle = self._handles[request.index] = RequestHandle(self, request)
        self._session.submit(request)
        return handle

    def cancel(self, request: RequestHandle | int) -> bool:
        """Give a submitted request up, by its handle or id: no event follows, its slot is freed at
        once or, if another thread is in a step, after it. False if it is finished or unknown."""
        handle = self._handles.get(request) if isinstance(request, int) else request
        return handle is not None and self._session.cancel(handle.request)

    def step(self) -> list[StepEvent]:
        """One target pass for the submitted requests. Returns its events: none if there is nothing
        to do, or only prompts to take in yet, or if streams hold all slots."""
        return self._session.step()

    def advance(self) -> list[StepEvent]:
        """As `step`; RuntimeError if requests wait and nothing can run."""
        events = self._session.step()
        if self._session.stuck:
            raise RuntimeError(
                "dspark_ext.engine: other streams hold all cache slots, or the target's cache has "
                "no room for a request"
            )
        return events

    def events(self) -> Iterator[StepEvent]:
        """Events of all submitted requests until none is left, those of steps that others ran
        meanwhile (a handle's iteration) included."""
        pending: collections.deque = collections.deque()
        self._subscribers.append(pending)
        try:
            while pending or self.has_work:
                while pending:
                    request, event = pending.popleft()
                    if request.finish_reason != "cancelled":
                        yield event
                if self.has_work:
                    self.advance()
        finally:
            self._subscribers.remove(pending)

    @property
    def has_work(self) -> bool:
        """Whether a submitted request is unfinished."""
        return self._session.has_work

    @property
    def num_waiting(self) -> int:
        return self._session.num_waiting

    @property
    def num_running(self) -> int:
        return self._session.num_running

    @property
    def stats(self) -> GenerationStats:
        """Of submitted requests since the engine was made; `acceptance` is of all requests."""
        self._session.stats.acceptance = self.acceptance.read()
        return self._session.stats

    # -- what steps ask for

    def make_request(
        self,
        index: int,
        prompt: Prompt,
        params: SamplingParams | None,
        speculative: bool,
        priority: int = 0,
    ) -> Request:
        """A checked request. ValueError names the prompt and what is wrong with it."""
        self._check_speculative(speculative)
        params = SamplingParams() if params is None else params
        greedy_rule = speculative and self.config.rejection_sample_method == "greedy"
        if greedy_rule and getattr(params, "temperature", 0):
            raise ValueError(
                f"dspark_ext.engine: temperature {index}: rejection_sample_method 'greedy' emits "
                f"argmaxes: expected 0, got {params.temperature}; use 'block' or 'token'"
            )
        return make_request(
            index,
            prompt,
            params,
            tokenizer=self.tokenizer,
            vocab_size=self.target.vocab_size,
            max_len=self.target.max_len,
            engine_seed=self.config.seed,
            speculative=speculative,
            priority=priority,
        )

    def drafts_for(self, num_requests: int) -> int:
        """Drafts per block in a step of so many decoding requests."""
        table = self.config.num_speculative_tokens_per_batch_size
        if table is None or self.drafter is None:
            return self.num_drafts
        return next((drafts for _, last, drafts in table if num_requests <= last), table[-1][2])

    def run_target(self, batch: TargetBatch) -> TargetOutput:
        return (self.target_graphs or self.target).forward(batch)

    @property
    def run_drafter(self):
        return self.draft_graphs or self.drafter

    def synthetic_rates(self, num_drafts: int) -> torch.Tensor | None:
        return None if self._rates is None else self._rates[:num_drafts].contiguous()

    def admitted(self, request: Request) -> None:
        """A new request holds its slot."""
        slot = request.slot
        self.acceptance.reset(upload([slot], torch.int64))
        if self.lagged is not None:
            self.lagged[slot] = 1.0
        if request.restore is not None:
            request.restore(slot)

    def count(self, result: StepResult) -> None:
        """Take in the counts of a step."""
        if not result.ready:
            return
        columns = (result.num_verified, result.num_accepted, [each.slot for each in result.ready])
        self.acceptance.update(*(upload(each, torch.int32) for each in columns))
        wanted = sum(request.speculative for request in result.ready)
        self.switch.update(
            wanted,
            any(result.made),
            sum(result.num_verified),
            sum(result.num_accepted),
            result.prefill_rows,
        )

    def use_graphs(self, make_capture: Callable[[], Capture], *, drafts: bool = True) -> None:
        """Run the target's passes from graphs that a `make_capture()` records, and those of the
        drafter from graphs of another. A drafter that has `use_graphs(make_capture)` does it for
        passes of its own."""
        slots, width = self.target.max_requests, self.most_drafts + 1
        sizes = verify.cudagraph_sizes(slots, self.most_drafts)
        self.target_graphs = TargetGraphs(self.target, sizes, make_capture(), width)
        if drafts and hasattr(self.drafter, "use_graphs"):
            self.drafter.use_graphs(make_capture)
        elif drafts and self.drafter is not None:
            sizes = verify.cudagraph_sizes(slots, 0)
            self.draft_graphs = DraftGraphs(self.drafter, sizes, make_capture())

    def _start_graphs(self, graphs: bool | None) -> None:
        if graphs and self.device.type != "cuda":
            raise ValueError(
                f"dspark_ext.engine: graphs: expected a target on a GPU, got {self.device}"
            )
        owners = {"target": self.target, "drafter": self.drafter}
        for name, owner in owners.items():
            if owner is not None:
                self.not_captured[name] = not_captured(owner, self.device, graphs)
        if self.not_captured["target"] is None:
            self.use_graphs(CudaCapture, drafts=self.not_captured.get("drafter") is None)
        if self.device.type == "cuda" and graphs is not False:
            for name, reason in self.not_captured.items():
                if reason is not None:
                    _log.warning(
                        "dspark_ext.engine: passes of the %s run without graphs: %s", name, reason
                    )

    def _make_cost_table(self, progress: Progress | None) -> verify.CostTable | None:
        config = self.config
        if config.cost_table is not None or not config.needs_cost_table or self.drafter is None:
            return config.cost_table
        arguments = self.target, self.drafter, self.most_drafts
        options = {"progress": progress, "graphs": None}
        if self.target_graphs is not None:
            options["graphs"] = self.target_graphs, self.draft_graphs
        if config.cost_table_cache is None:
            return profile_step(*arguments, **options)
        return cached_profile(config.cost_table_cache, *arguments, **options)

    def _check_speculative(self, speculative: bool) -> None:
        if speculative and self.drafter is None:
            raise ValueError("dspark_ext.engine: speculative: expected False without a drafter")

    def _take(self, request: Request, event: StepEvent | None, output) -> None:
        handle = self._handles[request.index]
        handle._take(event, output)
        if event is not None:
            for pending in self._subscribers:
                pending.append((request, event))
        if output is not None:
            del self._handles[request.index]
