"""The application: routes, and answering from the engine's thread."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .answers import Answer, Choice
from .engine_thread import BusyError, EngineThread, Job, merge
from .errors import ApiError, invalid
from .fields import parse_body
from .incoming import authorise, read_body
from .limits import ServerLimits
from .metrics import CONTENT_TYPE, ServerMetrics
from .protocol import ENGINE_NAMES, Ask, read_chat, read_completion
from .stream import Events, watch_for_disconnect

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics")
_LONG_PROMPT = 10_000  # characters from which a text is tokenised beside the event loop


@dataclasses.dataclass
class Model:
    """What is served. `engine` has a tokenizer, which `tokenizer` is too: of encode and decode, and
    it may have `encode_text`, for prompts that are no chat's.
    `chat` turns messages into a text, None without a chat template; `stop_ids` end an answer."""

    engine: object
    name: str
    tokenizer: object
    chat: Callable[[Sequence[dict]], str] | None
    stop_ids: tuple[int, ...]


class Service:
    """The handlers and what they share."""

    def __init__(self, model: Model, limits: ServerLimits, api_key: str | None) -> None:
        if model.engine.tokenizer is None:
            raise ValueError("dspark_ext.server: engine: expected one with a tokenizer, for texts")
        self.model, self.limits = model, limits
        self.created, self.closing = int(time.time()), False
        self._api_key = api_key
        engine = model.engine
        self.metrics = ServerMetrics(model.name, engine.acceptance, lambda: self.thread.in_flight)
        self.thread = EngineThread(engine, limits.max_in_flight, self.metrics.export_acceptance)

    # -- routes

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._entry()]})

    async def one_model(self, request: Request) -> Response:
        if request.path_params["name"] != self.model.name:
            raise ApiError(404, f"expected the model {self.model.name}", code="model_not_found")
        return JSONResponse(self._entry())

    def _entry(self) -> dict:
        return {
            "id": self.model.name,
            "object": "model",
            "created": self.created,
            "owned_by": "dspark_ext",
            "max_model_len": self.model.engine.target.max_len,
        }

    async def health(self, request: Request) -> Response:
        if self.closing or not self.thread.alive:
            raise ApiError(503, "the server is shutting down or its engine has stopped")
        return JSONResponse({"status": "ok", "in_flight": self.thread.in_flight})

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.render(), media_type=CONTENT_TYPE)

    async def completions(self, request: Request) -> Response:
        body = parse_body(await self._body(request))
        return await self._answer(request, read_completion(body, self.limits, self._names))

    async def chat_completions(self, request: Request) -> Response:
        body = parse_body(await self._body(request))
        ask = read_chat(body, self.limits, self._names)
        if self.model.chat is None:
            raise ApiError(
                400, "the model has no chat template; use /v1/completions", code="no_chat_template"
            )
        try:
            ask.prompts = [self.model.chat(ask.messages)]
        except ValueError as error:
            raise ApiError(400, f"messages: {error}", "messages", "invalid_value") from None
        return await self._answer(request, ask)

    async def _body(self, request: Request) -> bytes:
        authorise(request, self._api_key)
        return await read_body(request, self.limits)

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.model.name,)

    # -- answering

    async def _answer(self, request: Request, ask: Ask) -> Response:
        prompts = [await self._encode(prompt, ask) for prompt in ask.prompts]
        if ask.messages is None:
            self._check_prompts(prompts)
        work = [
            (prompt, self._params(ask, choice, prompt))
            for prompt in prompts
            for choice in range(ask.choices)
        ]
        jobs = self._submit(work)
        self.metrics.prompt_tokens.inc(sum(map(len, prompts)))
        answer = Answer(
            self.model.name,
            ask.messages is not None,
            self.model.tokenizer.decode,
            sum(map(len, prompts)),
            self.model.engine.config.lossy,
        )
        cancel = lambda: self.thread.cancel(jobs)  # noqa: E731
        if ask.stream:
            return Events(self._chunks(ask, answer, jobs), cancel)
        return await self._whole(request, answer, jobs, cancel)

    async def _whole(self, request: Request, answer: Answer, jobs: list[Job], cancel) -> Response:
        watcher = asyncio.create_task(watch_for_disconnect(request.receive, cancel))
        choices = [Choice() for _ in jobs]
        try:
            for choice, job in zip(choices, jobs):
                async for event in job.events():
                    self._count(job, choice, event)
                    choice.add(event)
                self._check(job)
        finally:
            watcher.cancel()
            cancel()
            self._count_failures(jobs)
        return JSONResponse(answer.whole(choices))

    async def _chunks(self, ask: Ask, answer: Answer, jobs: list[Job]):
        """JSON values of a stream; choices come interleaved as the engine emits them."""
        choices = [Choice() for _ in jobs]
        try:
            if ask.messages is not None:
                for index in range(len(jobs)):
                    yield answer.first_chunk(index)
            async for index, event in merge(jobs):
                choice = choices[index]
                self._count(jobs[index], choice, event)
                chunk = answer.chunk(index, event, len(choice.text))
                choice.add(event)
                if event.text or event.logprobs or event.finish_reason:
                    yield chunk
            for job in jobs:
                self._check(job)
            if ask.include_usage:
                yield answer.usage_chunk(choices)
        finally:
            self._count_failures(jobs)

    def _check(self, job: Job) -> None:
        """Tell why a job ended early."""
        if job.failed is None:
            return
        if job.failed == "shutdown":
            raise ApiError(503, "the server is shutting down", code="shutdown")
        if job.failed == "cancelled":
            raise ClientDisconnect
        if job.failed == "no_room":
            raise ApiError(400, "the engine's cache has no room for this request", code="no_room")
        raise ApiError(500, "the engine failed on this request", code="engine_error")

    def _count_failures(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.failed is not None:
                self.metrics.ended.labels(job.failed).inc()

    def _count(self, job: Job, choice: Choice, event) -> None:
        metrics, elapsed = self.metrics, time.monotonic() - job.started
        metrics.tokens.inc(len(event.token_ids))
        if not choice.tokens:
            metrics.first_token.observe(elapsed)
        if event.finish_reason is not None:
            metrics.duration.observe(elapsed)
            metrics.ended.labels(event.finish_reason).inc()

    def _submit(self, work) -> list[Job]:
        if self.closing or not self.thread.alive:
            raise ApiError(503, "the server is shutting down", code="shutdown")
        try:
            return self.thread.submit(work)
        except BusyError:
            raise ApiError(
                429,
                f"{self.thread.in_flight} requests are running or queued, the limit is "
                f"{self.limits.max_in_flight}; try again later",
                code="too_many_requests",
            ) from None
        except ValueError as error:
            name, _, reason = _reason(error).partition(" ")
            reason = reason.partition(": ")[2]  # the number is the engine's
            raise invalid(name, reason) from None

    def _params(self, ask: Ask, choice: int, prompt: list[int]):
        max_len = self.model.engine.target.max_len
        room = max_len - len(prompt)
        wanted = ask.params["max_new_tokens"]
        if room < 1 or wanted > room:
            asked = f" and max_tokens asks for {wanted}" if wanted else ""
            raise ApiError(
                400,
                f"the prompt has {len(prompt)} tokens{asked}; the context has {max_len} in all",
                "messages" if ask.messages is not None else "prompt",
                "context_length_exceeded",
            )
        try:
            return ask.sampling_params(choice, self.model.stop_ids, room)
        except ValueError as error:
            reason = _reason(error)
            for name, ours in ENGINE_NAMES.items():
                reason = reason.replace(ours, name)
            name = reason.partition(":")[0]
            raise ApiError(400, reason, name, "invalid_value") from None

    def _check_prompts(self, prompts: list[list[int]]) -> None:
        size = self.model.engine.target.vocab_size
        for index, ids in enumerate(prompts):
            name = f"prompt[{index}]" if len(prompts) > 1 else "prompt"
            if not ids:
                raise invalid("prompt", "expected at least one token", shown_as=name)
            outside = next((token for token in ids if not 0 <= token < size), None)
            if outside is not None:
                message = f"expected token ids in [0, {size}), got {outside}"
                raise invalid("prompt", message, shown_as=name)

    async def _encode(self, prompt, ask: Ask) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        encode = self.model.tokenizer.encode
        if ask.messages is None:  # a template has the BOS token, where there is one
            encode = getattr(self.model.tokenizer, "encode_text", encode)
        if len(prompt) > _LONG_PROMPT:
            return await asyncio.to_thread(encode, prompt)
        return encode(prompt)


def _reason(error: ValueError) -> str:
    """The engine's message without the name of who raised it."""
    text = str(error)
    while text.startswith("dspark_ext."):
        text = text.partition(": ")[2]
    return text


