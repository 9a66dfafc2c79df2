"""Serve the model over HTTP, in the form of OpenAI's API: completions, chats, streaming.

Listens on this machine alone unless --host says otherwise (docs/server.md).
"""

import dataclasses
import os
import sys

from . import models
from .errors import UserError, told_of

KEY_VARIABLE = "DSPARK_API_KEY"
LIMITS = {
    "max_body_bytes": (int, "bytes of a request"),
    "max_in_flight": (int, "requests running and queued; beyond: 429"),
    "receive_seconds": (float, "for a request to arrive whole"),
    "send_seconds": (float, "without a client taking anything, until it is disconnected"),
    "shutdown_seconds": (float, "for running requests when the server stops"),
}


def add_arguments(parser) -> None:
    models.add_arguments(parser, max_requests=8)
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8000, help="default: %(default)s; 0 = any")
    parser.add_argument("--name", help="what clients call the model (default: the target's name)")
    parser.add_argument(
        "--log-level", choices=("critical", "error", "warning", "info"), default="info"
    )
    group = parser.add_argument_group("limits")
    for name, (kind, text) in LIMITS.items():
        option = "--" + name.replace("_", "-")
        group.add_argument(option, type=kind, metavar="N", help=text)


def run(options) -> int:
    try:
        from ..server import ServerLimits, make_server
        from ..server.app import Model
        from ..server.run import check_address, is_loopback
    except ImportError as error:
        raise UserError(
            f"serve needs more packages ({error}): pip install 'dspark_ext[serve]'"
        ) from error
    given = {name: getattr(options, name) for name in LIMITS}
    with told_of("limits"):
        limits = ServerLimits(**{name: n for name, n in given.items() if n is not None})
    if not 0 <= options.port < 2**16:
        raise UserError(f"--port: expected 0 to 65535, got {options.port}")
    with told_of(f"--host {options.host} --port {options.port}"):
        check_address(options.host, options.port)
    key = os.environ.get(KEY_VARIABLE) or None
    served = models.load_with_status(options)
    name = options.name or served.name
    model = Model(served.engine, name, served.tokenizer, served.chat, served.stop_ids)
    server = make_server(
        model,
        host=options.host,
        port=options.port,
        limits=limits,
        api_key=key,
        log_level=options.log_level,
    )
    facts = dataclasses.asdict(limits)
    print(f"{name}, drafter {served.facts['drafter']}, limits {facts}", file=sys.stderr)
    if not is_loopback(options.host) and key is None:
        print(
            f"warning: {options.host} can be reached from elsewhere and there is no API key; "
            f"set {KEY_VARIABLE}",
            file=sys.stderr,
        )
    port = options.port or "PORT"
    host = f"[{options.host}]" if ":" in options.host else options.host
    print(
        f"Try: curl http://{host}:{port}/v1/chat/completions -H 'content-type: "
        'application/json\' -d \'{"messages": [{"role": "user", "content": "Hello"}]}\'',
        file=sys.stderr,
    )
    try:
        server.run()
    except SystemExit:  # the HTTP library's, which has told why
        return 1
    return int(not server.started)
