"""HTTP server inside the node's event loop: its listening sockets, and the begin and end of uvicorn.

Signals, logging and the order of shutdown belong to the node.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fanout.api.accepting import ALL_ALIKE, Places
from fanout.api.models import HTTP_CLOSE_REASONS, HttpStatus
from fanout.errors import ListenError
from fanout.runtime.gc_freeze import set_aside
from fanout.runtime.listening import open_listening_sockets

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from fanout.api.embedded import EmbeddedServer

__all__ = ["HttpServer"]

_SYSTEM_BUFFER_BYTES: Final = 64 * 1024
"""Socket buffers for unread requests and for answers; the default would be megabytes."""
_MAKING: Final = threading.Lock()
"""Held while an application is made: FastAPI and Pydantic build types in ways that no two threads may at a time, and a
member of a pool makes two."""


class HttpServer:
    """Serves one application on one address; `start` once, `stop` once."""

    def __init__(
        self,
        make_app: Callable[[], ASGIApp],
        *,
        host: str,
        port: int,
        key: str = "http.listen",
        tls: ssl.SSLContext | None = None,
        places: Places = ALL_ALIKE,
    ) -> None:
        """Prepare; nothing is opened before `start`.

        Args:
            make_app: Creates the application, in a thread because of slow imports.
            host: Name or address to listen on; a name with several addresses is bound on all of them.
            port: TCP port; 0 takes a free one, see `port` after `start`.
            key: Key of the address in the configuration.
            tls: Context for handshakes; None without TLS.
            places: Bounds of connections.
        """
        self._places = places
        self._key = key
        self._tls = tls
        self._make_app = make_app
        self._host = host
        self._port = port
        self._server: EmbeddedServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self._closed_total = dict.fromkeys(HTTP_CLOSE_REASONS, 0)

    @property
    def port(self) -> int:
        """The bound port; before `start`, the requested one."""
        return self._port

    @property
    def url(self) -> str:
        """Base URL for clients, such as `http://127.0.0.1:8080`."""
        return f"{'http' if self._tls is None else 'https'}://{self._authority}"

    def status(self) -> HttpStatus:
        """Return the number of connections, and of closed ones by reason."""
        connections = 0 if self._server is None else len(self._server.server_state.connections)
        return HttpStatus(connections=connections, closed_total=self._closed_total)

    @property
    def _authority(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Bind. Connections are accepted from now on, and answered once the application exists.

        Raises:
            ListenError: The address cannot be bound.
        """
        sockets = await self._bind()
        self._port = sockets[0].getsockname()[1]
        self._task = asyncio.create_task(self._serve(sockets), name="http-server")

    async def wait_failed(self) -> None:
        """Wait until the server ends; to be called between `start` and `stop`.

        Raises:
            Exception: The error that ended it, which is a bug.
        """
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Stop accepting, let running requests finish for at most two seconds, and close.

        Harmless when not started. Cancelling it leaves connections open.
        """
        if self._task is None:
            return
        self._ending = True
        if self._server is not None:
            self._server.should_exit = True
        await asyncio.wait({self._task})
        self._task = None

    async def _serve(self, sockets: list[socket.socket]) -> None:
        try:
            self._server = await asyncio.to_thread(self._make_server)
            set_aside()  # a full collection of it would stop the event loop for a tenth of a second
            if not self._ending:
                await self._server.serve(sockets=sockets)
        finally:
            for bound in sockets:
                bound.close()

    def _make_server(self) -> EmbeddedServer:
        from fanout.api.embedded import EmbeddedServer

        with _MAKING:
            return EmbeddedServer(self._make_app(), closed_total=self._closed_total, places=self._places, tls=self._tls)

    async def _bind(self) -> list[socket.socket]:
        def prepare(listening: socket.socket) -> None:
            for size in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                listening.setsockopt(socket.SOL_SOCKET, size, _SYSTEM_BUFFER_BYTES)

        try:
            return await open_listening_sockets(self._host, self._port, prepare=prepare)
        except OSError as error:
            raise ListenError.of(error, address=self._authority, key=self._key) from error
