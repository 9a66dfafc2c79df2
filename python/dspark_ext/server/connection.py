"""Connections that are closed when their client neither sends nor takes."""

from __future__ import annotations

from uvicorn.protocols.http.h11_impl import H11Protocol

from .limits import ServerLimits

LOOKS = 4  # in each time limit


def make_protocol(limits: ServerLimits) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with two limits: `receive_seconds` for a request's head, and
    `send_seconds` without progress of what is to be sent."""

    class WatchedProtocol(H11Protocol):
        def connection_made(self, transport) -> None:
            super().connection_made(transport)
            self._waits_since = self._moved_at = self.loop.time()
            self._unsent = 0
            self._look_again()

        def connection_lost(self, error) -> None:
            self._timer.cancel()
            super().connection_lost(error)

        def on_response_complete(self) -> None:
            self._waits_since = self.loop.time()
            super().on_response_complete()

        def _look_again(self) -> None:
            shorter = min(limits.receive_seconds, limits.send_seconds)
            self._timer = self.loop.call_later(shorter / LOOKS, self._look)

        def _look(self) -> None:
            now = self.loop.time()
            unsent = self.transport.get_write_buffer_size()
            if unsent == 0 or unsent != self._unsent:
                self._unsent, self._moved_at = unsent, now
            answering = self.cycle is not None and not self.cycle.response_complete
            stuck = now - self._moved_at > limits.send_seconds
            silent = not answering and now - self._waits_since > limits.receive_seconds
            if stuck or silent:
                self.transport.abort()
            else:
                self._look_again()

    return WatchedProtocol
