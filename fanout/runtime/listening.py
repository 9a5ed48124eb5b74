"""Listening sockets for a host and a port, and the acceptance of their connections."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["BACKLOG", "Acceptor", "allow_descriptors", "open_listening_sockets"]

BACKLOG: Final = 1024
"""Connections that wait to be accepted. Beyond it the system drops a SYN, and the client tries again after a second."""
_ACCEPTED_MAX: Final = 16
"""Connections that are accepted in one turn of the event loop, some 20 us each."""
_PAUSE_S: Final = 1.0
"""Pause before accepting again when the system has no descriptors or memory left; the same as in asyncio."""


class Acceptor:
    """Accepts the connections of one listening socket; `close` once.

    The event loop could accept them by itself, but would make them at once: all that wait, or in a busy loop only one a
    turn, so that a crowd fills the backlog and everybody else waits behind it. And it reports no handshake under way.
    """

    def __init__(
        self,
        listening: socket.socket,
        take: Callable[[socket.socket, str, int], None],
        *,
        failed: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        """Start to accept.

        Args:
            listening: A listening socket that does not block, closed by `close`.
            take: Takes a connection that does not block, with host and port of its peer: "" and 0 for a Unix socket.
            failed: Told why nothing is accepted for a second: no descriptors or memory are left.
        """
        self._listening = listening
        self._take = take
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._resuming: asyncio.TimerHandle | None = None
        self._resume()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening socket, as in `asyncio.Server`."""
        return (self._listening,)

    def close(self) -> None:
        """Stop to accept."""
        self._loop.remove_reader(self._listening)
        if self._resuming is not None:
            self._resuming.cancel()
        self._listening.close()

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_MAX):
            try:
                connection, name = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # the connection stays in the backlog, and would wake the loop again and again
                self._failed(error)
                self._loop.remove_reader(self._listening)
                self._resuming = self._loop.call_later(_PAUSE_S, self._resume)
                return
            connection.setblocking(False)
            host, port = name[:2] if isinstance(name, tuple) else ("", 0)
            self._take(connection, host, port)


def allow_descriptors() -> None:
    """Let this process have as many descriptors as the system allows; a shell gives it 1,024 until it asks for more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS allows fewer than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def open_listening_sockets(
    host: str, port: int, *, backlog: int | None = BACKLOG, prepare: Callable[[socket.socket], None] | None = None
) -> list[socket.socket]:
    """Listen on every IP address of a host, on all or none; the sockets do not block.

    Args:
        host: Name or address.
        port: TCP port; with 0 the system chooses one, which is the same for all addresses.
        backlog: Connections that may wait to be accepted; None binds the sockets only.
        prepare: Called with each socket before it is bound. Accepted connections inherit the options that it sets.

    Raises:
        OSError: The name is not known, or an address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    try:
        for family, kind, protocol, _, name in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            opened.append(listening)
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if prepare is not None:
                prepare(listening)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = port or (opened[0].getsockname()[1] if len(opened) > 1 else 0)
            listening.bind((name[0], chosen, *name[2:]))
            if backlog is not None:
                listening.listen(backlog)
    except OSError:
        for listening in opened:
            listening.close()
        raise
    return opened
