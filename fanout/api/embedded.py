"""Embedded uvicorn: runs inside a node, without signal handlers and logging of its own.

The import of this module takes as long as all of MQTT, so `fanout.api.http_server` does it in a thread while links
connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import time
from collections.abc import Callable, Generator, MutableMapping
from typing import TYPE_CHECKING, Final, cast

import uvicorn

from fanout.api.accepting import ALL_ALIKE, HttpAccepting, Places
from fanout.api.http_connection import HttpConnection
from fanout.runtime.turnstile import Turnstile

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["EmbeddedServer"]

_HEAD_BYTES_MAX: Final = 16 * 1024
"""Largest request line with header fields."""
_STRANGERS_S: Final = 0.001
"""Time of a turn of the event loop that connections and requests take, before the tasks that answer them."""
_KEEP_ALIVE_SECONDS: Final = 5
"""Time that a connection may be idle between two requests."""
_DRAIN_SECONDS: Final = 2
"""Time for running requests to finish at the end."""


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the node."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        closed_total: MutableMapping[str, int],
        places: Places = ALL_ALIKE,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare to serve `app`, with all imports done.

        Args:
            app: The application.
            closed_total: Counts connections that the node closes, by reason.
            places: Bounds of connections.
            tls: Context for handshakes; None without TLS.
        """
        self._closed_total = closed_total
        self._places = places
        self._tls = tls
        self._accepting: list[HttpAccepting] = []
        self._turnstile = Turnstile(slice_s=_STRANGERS_S, processor_s=time.thread_time)
        config = uvicorn.Config(
            app,
            # h11 is pure Python and always there; requests come by the second, not by the thousand.
            http=functools.partial(  # type: ignore[arg-type]
                HttpConnection, closed_total=closed_total, places=places, turnstile=self._turnstile
            ),
            h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
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
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals as they are."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, which are bounded from then on."""
        await super().startup([])
        loop = asyncio.get_running_loop()

        def new_protocol() -> asyncio.Protocol:
            make = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
            return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop)

        for listening in sockets or ():
            accepting = HttpAccepting(
                listening,
                tls=self._tls,
                turnstile=self._turnstile,
                new_protocol=new_protocol,
                places=self._places,
                closed_total=self._closed_total,
            )
            self._accepting.append(accepting)

    async def on_tick(self, counter: int) -> bool:
        """Close overdue connections; called ten times a second."""
        for connection in tuple(self.server_state.connections):
            connection.end_if_overdue()  # type: ignore[union-attr]  # all of them are ours
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests finish within their time, and close the rest."""
        for accepting in self._accepting:
            accepting.close()
        await super().shutdown(sockets)
        self._turnstile.close()
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
