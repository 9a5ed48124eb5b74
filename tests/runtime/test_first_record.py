"""First record of a TLS connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Hashable, Iterator

import pytest

from fanout.runtime.first_record import wait_for_handshake
from fanout.runtime.turnstile import Turnstile


class CountingTurnstile(Turnstile):
    """A turnstile with time for all, which counts what has its turn."""

    def __init__(self) -> None:
        super().__init__(slice_s=1.0, processor_s=lambda: 0.0)
        self.count = 0

    def run(
        self, action: Callable[[], object], *, who: Hashable = "", at_least_s: float = 0.0
    ) -> Callable[[], None] | None:
        """Do the action."""
        self.count += 1
        return super().run(action, who=who, at_least_s=at_least_s)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give two joined sockets: of a client, and of a server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server, _ = listening.accept()
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
    turnstile = CountingTurnstile()
    waiting = asyncio.create_task(wait_for_handshake(server, turnstile, who=""))
    await asyncio.sleep(0)
    for byte in (hello[:1], hello[1:8], hello[8:-1]):
        client.send(byte)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
    client.send(hello[-1:])
    async with asyncio.timeout(20):
        await waiting
    assert server.recv(20_000) == hello
    assert turnstile.count <= 4  # looks at its first byte, at its head and at all of it, and the handshake


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n", b"\x10\x0c\x00\x04MQTT"], ids=["http", "mqtt"])
async def test_what_is_no_handshake_waits_for_nothing(ends: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    """TLS refuses it."""
    client, server = ends
    client.send(sent)
    async with asyncio.timeout(20):
        await wait_for_handshake(server, CountingTurnstile(), who="")


async def test_who_leaves_before_its_turn_has_no_handshake() -> None:
    """Without a ClientHello, with one, and while it waits."""
    turnstile = Turnstile(slice_s=0.001, processor_s=lambda: 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for sent in (b"", client_hello()[:-1], client_hello()):
            client = socket.create_connection(listening.getsockname())
            server, _ = listening.accept()
            server.setblocking(False)
            with client, server:
                client.send(sent)
                turnstile.run(lambda: None, at_least_s=5.0)  # for 5,000 turns
                waiting = asyncio.create_task(wait_for_handshake(server, turnstile, who=""))
                await asyncio.sleep(0)
                client.close()
                with pytest.raises(ConnectionResetError, match="the client left"):
                    await asyncio.wait_for(waiting, 20)


@pytest.mark.parametrize("first", [0, 3, 45, -1], ids=["nothing", "a part of its head", "a part", "all but one byte"])
@pytest.mark.parametrize("missing", [0, 1])
async def test_a_message_in_two_records_is_refused(
    ends: tuple[socket.socket, socket.socket], first: int, missing: int
) -> None:
    """TLS would answer it as soon as its last byte comes, for many connections in one turn of the event loop."""
    client, server = ends
    hello = client_hello()
    parts = hello[5:][:first], hello[5:][first:]
    data = b"".join(hello[:3] + len(part).to_bytes(2, "big") + part for part in parts)
    client.send(data[: len(data) - missing])
    with pytest.raises(ssl.SSLError, match="one record"):
        await asyncio.wait_for(wait_for_handshake(server, CountingTurnstile(), who=""), 20)


@pytest.mark.parametrize("record", [16 * 1024 + 1, 0xFFFF])
async def test_a_record_beyond_the_limit_is_refused(ends: tuple[socket.socket, socket.socket], record: int) -> None:
    """It would not be whole in what is looked at (RFC 8446, section 5.1)."""
    client, server = ends
    client.send(b"\x16\x03\x01" + record.to_bytes(2, "big") + b"\x01" + (record - 4).to_bytes(3, "big") + bytes(16_384))
    with pytest.raises(ssl.SSLError, match="one record"):
        await asyncio.wait_for(wait_for_handshake(server, CountingTurnstile(), who=""), 20)
