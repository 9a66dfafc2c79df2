"""One target pass: prefill, draft, schedule, pack, verify, accept."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import torch

from .. import sampling, verify
from .._upload import upload
from ..ranges import range as profiled
from ..ranges import ranged
from . import logit_rules
from .drafter import DraftBatch
from .drafting import Proposal, nothing, propose
from .planning import plan
from .request import Request, SamplingTensors, TokenLogprobs
from .target import Bounds, TargetBatch

if TYPE_CHECKING:
    from .engine import DSparkEngine


@dataclasses.dataclass
class StepResult:
    """What a pass did, on the host. Lists are by request of `ready`.

    token_ids, num_emitted, num_verified, confidences, logprobs
    status           bits of `sampling.STATUS_*`
    made             drafts that were made
    prefill_rows     prompt tokens in the pass
    draft_seconds, target_seconds, sample_seconds
    """

    ready: list[Request]
    token_ids: list[list[int]]
    num_verified: list[int]
    status: list[int]
    confidences: list[list[float]]
    logprobs: list[list[TokenLogprobs] | None]
    made: list[int]
    prefill_rows: int
    draft_seconds: float
    target_seconds: float
    sample_seconds: float

    @property
    def num_accepted(self) -> list[int]:
        return [len(token_ids) - 1 for token_ids in self.token_ids]


@ranged("dspark.step")
@torch.inference_mode()
def run_step(engine: DSparkEngine, running: list[Request]) -> StepResult:
    """The anchors and chosen drafts of ready requests, and some prompt tokens of the others.

    Requests are ready whose whole sequence but its last token is in the caches. The host waits for
    the device once, in `_read`; besides where the schedule or a further block of drafts is decided
    by this step's confidences.
    """
    device = engine.device
    begin = time.perf_counter()
    ready = [request for request in running if request.prefill_left == 0]
    prefill, owners = _take_prefill(running, engine.config.prefill_chunk, device)
    num_prefill = len(owners)
    law = SamplingTensors(ready, device)
    anchor, seq_lens, slots = _columns(
        ([each.token_ids[-1], each.num_cached, each.slot] for each in ready), 3, device
    )
    room = [
        max(0, min(engine.target.max_len - each.num_cached, each.output_left) - 1) for each in ready
    ]
    batch = DraftBatch(anchor, seq_lens, slots, law.temperature, law.seeds)
    proposal = _propose(engine, ready, batch, room, num_prefill)
    draft = proposal.draft
    chosen, rows = _plan(engine, proposal, room, slots, num_prefill)
    packed = verify.pack(anchor, draft.token_ids, seq_lens, chosen, max_rows=rows)
    target_batch = TargetBatch(
        torch.cat([packed.input_ids, prefill.input_ids]),
        torch.cat([packed.positions, prefill.positions]),
        torch.cat([slots[packed.request_ids.long()], prefill.slots]),
        torch.arange(rows, device=device),
        _bounds(engine, ready, proposal.made, room),
    )
    drafted = time.perf_counter()

    with profiled("dspark.verify"):
        output = engine.run_target(target_batch)
    verified = time.perf_counter()

    logits = logit_rules.apply(output.logits, ready, packed, draft.token_ids)
    with profiled("dspark.rejection"):
        result = sampling.rejection_sample(
            logits,
            draft.token_ids,
            draft.logits,
            query_start_loc=chosen.query_start_loc,
            method=_method(engine, ready),
            positions=seq_lens + 1,
            draft_statistics=draft.statistics,
            synthetic_acceptance_rates=engine.synthetic_rates(draft.token_ids.shape[1]),
            **law.arguments(),
        )
    logprobs = _logprobs(logits, ready, law, chosen, result)
    token_ids, num_verified, status, confidences = _read(result, chosen, draft.confidence)
    sampled = time.perf_counter()

    _append(engine, ready, target_batch, output.features, rows, num_verified, token_ids, owners)
    if any(proposal.made) and hasattr(engine.drafter, "observe"):
        engine.drafter.observe(slots, chosen.verify_lens, result.num_accepted)
    for request, emitted in zip(ready, token_ids):
        request.num_cached += len(emitted)
    return StepResult(
        ready,
        token_ids,
        num_verified,
        status,
        confidences,
        logprobs,
        proposal.made,
        num_prefill,
        draft_seconds=drafted - begin + time.perf_counter() - sampled,
        target_seconds=verified - drafted,
        sample_seconds=sampled - verified,
    )


@ranged("dspark.prefill")
def _take_prefill(running: list[Request], budget: int, device) -> tuple[TargetBatch, list[Request]]:
    """Prompt tokens for this pass, in the order of admission, their bookkeeping, and whose each row
    is."""
    ids, positions, slots, owners = [], [], [], []
    for request in running:
        start = request.num_cached
        stop = start + min(budget, request.prefill_left)
        ids += request.token_ids[start:stop]
        positions += range(start, stop)
        slots += [request.slot] * (stop - start)
        owners += [request] * (stop - start)
        budget -= stop - start
        request.num_cached = stop
    none = torch.empty(0, dtype=torch.int64, device=device)
    columns = upload([ids, positions, slots], torch.int64, device)
    return TargetBatch(*columns.unbind(), none), owners


def _columns(rows, count: int, device) -> tuple[torch.Tensor, ...]:
    """int64 tensors, one copy to the device for all."""
    values = upload(list(rows), torch.int64, device).view(-1, count)
    return values.t().contiguous().unbind()


@ranged("dspark.draft")
def _propose(engine, ready, batch, room, num_prefill) -> Proposal:
    num_drafts = engine.drafts_for(len(ready))
    wanted = [request.speculative for request in ready]
    # asked once per step, before anything of it is drawn
    on = num_drafts > 0 and engine.switch.should_draft(sum(wanted), num_prefill)
    if not on:
        return nothing(len(ready), batch.anchor.device)
    config = engine.config
    return propose(
        engine.run_drafter,
        batch,
        wanted,
        room,
        num_drafts,
        method=config.draft_sample_method,
        num_blocks=config.blocks_per_step,
        continue_threshold=engine.continue_threshold,
    )


@ranged("dspark.schedule")
def _plan(engine, proposal: Proposal, room, slots, num_prefill) -> tuple[verify.Schedule, int]:
    confidence = proposal.draft.confidence
    count = confidence.shape[1]
    lagged = None
    if engine.lagged is not None and count:
        lagged = engine.lagged[slots, :count]
    chosen = plan(
        engine.config,
        proposal,
        room,
        cost_table=engine.cost_table,
        lagged_confidence=lagged,
        num_other_rows=num_prefill,
    )
    if lagged is not None:
        engine.lagged[slots, :count] = confidence
    return chosen


def _bounds(engine, ready, made: list[int], room: list[int]) -> Bounds:
    """Of the rows of ready requests: what is verified, at most."""
    length = max(
        (each.num_cached + min(most) + 1 for each, *most in zip(ready, made, room)), default=0
    )
    return Bounds(length, engine.most_drafts + 1)


def _logprobs(logits, ready, law, chosen, result) -> list[list[TokenLogprobs] | None]:
    """Of the requests that asked for them: under the filtered law of the row that decided."""
    found: list[list[TokenLogprobs] | None] = [None] * len(ready)
    asking = [row for row, each in enumerate(ready) if each.params.logprobs is not None]
    if not asking:
        return found
    width = result.token_ids.shape[1]
    who = upload(asking, torch.int64, logits.device)
    start = chosen.query_start_loc.long()[who]
    rows = start[:, None] + torch.arange(width, device=logits.device)
    rows = rows.clamp(max=logits.shape[0] - 1).flatten()
    probs = sampling.target_probs(logits[rows], **law.law(who.repeat_interleave(width)))
    ids = result.token_ids[who].clamp(min=0).flatten()
    chosen_log = probs.gather(1, ids[:, None]).log().view(-1, width)
    most = max(ready[row].params.logprobs for row in asking)
    top = probs.topk(min(most, probs.shape[1]), dim=1)
    values = top.values.log().view(len(asking), width, -1).tolist()
    top_ids = top.indices.view(len(asking), width, -1).tolist()
    emitted = result.num_emitted[who].tolist()
    for place, (row, tokens) in enumerate(zip(asking, chosen_log.tolist())):
        most = ready[row].params.logprobs
        found[row] = [
            TokenLogprobs(
                tokens[at],
                tuple(
                    (token, value)
                    for token, value in zip(top_ids[place][at][:most], values[place][at][:most])
                    if value > -torch.inf
                ),
            )
            for at in range(emitted[place])
        ]
    return found


@ranged("dspark.read")
def _read(result, chosen, confidence) -> tuple[list[list[int]], list[int], list[int], list]:
    """Emitted tokens, verify lengths, status and confidences, in one copy to the host."""
    packed = torch.cat(
        [
            result.num_emitted[:, None],
            chosen.verify_lens[:, None],
            result.status[:, None],
            result.token_ids,
            confidence.double(),  # makes all of it float64, in which ids are exact
        ],
        1,
    ).tolist()
    first, width = 3, result.token_ids.shape[1]
    tokens = [[int(each) for each in row[first : first + int(row[0])]] for row in packed]
    verified, status = ([int(row[column]) for row in packed] for column in (1, 2))
    first += width
    confidences = [row[first : first + count] for row, count in zip(packed, verified)]
    return tokens, verified, status, confidences


def _method(engine, ready: list[Request]) -> str:
    """The rule. Argmaxes are not for sampled requests, which under "greedy" have no drafts: all
    rules draw those from the law, and are one at temperature 0."""
    method = engine.config.rejection_sample_method
    sampled = method == "greedy" and any(each.params.temperature for each in ready)
    return "block" if sampled else method


@ranged("dspark.commit")
def _append(engine, ready, batch, features, rows, num_verified, token_ids, prefill) -> None:
    """Features of kept rows go to the drafter, those of requests that are never drafted for aside:
    the anchor, accepted drafts, prompt tokens."""
    if engine.drafter is None:
        return
    kept, at = [], 0
    for request, verified, emitted in zip(ready, num_verified, token_ids):
        if request.speculative:
            kept += range(at, at + len(emitted))
        at += verified + 1
    kept += [rows + row for row, request in enumerate(prefill) if request.speculative]
    if not kept:
        return
    index = slice(kept[0], kept[-1] + 1)
    if index.stop - index.start != len(kept):
        index = upload(kept, torch.int64, engine.device)
    engine.drafter.append(
        features[index], batch.positions[index], batch.slots[index], batch.input_ids[index]
    )
