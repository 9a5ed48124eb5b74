"""The sockets on which the server listens.

Owns opening and closing them. It must not know what is spoken on a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from fanout.access.gate import is_loopback
from fanout.config import Address
from fanout.errors import ListenError

__all__ = ["Listeners"]

_BACKLOG = 1024


class Listeners:
    """Listening sockets, all open or none."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []

    async def open(self, addresses: Iterable[Address], new_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Listen on every one of `addresses`, and make a protocol for each connection.

        Raises:
            ListenError: An address cannot be bound; all others are closed again.
        """
        loop = asyncio.get_running_loop()
        for address in addresses:
            try:
                server = await loop.create_server(new_protocol, address.host, address.port, backlog=_BACKLOG)
            except OSError as error:
                self.close()
                reason = (error.strerror or str(error)).lower()
                raise ListenError(
                    f"cannot listen on {address}: {reason}",
                    hint="Correct server.listen, or stop the process that has the port.",
                ) from error
            self._servers.append(server)

    def close(self) -> None:
        """Listen no more; connections stay."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    @property
    def local_names(self) -> frozenset[tuple[str, int]]:
        """Host and port of the listeners that only this machine reaches."""
        names = [socket.getsockname()[:2] for server in self._servers for socket in server.sockets]
        return frozenset((host, port) for host, port in names if is_loopback(host))

    @property
    def addresses(self) -> list[str]:
        """Where it listens, with the real ports, as the configuration writes addresses."""
        found: list[str] = []
        for server in self._servers:
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                found.append(str(Address("mqtt", host, port)))
        return found
