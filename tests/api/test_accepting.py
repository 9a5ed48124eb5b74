"""Acceptor of HTTP connections."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket

import pytest

from fanout.api.accepting import HttpAccepting, Places
from fanout.runtime.turnstile import Turnstile

CROWD = 200


@pytest.mark.parametrize("crowd", [CROWD, 4 * CROWD])
async def test_an_address_of_its_own_does_not_wait_behind_a_crowd(crowd: int) -> None:
    """Connections of one address are made in their order, others between them; only far too many displace some."""
    made: list[object] = []

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport.get_extra_info("peername"))
            transport.close()

    closed: collections.Counter[str] = collections.Counter()
    turnstile = Turnstile(slice_s=0.001, monotonic=lambda: 0.0)
    with socket.create_server(("127.0.0.1", 0), backlog=2 * crowd) as listening, contextlib.ExitStack() as stack:
        listening.setblocking(False)

        def connect(address: str) -> object:
            client = stack.enter_context(socket.create_connection(listening.getsockname(), source_address=(address, 0)))
            return client.getsockname()

        names = [connect("127.0.0.1") for _ in range(crowd)]
        other = connect("127.0.0.2")
        accepting = HttpAccepting(
            listening,
            tls=None,
            turnstile=turnstile,
            new_protocol=Connection,
            places=Places(others_max=16),
            closed_total=closed,
        )
        async with asyncio.timeout(30):
            while len(made) + closed.total() <= crowd:
                await asyncio.sleep(0)
        accepting.close()
    assert other in made[: len(made) * 3 // 4]  # it was the last that came
    made.remove(other)
    assert made == [name for name in names if name in made]
    assert (closed.total() == 0) == (crowd == CROWD)
