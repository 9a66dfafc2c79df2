"""Reading a request: who sends it, of which type, how much, and how slowly."""

from __future__ import annotations

import asyncio
import hmac

from starlette.requests import Request

from .errors import ApiError
from .limits import ServerLimits


def authorise(request: Request, api_key: str | None) -> None:
    """401 unless the key is given, where there is one."""
    if api_key is None:
        return
    given = request.headers.get("authorization", "").encode()
    if not hmac.compare_digest(given, f"Bearer {api_key}".encode()):
        raise ApiError(401, "authorization: expected the server's API key as Bearer token")


async def read_body(request: Request, limits: ServerLimits) -> bytes:
    """The body, if it is JSON by its type, not too large and not too slow."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # so that no web page can post here unasked
        raise ApiError(415, f"content-type: expected application/json, got {kind!r}")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limits.max_body_bytes:
        raise _too_large(limits)
    try:
        return await asyncio.wait_for(_receive(request, limits), limits.receive_seconds)
    except asyncio.TimeoutError:
        raise ApiError(
            408, f"the body took longer than {limits.receive_seconds:g} s", code="timeout"
        ) from None


async def _receive(request: Request, limits: ServerLimits) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limits.max_body_bytes:
            raise _too_large(limits)
    return bytes(body)


def _too_large(limits: ServerLimits) -> ApiError:
    message = f"the body is larger than {limits.max_body_bytes} bytes"
    return ApiError(413, message, code="body_too_large")
