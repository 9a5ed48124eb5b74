"""First record of a TLS connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from functools import partial

import pytest

from fanout.runtime.first_record import wait_first_record
from fanout.runtime.turnstile import Turnstile

TURNSTILE = partial(Turnstile, slice_s=1.0, monotonic=lambda: 0.0)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give two joined sockets: of a client, and of a server."""
    client, server = socket.socketpair()
    server.setblocking(False)
    with client, server:
        yield client, server


def client_hello() -> bytes:
    """Return the first record of a client of OpenSSL."""
    written = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = context.wrap_bio(ssl.MemoryBIO(), written, server_hostname="server.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return written.read()


async def test_a_handshake_begins_with_the_last_byte(ends: tuple[socket.socket, socket.socket]) -> None:
    """However the bytes come; nothing is read."""
    client, server = ends
    hello = client_hello()
    waiting = asyncio.create_task(wait_first_record(server, TURNSTILE(), who=""))
    for byte in (hello[:1], hello[1:8], hello[8:-1]):
        client.send(byte)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
    client.send(hello[-1:])
    async with asyncio.timeout(20):
        await waiting
    assert server.recv(20_000) == hello


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n", b"\x10\x0c\x00\x04MQTT", None], ids=["http", "mqtt", "end"])
async def test_what_is_no_handshake_waits_for_nothing(
    ends: tuple[socket.socket, socket.socket], sent: bytes | None
) -> None:
    """TLS refuses it."""
    client, server = ends
    if sent is None:
        client.shutdown(socket.SHUT_WR)
    else:
        client.send(sent)
    async with asyncio.timeout(20):
        await wait_first_record(server, TURNSTILE(), who="")


async def test_a_message_in_two_records_is_not_whole(ends: tuple[socket.socket, socket.socket]) -> None:
    """Its rest could come for many connections in one turn of the event loop."""
    client, server = ends
    hello = client_hello()
    part = hello[5:50]
    client.send(hello[:3] + len(part).to_bytes(2, "big") + part)
    waiting = asyncio.create_task(wait_first_record(server, TURNSTILE(), who=""))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
