"""Embedded uvicorn: runs inside a node, without signal handlers and logging of its own.

The import of this module takes as long as all of MQTT, so `fanout.api.http_server` does it in a thread while links
connect.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
from collections.abc import Generator, MutableMapping
from typing import TYPE_CHECKING, Final

import uvicorn

from fanout.api.http_connection import HttpConnection

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["EmbeddedServer"]

_HEAD_BYTES_MAX: Final = 16 * 1024
"""Largest request line with header fields."""
_ACCEPTED_AT_ONCE: Final = 64
"""Connections accepted in one turn of the event loop, so that a new one is read before newer ones displace it (asyncio;
uvloop accepts them one by one)."""
_KEEP_ALIVE_SECONDS: Final = 5
"""Time that a connection may be idle between two requests."""
_DRAIN_SECONDS: Final = 2
"""Time for running requests to finish at the end."""


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the node."""

    def __init__(
        self, app: ASGIApp, *, closed_total: MutableMapping[str, int], tls: ssl.SSLContext | None = None
    ) -> None:
        """Prepare to serve `app`, with all imports done.

        Args:
            app: The application.
            closed_total: Counts connections that the node closes, by reason.
            tls: Context for handshakes; None without TLS.
        """
        config = uvicorn.Config(
            app,
            # h11 is pure Python and always there; requests come by the second, not by the thousand.
            http=functools.partial(HttpConnection, closed_total=closed_total),  # type: ignore[arg-type]
            h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
            backlog=_ACCEPTED_AT_ONCE,
            ws="none",
            lifespan="off",
            log_config=None,  # the node has set up logging
            access_log=False,
            server_header=False,
            headers=[("Cache-Control", "no-store")],  # every answer is a state of the moment
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
        )
        config.load()
        config.ssl = tls
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals as they are."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Close overdue connections; called ten times a second."""
        for connection in tuple(self.server_state.connections):
            connection.end_if_overdue()  # type: ignore[union-attr]  # all of them are ours
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests finish within their time, and close the rest."""
        await super().shutdown(sockets)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
