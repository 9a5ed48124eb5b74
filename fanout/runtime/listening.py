"""Listening sockets for a host and a port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

__all__ = ["open_listening_sockets"]


async def open_listening_sockets(
    host: str, port: int, *, backlog: int | None, prepare: Callable[[socket.socket], None] | None = None
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
