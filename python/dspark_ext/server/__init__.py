"""An OpenAI-compatible HTTP server over one engine. docs/server.md.

`make_app` is a Starlette application, `run` serves it. Both need the extra `serve`.
"""

from .app import make_app
from .engine_thread import EngineThread
from .limits import ServerLimits
from .run import make_server, run

__all__ = ["EngineThread", "ServerLimits", "make_app", "make_server", "run"]
