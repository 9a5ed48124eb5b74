"""Running the HTTP endpoints inside the node's own event loop.

This module owns the listening sockets and uvicorn. Signals, logging and the order of shutdown belong to the
node, so uvicorn's own handling of them is switched off. It must not know what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Final

import uvicorn
from fastapi import FastAPI

from fanout.errors import ListenError

__all__ = ["HttpServer"]

_CONNECTIONS_MAX: Final = 256
"""Beyond it a request is answered 503: probes, a dashboard and a scraper need a handful."""
_DRAIN_SECONDS: Final = 2
"""How long `HttpServer.stop` lets running requests finish."""


class _EmbeddedServer(uvicorn.Server):
    """uvicorn without its signal handlers, and with an event for "now serving"."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.serving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class HttpServer:
    """Serves one application on one address; `start` once, `stop` once."""

    def __init__(self, app: FastAPI, *, host: str, port: int) -> None:
        """Prepare; nothing is opened before `start`.

        Args:
            app: What to serve.
            host: Name or address to listen on; a name with several addresses is bound on all of them.
            port: TCP port; 0 takes a free one, see `port` after `start`.
        """
        self._host = host
        self._port = port
        self._server = _EmbeddedServer(
            uvicorn.Config(
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
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is bound; before `start`, the one asked for."""
        return self._port

    @property
    def url(self) -> str:
        """The address to give to a client, such as `http://127.0.0.1:8080`."""
        return f"http://{self._authority}"

    @property
    def _authority(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Bind and serve; return when connections are accepted.

        Raises:
            ListenError: The address cannot be bound.
        """
        sockets = await self._bind()
        self._port = sockets[0].getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=sockets), name="http-server")
        waiter = asyncio.create_task(self._server.serving.wait(), name="http-server-start")
        try:
            await asyncio.wait({self._task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        if self._task.done():
            failed, self._task = self._task, None
            for bound in sockets:
                bound.close()
            await failed

    async def stop(self) -> None:
        """Stop accepting, let running requests finish for at most two seconds, and close.

        Harmless when not started. Cancelling it leaves connections open.
        """
        if self._task is None:
            return
        self._server.should_exit = True
        await self._task
        self._task = None

    async def _bind(self) -> list[socket.socket]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise ListenError.of(error, address=self._authority, key="http.listen") from error
        sockets: list[socket.socket] = []
        try:
            for family, kind, protocol, _, where in found:
                bound = socket.socket(family, kind, protocol)
                sockets.append(bound)
                bound.setblocking(False)
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                # With port 0 the first socket chooses, and the host's other addresses follow.
                port = self._port or (sockets[0].getsockname()[1] if len(sockets) > 1 else 0)
                bound.bind((where[0], port, *where[2:]))
        except OSError as error:
            for opened in sockets:
                opened.close()
            raise ListenError.of(error, address=self._authority, key="http.listen") from error
        return sockets
