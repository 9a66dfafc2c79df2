"""Running the application with uvicorn, and stopping it while streams run."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import uvicorn

from .app import Model, make_app
from .connection import make_protocol
from .limits import ServerLimits

BACKLOG = 1024


class Server(uvicorn.Server):
    """On a signal: no new requests, running ones get `shutdown_seconds`, then end with a reason."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        service = self.config.app.state.service
        service.closing = True
        seconds = service.limits.shutdown_seconds
        ending = asyncio.get_running_loop().call_later(
            seconds, service.thread.cancel_all, "shutdown"
        )
        await super().shutdown(sockets)
        ending.cancel()


def make_server(
    model: Model,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: ServerLimits | None = None,
    api_key: str | None = None,
    log_level: str = "info",
) -> Server:
    limits = limits or ServerLimits()
    config = uvicorn.Config(
        make_app(model, limits, api_key),
        host=host,
        port=port,
        http=make_protocol(limits),
        ws="none",
        loop="asyncio",
        lifespan="on",
        backlog=BACKLOG,
        log_level=log_level,
        server_header=False,
        timeout_keep_alive=max(1, round(limits.receive_seconds)),
        # Ends tasks that do not end by themselves after `cancel_all`.
        timeout_graceful_shutdown=round(limits.shutdown_seconds) + 5,
    )
    return Server(config)


def run(model: Model, **arguments) -> None:
    """Serve until a signal; arguments as for `make_server`."""
    make_server(model, **arguments).run()


def check_address(host: str, port: int) -> None:
    """OSError, by what the system says, if no server can listen there."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            attempt.bind(address)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
