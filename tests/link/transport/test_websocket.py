"""A link over WebSocket: to Mosquitto, and to servers that answer something else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fanout.config import Address
from fanout.errors import LinkLost, PrimaryUnreachable, WebSocketRefused
from fanout.link.model.states import LinkState
from fanout.link.transport.connection import LinkConnection, connect
from fanout.link.transport.websocket import WebSocketClient
from tests.link.harness import config_for, running
from tests.support.certificates import Authority
from tests.support.mosquitto import Mosquitto, free_port, publish_all, publisher
from tests.support.network import Proxy
from tests.support.waiting import wait_until

ELSEWHERE = "Check that the address is that of a listener for MQTT over WebSocket, and its path, often /mqtt"


@contextmanager
def mosquitto_with_websocket(directory: Path, *settings: str) -> Iterator[tuple[Mosquitto, int]]:
    """Run a Mosquitto; give it, and its port for WebSocket."""
    port = free_port()
    # Over WebSocket it queues a whole retained set, and drops what is beyond this limit.
    lines = ["max_queued_messages 0", f"listener {port} 127.0.0.1", "protocol websockets", *settings]
    with Mosquitto(directory, settings=lines) as mosquitto:
        yield mosquitto, port


@pytest.mark.mosquitto
@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_a_link_replicates_over_websocket(tmp_path: Path, scheme: str) -> None:
    """Snapshot, updates, a connection that is cut: as over TCP, with TLS below it too."""
    authority = Authority(tmp_path)
    authority.issue("server")
    files = (f"cafile {authority.certificate}", f"certfile {tmp_path}/server.pem", f"keyfile {tmp_path}/server.key")
    keys = {"ca_file": authority.certificate} if scheme == "wss" else {}
    with (
        mosquitto_with_websocket(tmp_path, *(files if scheme == "wss" else ())) as (mosquitto, port),
        publisher(mosquitto.port) as client,
    ):
        publish_all(client, [(f"plant/{number}", bytes(100)) for number in range(5000)])
        async with Proxy(port) as proxy:
            config = config_for(0, primaries=(Address(scheme, "127.0.0.1", proxy.port, "/mqtt"),), **keys)
            async with running(config) as link:
                await link.wait_state(LinkState.LIVE)
                assert len(link.values()) == 5000
                assert link.status.primary == f"{scheme}://127.0.0.1:{proxy.port}/mqtt"
                # Not larger ones: over WebSocket Mosquitto 2.0.11 delivers few of them, to other clients too.
                publish_all(client, [(f"plant/{number}", bytes(200)) for number in range(2000)])
                await link.wait(lambda: sum(map(len, link.values().values())) == 2000 * 200 + 3000 * 100)
                proxy.cut()
                await link.wait(lambda: link.status.counters.reconnects_total == 1 and link.status.ready)
                assert link.status.counters.epochs_total == 1


@asynccontextmanager
async def answering(answer: bytes, *, ends: bool = False) -> AsyncIterator[tuple[Address, list[bytes]]]:
    """Serve an answer to each request; give the address, and the requests."""
    requests: list[bytes] = []
    served = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        requests.append(request)
        key = next(line.split()[1] for line in request.splitlines() if line.startswith(b"Sec-WebSocket-Key:"))
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(answer.replace(b"ACCEPT", accept))
        if not ends:
            with suppress(ConnectionError):
                await reader.read()
        writer.close()
        served.release()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Address("ws", "127.0.0.1", server.sockets[0].getsockname()[1], "/plant/mqtt"), requests
        for _ in requests:
            await asyncio.wait_for(served.acquire(), 30)


def link_connection(received: list[bytes]) -> LinkConnection:
    """Make a connection that keeps what it receives."""
    connection = LinkConnection(on_data=received.append, on_closed=lambda: None, read_ahead_bytes_max=1 << 20)
    connection.read_ahead = False
    return connection


async def opened(address: Address, connection: LinkConnection, **more: Any) -> None:
    """Connect a connection."""
    await connect(connection, address, **{"receive_buffer_bytes": 1 << 16, "timeout_s": 5.0, **more})


GRANTED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: ACCEPT\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


@pytest.mark.parametrize(
    ("answer", "problem", "hint"),
    [
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n",
            "HTTP status 404",
            "Write the path of its MQTT endpoint after the port, often /mqtt",
        ),
        (
            b"HTTP/1.0 503 Service Unavailable\r\n\r\n<html>",
            "HTTP status 503",
            "The gateway does not reach the broker behind it; its log says why",
        ),
        (
            b"HTTP/1.1 403 Forbidden\r\n\r\n",
            "HTTP status 403",
            "It requires authentication or an Origin: let the gateway pass WebSocket without them",
        ),
        (
            b"HTTP/1.1 301 Moved\r\nLocation: https://elsewhere/\r\n\r\n",
            "HTTP status 301",
            "It redirects: write that address, with wss:// if it leads to https",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n", "HTTP status 200", ELSEWHERE),
        (
            GRANTED.replace(b"Sec-WebSocket-Protocol: mqtt\r\n", b""),
            "it does not speak the subprotocol mqtt",
            ELSEWHERE,
        ),
        (GRANTED.replace(b": mqtt\r", b": soap\r"), "its answer is wrong: unsupported subprotocol: soap", ELSEWHERE),
        (
            GRANTED.replace(b": mqtt\r", b": " + b"x" * 1000 + b"\r"),
            f"its answer is wrong: unsupported subprotocol: {'x' * 175}",
            ELSEWHERE,
        ),
        (
            GRANTED.replace(b"ACCEPT", b"\x9b2J\xe9"),
            "its answer is wrong: invalid Sec-WebSocket-Accept header: ?2J\xe9",
            ELSEWHERE,
        ),
        (
            GRANTED.replace(b"ACCEPT", b"nonsense"),
            "its answer is wrong: invalid Sec-WebSocket-Accept header: nonsense",
            ELSEWHERE,
        ),
        (b"\x20\x03\x00\x84\x00", "its answer is no handshake of WebSocket", ELSEWHERE),
        (b"HTTP/1.1 101 X\r\n" + b"X: y\r\n" * 20_000, "its answer is no handshake of WebSocket", ELSEWHERE),
    ],
)
@pytest.mark.parametrize("ends", [False, True])
async def test_a_refused_handshake_is_told(answer: bytes, problem: str, hint: str, ends: bool) -> None:
    """With its status code or what else is wrong, whether the server closes then or not; nothing reaches the link."""
    received: list[bytes] = []
    async with answering(answer + (b"\r\n" if ends else b""), ends=ends) as (address, _):
        with pytest.raises(WebSocketRefused) as caught:
            await opened(address, link_connection(received))
    assert (caught.value.message, caught.value.hint) == (f"no WebSocket with {address}: {problem}", hint)
    assert received == []


async def test_an_answer_that_does_not_come_is_told() -> None:
    """Silence, and a connection that is closed without a word."""
    async with answering(b"") as (address, _):
        with pytest.raises(WebSocketRefused, match="no answer within 1 s"):
            await opened(address, link_connection([]), timeout_s=1.0)
    async with answering(b"", ends=True) as (address, _):
        with pytest.raises(PrimaryUnreachable, match="it gave no answer"):
            await opened(address, link_connection([]))


async def test_the_request_names_path_host_and_subprotocol() -> None:
    """And nothing that says who asks."""
    async with answering(GRANTED) as (address, requests):
        connection = link_connection([])
        await opened(address, connection)
        first, *headers = requests[0].rstrip().decode().split("\r\n")
        assert first == "GET /plant/mqtt HTTP/1.1"
        assert sorted(header for header in headers if not header.startswith("Sec-WebSocket-Key")) == [
            "Connection: Upgrade",
            f"Host: {address.authority}",
            "Sec-WebSocket-Protocol: mqtt",
            "Sec-WebSocket-Version: 13",
            "Upgrade: websocket",
        ]
        await connection.close()


@pytest.mark.parametrize(
    ("host", "header"), [("bröker.example", "xn--brker-kua.example:81"), ("fe80::1%eth0", "[fe80::1]:81")]
)
async def test_the_host_is_named_in_ascii(host: str, header: str) -> None:
    """As HTTP wants it, without what only this machine understands."""
    written: list[bytes] = []

    class Network(asyncio.Transport):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            written.append(bytes(data))

        def is_closing(self) -> bool:
            return False

    websocket = WebSocketClient(link_connection([]), address=Address("ws", host, 81), frame_bytes_max=1024)
    websocket.connection_made(Network())
    opening = asyncio.create_task(websocket.open())
    await wait_until(lambda: written)
    opening.cancel()
    assert f"\r\nHost: {header}\r\n".encode() in written[0]


async def test_frames_are_a_stream() -> None:
    """Whatever pieces packets come in, right behind the handshake too; control frames are no part of it."""
    frames = b"\x82\x02ab" + b"\x89\x01p" + b"\x02\x01c" + b"\x80\x02de" + b"\x82\x7e\x01\x00" + bytes(256)
    received: list[bytes] = []
    async with answering(GRANTED + frames) as (address, _):
        connection = link_connection(received)
        await opened(address, connection)
        await wait_until(lambda: b"".join(received) == b"abcde" + bytes(256))
        await connection.close()
        assert connection.closed.is_set()


async def test_a_frame_of_any_size_is_read() -> None:
    """It comes in pieces, so that the link can read past a packet that is too large."""
    received: list[bytes] = []
    async with answering(GRANTED + b"\x82\x7f" + (300_000).to_bytes(8, "big") + bytes(300_000)) as (address, _):
        connection = link_connection(received)
        await opened(address, connection, frame_bytes_max=1024)
        await wait_until(lambda: sum(map(len, received)) == 300_000)
        await connection.close()
        assert connection.error is None


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        (b"\x81\x02ab", LinkLost),  # text
        (b"\xf2\x00", Exception),  # reserved bits
        (b"\x88\x02\x03\xe8", None),  # the primary closes in good order
    ],
)
async def test_what_is_no_packet_ends_the_connection(frames: bytes, error: type[Exception] | None) -> None:
    """What came in front of it is handed over."""
    received: list[bytes] = []
    async with answering(GRANTED + b"\x82\x02ok" + frames) as (address, _):
        connection = link_connection(received)
        await opened(address, connection, frame_bytes_max=1 << 20)
        await asyncio.wait_for(connection.closed.wait(), 30)
        assert received == [b"ok"]
        assert connection.error is None if error is None else isinstance(connection.error, error)
