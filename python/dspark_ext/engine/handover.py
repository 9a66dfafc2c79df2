"""Going on with a request in another process: prefill here, decode there.

A target or drafter that can be handed over has `identity`, texts by name that must be equal on both
sides, and

    export_slot(slot, length)             -> named tensors, of positions 0 .. length-1
    check_slot(tensors, token_ids)        raises HandoverError unless the next can take them
    import_slot(slot, tensors, token_ids) make them the slot's; token_ids are those of the positions

as all classes of this package do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .request import Request, TokenLogprobs
from .request_state import HandoverError, RequestState
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from .engine import DSparkEngine
    from .generation import RequestHandle


def prefill_request(
    engine: DSparkEngine, prompt, params: SamplingParams | None = None
) -> RequestState:
    """Take a prompt in, and give up the request before its first token is emitted; what
    `import_request` of another engine goes on with. Other submitted requests go on meanwhile."""
    handle = engine.submit(prompt, params)
    request = handle.request
    while request.slot < 0 or request.prefill_left:
        engine.advance()
    state = export_request(engine, handle)
    engine.cancel(handle)
    return state


def export_request(
    engine: DSparkEngine, handle: RequestHandle, *, target_cache: bool = True
) -> RequestState:
    """A copy of a running request, between two steps; it goes on here too, unless cancelled.

    target_cache  False: without the target's keys and values, and without the draft context, which
                  the other side computes again from the tokens. Small, for a slow network.

    The state's `request` has `params`, `seed`, `prompt_length`, `limit`, `num_cached`,
    `speculative`, `priority`, by emitted token `accepted`, a text of 0 and 1, and `logprobs`, pairs
    of its own and [token, value] of the most probable ones, or null.

    Raises ValueError for a request that has no cache slot: it waits, or is finished.
    """
    with engine.lock:
        request = handle.request
        if request.slot < 0:
            raise ValueError(
                f"dspark_ext.engine.handover: request {request.index}: expected a running one, "
                f"got one that {'waits' if request.finish_reason is None else 'is finished'}"
            )
        cached = request.num_cached if target_cache else 0
        parts = _parts(engine) if target_cache else {}
        return RequestState(
            {
                "params": request.params.to_dict(),
                "seed": request.seed,
                "prompt_length": request.prompt_length,
                "limit": request.limit,
                "num_cached": cached,
                "speculative": request.speculative,
                "priority": request.priority,
                "accepted": "".join("01"[each] for each in request.accepted),
                "logprobs": _plain_logprobs(request),
            },
            {name: dict(part.identity) for name, part in _identified(engine).items()},
            torch.tensor(request.token_ids, dtype=torch.int64, device="cpu"),
            {name: part.export_slot(request.slot, cached) for name, part in parts.items()},
        )


def import_request(engine: DSparkEngine, state: RequestState) -> RequestHandle:
    """Queue a request that another engine exported. Its handle's events are those after the tokens
    it has already; `RequestOutput` has all of them.

    With the same target, drafter and settings, and a row-invariant target, its tokens are those
    that the other engine would have gone on with.

    Raises HandoverError naming what does not fit, before anything is queued: the target or drafter
    is another, a value, shape or dtype; a request longer than `max_len`.
    """
    fields = _checked_fields(state, engine)
    identified = _identified(engine)
    for part in {**identified, **state.identity}:
        expected = identified[part].identity if part in identified else {}
        state.check_identity(part, expected)
    cached, token_ids = fields["num_cached"], state.token_ids.tolist()
    parts = _parts(engine) if cached else {}
    if sorted(parts) != sorted(state.tensors):
        raise HandoverError(
            f"dspark_ext.engine.handover: parts: expected {sorted(parts)}, got "
            f"{sorted(state.tensors)}"
        )
    for name, part in parts.items():
        part.check_slot(state.tensors[name], token_ids[:cached])
    request = engine.make_request(
        engine.next_id(),
        token_ids[: fields["prompt_length"]],
        fields["params"],
        fields["speculative"],
        fields["priority"],
    )
    emitted = token_ids[fields["prompt_length"] :]
    request.seed, request.num_cached = fields["seed"], cached
    request.limit = min(request.limit, fields["limit"])
    request.token_ids = token_ids
    request.accepted = [each == "1" for each in fields["accepted"]]
    request.logprobs = [
        TokenLogprobs(value, tuple(map(tuple, top))) for value, top in fields["logprobs"] or ()
    ]
    if request.text is not None:
        early = max(0, min(len(emitted), request.params.min_new_tokens - 1))
        request.text.push(emitted[:early], watch=False)
        request.text.push(emitted[early:])

    def restore(slot: int) -> None:
        for name, part in parts.items():
            part.import_slot(slot, state.tensors[name], token_ids[:cached])

    request.restore = restore
    return engine.enqueue(request)


def _identified(engine: DSparkEngine) -> dict[str, Any]:
    found = {"target": engine.target, "drafter": engine.drafter}
    return {name: part for name, part in found.items() if part is not None}


def _parts(engine: DSparkEngine) -> dict[str, Any]:
    parts = _identified(engine)
    for name, part in parts.items():
        missing = [
            each
            for each in ("identity", "export_slot", "check_slot", "import_slot")
            if not hasattr(part, each)
        ]
        if missing:
            raise HandoverError(
                f"dspark_ext.engine.handover: {name}: {type(part).__name__} has no "
                f"{', '.join(missing)}, so it cannot be handed over"
            )
    return parts


def _checked_fields(state: RequestState, engine: DSparkEngine) -> dict[str, Any]:
    """The request's values, each of the type and in the range that the engine counts on."""
    fields, length = dict(state.request), len(state.token_ids)

    def require(name: str, expected: str, fits: bool) -> None:
        if not fits:
            got = str(fields.get(name, "nothing"))[:80]
            raise HandoverError(
                f"dspark_ext.engine.handover: {name}: expected {expected}, got {got}"
            )

    def whole(name: str, low: int, high: int) -> None:
        value = fields.get(name)
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        require(name, f"an integer in [{low}, {high}]", fits)

    max_len, vocab = engine.target.max_len, engine.target.vocab_size
    fields["token_ids"] = f"{length} tokens"
    require("token_ids", f"at most max_len {max_len} tokens", length <= max_len)
    inside = bool(((state.token_ids >= 0) & (state.token_ids < vocab)).all())
    fields["token_ids"] = "others"
    require("token_ids", f"ids in [0, {vocab})", inside)
    whole("prompt_length", 1, min(length, max_len - 1))
    emitted = length - fields["prompt_length"]
    whole("limit", emitted + 1, max_len)
    whole("num_cached", 0, length - 1)
    whole("seed", -(2**63), 2**63 - 1)
    whole("priority", -(2**63), 2**63 - 1)
    require("speculative", "true or false", isinstance(fields.get("speculative"), bool))
    accepted = fields.get("accepted")
    fits = isinstance(accepted, str) and len(accepted) == emitted and set(accepted) <= {"0", "1"}
    require("accepted", f"{emitted} digits 0 or 1", fits)
    require("params", "an object", isinstance(fields.get("params"), dict))
    try:
        fields["params"] = SamplingParams.from_dict(_tuples(fields["params"]))
    except (TypeError, ValueError) as error:
        raise HandoverError(f"dspark_ext.engine.handover: params: {error}") from None
    found, fits = fields.get("logprobs", ()), False
    if fields["params"].logprobs is None:
        require("logprobs", "null", found is None)
    else:
        if isinstance(found, list) and len(found) == emitted:
            fits = all(map(_is_logprobs, found))
        require("logprobs", f"{emitted} pairs of a number and a list of [token, number]", fits)
    return fields


def _plain_logprobs(request: Request) -> list | None:
    if request.params.logprobs is None:
        return None
    return [[each.logprob, list(map(list, each.top))] for each in request.logprobs]


def _is_logprobs(value: Any) -> bool:
    """[number, [[token, number], ...]]"""

    def is_pair(pair, first: type, second: type) -> bool:
        fits = isinstance(pair, list) and len(pair) == 2
        return fits and isinstance(pair[0], first) and isinstance(pair[1], second)

    return is_pair(value, float, list) and all(is_pair(each, int, float) for each in value[1])


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where the settings have tuples."""

    def converted(value: Any) -> Any:
        return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value

    return {name: converted(value) for name, value in values.items()}
