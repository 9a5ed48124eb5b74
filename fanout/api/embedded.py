"""uvicorn as a node runs it: without its signal handlers, its logging and its idea of who ends the process.

Owns the settings of uvicorn. To import this module takes as long as all of MQTT, so `fanout.api.http_server` does it
in a thread, while links connect already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import uvicorn

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["EmbeddedServer"]

_CONNECTIONS_MAX: Final = 256
"""Beyond it a request is answered 503: probes, a dashboard and a scraper need a handful."""
_DRAIN_SECONDS: Final = 2
"""How long running requests may take to finish when it is told to end."""


class EmbeddedServer(uvicorn.Server):
    """A uvicorn whose signals belong to the node."""

    def __init__(self, app: FastAPI) -> None:
        """Prepare to serve `app`, to the last import."""
        config = uvicorn.Config(
            app,
            http="h11",  # pure Python, always there; requests come by the second, not by the thousand
            ws="none",
            lifespan="off",
            log_config=None,  # the node has set up logging
            access_log=False,
            server_header=False,
            headers=[("Cache-Control", "no-store")],  # every answer is the state of one moment
            proxy_headers=False,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
        )
        config.load()
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals as they are."""
        yield