def make_app(model: Model, limits: ServerLimits | None = None, api_key: str | None = None):
    """The Starlette application; `app.state.service` is its `Service`. The engine's thread lives as
    long as the application's lifespan."""
    service = Service(model, limits or ServerLimits(), api_key)

    @contextlib.asynccontextmanager
    async def lifespan(app):
        service.thread.start()
        yield
        service.closing = True
        await service.thread.close()

    routes = [
        Route("/v1/completions", service.completions, methods=["POST"]),
        Route("/v1/chat/completions", service.chat_completions, methods=["POST"]),
        Route("/v1/models", service.models),
        Route("/v1/models/{name:path}", service.one_model),
        Route("/health", service.health),
        Route("/metrics", service.show_metrics),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientDisconnect: _disconnected,
            Exception: _server_error,
        },
    )
    app.state.service = service
    app.add_middleware(_Counted, metrics=service.metrics)
    return app


async def _api_error(request: Request, error: ApiError) -> Response:
    return error.response()


async def _http_error(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    if error.status_code == 404:
        message += f"; there are {', '.join(PATHS)}"
    response = ApiError(error.status_code, message).response()
    response.headers.update(error.headers or {})
    return response


async def _disconnected(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)  # nobody reads it; for the counter


async def _server_error(request: Request, error: Exception) -> Response:
    return ApiError(500, "internal error; the server's log has it").response()


class _Counted:
    """Counts answers by path and status."""

    def __init__(self, app, metrics: ServerMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def counting(message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.answers.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counting)
