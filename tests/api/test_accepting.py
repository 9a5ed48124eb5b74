"""Acceptor of HTTP connections."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket

from fanout.api.accepting import HttpAccepting, Places
from fanout.runtime.turnstile import Turnstile

CROWD = 100


async def test_a_crowd_is_made_in_its_order() -> None:
    """However many come at once: without TLS none of them displaces another one, and the rest waits in the backlog."""
    made: list[object] = []

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport.get_extra_info("peername"))
            transport.close()

    closed: collections.Counter[str] = collections.Counter()
    turnstile = Turnstile(slice_s=0.001, monotonic=lambda: 0.0)
    with socket.create_server(("127.0.0.1", 0), backlog=CROWD) as listening, contextlib.ExitStack() as stack:
        listening.setblocking(False)
        clients = [stack.enter_context(socket.create_connection(listening.getsockname())) for _ in range(CROWD)]
        accepting = HttpAccepting(
            listening,
            tls=None,
            turnstile=turnstile,
            new_protocol=Connection,
            places=Places(others_max=16),
            closed_total=closed,
        )
        async with asyncio.timeout(30):
            while len(made) + closed.total() < CROWD:
                await asyncio.sleep(0)
        accepting.close()
        names = [client.getsockname() for client in clients]
    assert made == names
