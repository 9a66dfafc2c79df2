"""What one client may ask of the server."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ServerLimits:
    """Limits; a request beyond one of them is answered with a reason.

    max_body_bytes     of a request: 413
    max_in_flight      requests running and queued, each choice of each prompt counted: 429
    max_choices        prompts times `n` of one HTTP request: 400
    max_stop_strings   and their length: 400
    max_top_logprobs   400
    receive_seconds    from a connection's first byte, or its last answer, until the next request
                       has arrived whole: 408 in the body, else the connection is closed
    send_seconds       a client that takes nothing of an answer for so long is disconnected
    shutdown_seconds   what running requests get to finish when the server stops
    """

    max_body_bytes: int = 2**20
    max_in_flight: int = 256
    max_choices: int = 64
    max_stop_strings: int = 16
    max_stop_length: int = 256
    max_top_logprobs: int = 20
    receive_seconds: float = 20.0
    send_seconds: float = 20.0
    shutdown_seconds: float = 5.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not value > 0:
                raise ValueError(
                    f"dspark_ext.server.ServerLimits: {field.name}: expected > 0, got {value!r}"
                )
