"""Server-sent events, and noticing that the client has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from .errors import ApiError

DONE = b"data: [DONE]\n\n"


async def watch_for_disconnect(receive, gone: Callable[[], None]) -> None:
    """Call `gone` when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone()


class Events(Response):
    """A stream of JSON values as server-sent events, ended by [DONE].

    values  an `ApiError` from it becomes the last event, without [DONE]
    cancel  called when the client disconnects, and at the end
    """

    media_type = "text/event-stream"

    def __init__(self, values: AsyncIterator[dict], cancel: Callable[[], None]) -> None:
        self.status_code, self.background = 200, None
        self._values, self._cancel = values, cancel
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        self.raw_headers = [each for each in self.raw_headers if each[0] != b"content-length"]

    async def __call__(self, scope, receive, send) -> None:
        watcher = asyncio.create_task(watch_for_disconnect(receive, self._cancel))
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            async for value in self._values:
                await send(_body(_event(value)))
            await send(_body(DONE, more=False))
        except ClientDisconnect:
            pass
        except ApiError as error:
            await send(_body(_event(error.body()), more=False))
        finally:
            watcher.cancel()
            self._cancel()
            await self._values.aclose()


def _event(value: dict) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _body(data: bytes, more: bool = True) -> dict:
    return {"type": "http.response.body", "body": data, "more_body": more}
