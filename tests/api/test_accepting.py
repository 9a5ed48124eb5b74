"""Acceptor of HTTP connections."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import ssl
from pathlib import Path

import pytest

from fanout.api.accepting import HttpAccepting, Places
from fanout.runtime.turnstile import Turnstile
from tests.support.certificates import Authority, client_context
from tests.support.waiting import wait_until

CROWD = 200


class Renaming(socket.socket):
    """A listening socket, to whose peers addresses of IPv6 are given: all of 127.0.0.1 are in one network."""

    def accept(self) -> tuple[socket.socket, tuple[str, int, int, int]]:
        connection, (host, port) = super().accept()
        return connection, (f"2001:db8::{port:x}" if host == "127.0.0.1" else "2001:db8:0:1::1", port, 0, 0)


@pytest.mark.parametrize("kind", [socket.socket, Renaming])
@pytest.mark.parametrize("crowd", [CROWD, 4 * CROWD])
async def test_an_address_of_its_own_does_not_wait_behind_a_crowd(crowd: int, kind: type[socket.socket]) -> None:
    """Connections of one address are made in their order, others between them; only far too many displace some."""
    made: list[object] = []

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport.get_extra_info("peername"))
            transport.close()

    closed: collections.Counter[str] = collections.Counter()
    turnstile = Turnstile(slice_s=0.001, processor_s=lambda: 0.0)
    with kind() as listening, contextlib.ExitStack() as stack:
        listening.bind(("127.0.0.1", 0))
        listening.listen(2 * crowd)
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


async def test_a_crowd_of_handshakes_keeps_no_other_address_out(tmp_path: Path) -> None:
    """Beyond 100 in a second those of the crowd are closed, and of silent ones its own give way."""
    authority = Authority(tmp_path)
    authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    made: list[asyncio.BaseTransport] = []

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    closed: collections.Counter[str] = collections.Counter()
    with socket.create_server(("127.0.0.1", 0), backlog=2 * CROWD) as listening, contextlib.ExitStack() as stack:
        listening.setblocking(False)
        address = listening.getsockname()
        other = socket.socket()
        other.bind(("127.0.0.2", 0))
        for number in range(2 * CROWD):
            stack.enter_context(socket.create_connection(address))
            if number == CROWD * 3 // 2:  # far beyond what may begin in a second
                other.connect(address)
        other.setblocking(False)
        accepting = HttpAccepting(
            listening,
            tls=context,
            turnstile=Turnstile(slice_s=0.001, processor_s=lambda: 0.0),
            new_protocol=Connection,
            places=Places(others_max=16),
            closed_total=closed,
        )
        async with asyncio.timeout(30):
            while closed.total() < 2 * CROWD - 16:
                await asyncio.sleep(0)
            _, writer = await asyncio.open_connection(
                sock=other, ssl=client_context(authority), server_hostname="localhost"
            )
            await wait_until(lambda: made)  # with TLS 1.3 the client is ready first
            assert [one.get_extra_info("peername") for one in made] == [writer.get_extra_info("sockname")]
            writer.close()
            await writer.wait_closed()
            made[0].close()
            accepting.close()
            await asyncio.sleep(0.01)  # for the ends of handshakes
