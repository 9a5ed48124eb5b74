"""Bounds of the HTTP interface against clients that send too much, too little or too slowly, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import h11
import pytest
import uvloop
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from fanout.api import app, embedded, http_connection
from fanout.api.accepting import Places
from fanout.api.app import create_app
from fanout.api.http_connection import HttpConnection
from fanout.api.http_server import HttpServer
from fanout.api.models import BODY_BYTES_MAX, AuditDetail, LagDocument, NodeStatus, Readiness
from tests.api.stand_in import StandInNode, live_link, ready_node
from tests.node.browse.pieces import Node, value
from tests.support.waiting import wait_until

MEGABYTE = b"x" * 2**20
SENT_BYTES_MAX = 16 * 2**20
"""What may be on its way without being read: buffers of the system on both sides."""
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
READYZ = LIVEZ.replace(b"livez", b"readyz")
AUDIT = b"POST /v1/links/plant/audit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def abort(self) -> None:
        """Close at once."""
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        """Read one answer, or the head of one without end, and return its status."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                await self.reader.readexactly(int(line.partition(b":")[2]))
        return int(head.split()[1])

    async def ask(self, request: bytes) -> int:
        """Send a request and return the status of its answer."""
        await self.send(request)
        return await self.status()

    async def wait_closed(self) -> None:
        """Wait until the node has closed, in good order or not."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass

    def has_ended(self) -> bool:
        """Return whether the node has closed."""
        return self.reader.at_eof() or self.reader.exception() is not None


class Attack:
    """A node's HTTP interface, and connections to it, which are closed at the end."""

    def __init__(self, http: HttpServer, stack: contextlib.AsyncExitStack) -> None:
        self.http = http
        self._stack = stack

    async def connect(self, *, receive_buffer_bytes: int | None = None) -> Client:
        """Open one more connection."""
        raw = socket.socket()
        raw.setblocking(False)
        if receive_buffer_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.http.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
        client = Client(reader, writer)
        self._stack.callback(client.abort)
        return client

    def closed(self, reason: str) -> int:
        """Return how many connections the node has closed for a reason."""
        return self.http.status().closed_total[reason]


@contextlib.asynccontextmanager
async def attacked(
    node: StandInNode | None = None, *, connections_max: int = 256, streams_max: int = 1_000
) -> AsyncIterator[Attack]:
    """Serve a node, within half a minute."""
    places = Places(others_max=connections_max)
    shown = node or ready_node()
    http = HttpServer(lambda: create_app(shown, streams_max=streams_max), host="127.0.0.1", port=0, places=places)
    async with asyncio.timeout(30), contextlib.AsyncExitStack() as stack:
        await http.start()
        stack.push_async_callback(http.stop)
        attack = Attack(http, stack)
        assert await (await attack.connect()).ask(LIVEZ) == 200
        yield attack


async def flood(client: Client, head: bytes, *, chunked: bool) -> int:
    """Send 64 MB behind a head, as far as the node lets it come; return how much went."""
    framing = b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: %d\r\n\r\n" % (64 * len(MEGABYTE))
    piece = b"%x\r\n%b\r\n" % (len(MEGABYTE), MEGABYTE) if chunked else MEGABYTE
    sent = 0
    with contextlib.suppress(ConnectionError):
        await client.send(head + framing)
        for _ in range(64):
            await client.send(piece)
            sent += len(piece)
    return sent


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("make_loop", "head", "status"),
    [
        (asyncio.new_event_loop, AUDIT, 413),
        (uvloop.new_event_loop, AUDIT, 413),
        (uvloop.new_event_loop, AUDIT + b"Origin: http://example.org\r\n", 403),
        (uvloop.new_event_loop, AUDIT.replace(b"plant", b"planet"), 404),
        (uvloop.new_event_loop, AUDIT.replace(b"POST", b"PUT"), 405),
        (uvloop.new_event_loop, AUDIT.replace(b"/v1/", b"/v9/"), 404),
        (uvloop.new_event_loop, LIVEZ[:-2], 200),
        (uvloop.new_event_loop, LIVEZ[:-2] + b"Connection: close\r\n", 200),
    ],
)
def test_a_large_body_is_answered_and_not_read(
    monkeypatch: pytest.MonkeyPatch,
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    head: bytes,
    status: int,
    *,
    chunked: bool,
) -> None:
    """Whatever it belongs to, the answer is there, nearly nothing is read, and the connection ends."""
    monkeypatch.setattr(http_connection, "_LINGER_SECONDS", 0.2)

    async def attack() -> None:
        async with attacked() as http:
            client = await http.connect()
            answer = asyncio.create_task(client.status())
            assert await flood(client, head, chunked=chunked) < SENT_BYTES_MAX
            assert await answer == status
            await client.wait_closed()
            assert http.closed("body_too_large") == (b"close" not in head)
            assert await (await http.connect()).ask(LIVEZ) == 200

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(attack())


async def test_the_largest_body_is_taken() -> None:
    """One byte more is refused, declared or not; the connection goes on where the body was read."""
    async with attacked() as http:
        client = await http.connect()
        body = b'{"confirmed": 70000}'.ljust(BODY_BYTES_MAX)
        for text, status in ((body, 200), (body + b" ", 413), (body, 200)):
            assert await client.ask(AUDIT + b"Content-Length: %d\r\n\r\n%b" % (len(text), text)) == status
            framing = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)
            assert await client.ask(AUDIT + framing) == status


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (AUDIT + b"Origin: http://example.org\r\n", 403),
        (AUDIT.replace(b"plant", b"planet"), 404),
        (b"POST /v1/drain HTTP/1.1\r\nHost: localhost\r\n", 202),
    ],
)
async def test_what_is_refused_is_refused_before_the_body_comes(head: bytes, status: int) -> None:
    """A small body that follows is skipped, and the connection is of use."""
    async with attacked() as http:
        client = await http.connect()
        assert await client.ask(head + b"Content-Length: 5\r\n\r\n") == status
        assert await client.ask(b"12345" + LIVEZ) == 200


async def silence(client: Client) -> None:
    """Send nothing."""


async def half_a_head(client: Client) -> None:
    """Send a request without its end."""
    await client.send(LIVEZ[:-2])


async def half_a_body(client: Client) -> None:
    """Send a request that promises more."""
    await client.send(AUDIT + b"Content-Length: 1000\r\n\r\n{")


async def unread_answers(client: Client) -> None:
    """Ask for much and read nothing."""
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport in both directions
    client.writer.write(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)


async def done_and_idle(client: Client) -> None:
    """Ask in good order and keep the connection."""
    await client.ask(LIVEZ)


@pytest.mark.parametrize(
    ("make_loop", "behave"),
    [
        *((uvloop.new_event_loop, one) for one in (silence, half_a_head, half_a_body, unread_answers, done_and_idle)),
        (asyncio.new_event_loop, unread_answers),
    ],
)
def test_probes_are_answered_under_attack(
    monkeypatch: pytest.MonkeyPatch,
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    behave: Callable[[Client], Awaitable[None]],
) -> None:
    """Connections that do nothing good keep no probe from its answer, and are no more than 24 at a time."""
    monkeypatch.setattr(http_connection, "_REQUEST_SECONDS", 3600.0)
    monkeypatch.setattr(http_connection, "_ANSWER_SECONDS", 3600.0)
    monkeypatch.setattr(embedded, "_KEEP_ALIVE_SECONDS", 3600)

    async def attack() -> None:
        node = StandInNode(*(live_link(f"link-{number}") for number in range(100)))
        async with attacked(node, connections_max=24) as http:
            for _ in range(32):
                await behave(await http.connect(receive_buffer_bytes=4096))
            for path in (b"/livez", b"/readyz"):
                async with asyncio.timeout(30):
                    assert await (await http.connect()).ask(LIVEZ.replace(b"/livez", path)) == 200
            assert http.closed("room") >= 8
            assert http.http.status().connections <= 24

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(attack())


async def test_the_one_that_did_nothing_for_longest_gives_way() -> None:
    """A client that asks now and then keeps its connection, though it is older."""
    async with attacked(connections_max=4) as http:
        active, silent, other = [await http.connect() for _ in range(3)]
        for _ in range(3):
            assert await active.ask(LIVEZ) == 200
            newest = await http.connect()
            assert await newest.ask(LIVEZ) == 200
        assert silent.has_ended()
        assert other.has_ended()
        assert await active.ask(LIVEZ) == 200
        assert http.closed("room") == 3  # the first one was that of `attacked`


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_messages_are_written_to_a_stream_in_the_form_of_its_answer(
    monkeypatch: pytest.MonkeyPatch, version: bytes
) -> None:
    """Those that no task writes too: another parser reads them, in chunks, or until the end for HTTP/1.0."""
    written: list[bool] = []
    write = HttpConnection._write_piece

    def spy(connection: HttpConnection, cycle: RequestResponseCycle, data: bytes) -> bool:
        written.append(write(connection, cycle, data))
        return written[-1]

    monkeypatch.setattr(HttpConnection, "_write_piece", spy)
    node, topics = ready_node(), Node(["t"])
    node.browser = topics.browser
    async with attacked(node) as http:
        client = await http.connect()
        await client.send(b"GET /v1/stream?filter=t HTTP/%b\r\nHost: localhost\r\n\r\n" % version)
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="GET", target="/", headers=[("Host", "localhost")]))
        parser.send(h11.EndOfMessage())
        body = b""

        async def until(text: bytes) -> None:
            nonlocal body
            while text not in body:
                while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                    body += bytes(event.data) if isinstance(event, h11.Data) else b""
                if text not in body:
                    parser.receive_data(await client.reader.read(65_536))

        await until(b"event: live")
        for number in range(3):
            while True not in written[number:]:  # the first may come before the reader waits
                topics.publish(value("t", b"number %d" % number))
                await until(b"number %d" % number)
                body = b""


async def test_a_stream_goes_on_while_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is longer than any request; a client that sends no request meanwhile is closed."""
    node = ready_node()
    node.browser.note("start")
    async with attacked(node) as http:
        reader = await http.connect()
        await reader.send(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        await reader.reader.readuntil(b"data: ")
        monkeypatch.setattr(http_connection, "_REQUEST_SECONDS", 0.1)
        silent = await http.connect()
        await silent.wait_closed()
        node.browser.note("stop")
        await reader.reader.readuntil(b"stopped")


async def test_streams_have_a_bound_of_their_own() -> None:
    """They take no place of other connections; one too many is refused, until another one ends."""
    node = ready_node()
    node.browser.note("start")
    stream = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    async with attacked(node, connections_max=4, streams_max=6) as http:
        streams = []
        for _ in range(6):
            streams.append(await http.connect())
            await streams[-1].send(stream)
            await streams[-1].reader.readuntil(b"data: ")
        others = [await http.connect() for _ in range(3)]
        for one in others:
            assert await one.ask(stream) == 429
        assert http.closed("room") == 0
        streams.pop().abort()
        await wait_until(lambda: http.http.status().connections == 9)
        while await others[0].ask(stream) == 429:  # the stream of a closed connection ends later
            await asyncio.sleep(0.01)
        await others[0].reader.readuntil(b"data: ")
        for _ in range(4):
            newest = await http.connect()
        assert await newest.ask(LIVEZ) == 200
        assert http.closed("room") == 3
        assert not any(one.has_ended() for one in (*streams, others[0]))


async def test_streams_whose_password_waits_have_no_place_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is known who asks, they count like all connections, so they are bounded."""
    node = ready_node()

    async def waits(username: str, password: bytes, *, address: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(node.browser, "reader", waits)
    async with attacked(node, connections_max=4) as http:
        asking = [await http.connect() for _ in range(6)]
        for one in asking:
            await one.send(b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic YW5uOng=\r\n\r\n")
        for one in asking[:2]:
            await one.wait_closed()
        assert await (await http.connect()).ask(LIVEZ) == 200
        assert http.http.status().connections <= 4


def take(seconds: float) -> None:
    """Take so much time of the event loop."""
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass


@pytest.mark.parametrize("path", [b"/v1/status", b"/v1/lag", b"/metrics"])
async def test_costly_documents_are_made_in_different_turns(monkeypatch: pytest.MonkeyPatch, path: bytes) -> None:
    """However many ask for them at once, probes and MQTT have their turn in between; too many are refused."""
    made: list[int] = []
    turn = 0

    class Node(StandInNode):
        def lag(self) -> LagDocument:
            take(0.003)  # a slice of the event loop
            made.append(turn)
            return super().lag()

        def status(self) -> NodeStatus:
            take(0.003)
            made.append(turn)
            return super().status()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(app, "_WAITING_MAX", 10)
    async with attacked(Node(live_link())) as http:
        clients = [await http.connect() for _ in range(30)]
        counting = asyncio.create_task(count_turns())
        request = LIVEZ.replace(b"/livez", path)
        answers = await asyncio.gather(*(client.ask(request) for client in clients))
        counting.cancel()
    served = answers.count(200)
    assert len(set(made)) == served >= 10
    assert set(answers) <= {200, 429}


async def test_requests_that_come_at_once_are_answered_in_different_turns() -> None:
    """However many ask for what costs little, clients of MQTT have their turn in between."""
    asked: list[int] = []
    turn = 0

    class Node(StandInNode):
        def readiness(self) -> Readiness:
            asked.append(turn)
            return super().readiness()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with attacked(Node(live_link())) as http:
        clients = [await http.connect() for _ in range(30)]
        assert await clients[0].ask(READYZ) == 200
        asked.clear()
        counting = asyncio.create_task(count_turns())
        answers = await asyncio.gather(*(client.ask(READYZ) for client in clients))
        counting.cancel()
    assert answers == [200] * 30
    assert max(asked.count(turn) for turn in asked) <= 4


async def test_a_request_that_waits_goes_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs no time and is not kept."""
    async with attacked() as http:
        assert http.http._server is not None
        client, turnstile = await http.connect(), http.http._server._turnstile
        await wait_until(lambda: http.http.status().connections == 2)
        turnstile.run(lambda: None, at_least_s=1e9)
        await client.send(LIVEZ)
        await wait_until(lambda: bool(turnstile._waiting))
        monkeypatch.setattr(http_connection, "_REQUEST_SECONDS", 0.1)
        await client.wait_closed()
        await wait_until(lambda: not turnstile._waiting)


class AuditingNode(StandInNode):
    """A node whose audits take until it is told."""

    def __init__(self) -> None:
        super().__init__(live_link())
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def audit(self, link: str, *, confirmed: int | None) -> AuditDetail:
        """Wait, and answer."""
        self.asked.set()
        await self.go.wait()
        return await super().audit(link, confirmed=confirmed)


async def test_who_waits_for_the_node_is_not_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit may take long: neither time nor newer connections end the one that waits for it."""
    node = AuditingNode()
    async with attacked(node, connections_max=2) as http:
        waiting = await http.connect()
        await waiting.send(AUDIT + b"\r\n")
        await node.asked.wait()
        monkeypatch.setattr(http_connection, "_REQUEST_SECONDS", 0.1)
        for _ in range(5):
            await (await http.connect()).wait_closed()
        node.go.set()
        assert await waiting.status() == 200


async def test_all_wait_for_the_node_and_one_more_comes() -> None:
    """Then the oldest of them gives way after all: a probe is always answered."""
    node = AuditingNode()
    async with attacked(node, connections_max=1) as http:
        waiting = await http.connect()
        await waiting.send(AUDIT + b"\r\n")
        await node.asked.wait()
        assert await (await http.connect()).ask(LIVEZ) == 200
        await waiting.wait_closed()
        node.go.set()


@pytest.mark.parametrize("begin", [LIVEZ[:9], AUDIT + b"Content-Length: 1000\r\n\r\n"])
async def test_a_request_that_trickles_in_is_given_up(monkeypatch: pytest.MonkeyPatch, begin: bytes) -> None:
    """A byte now and then gains no time."""
    async with attacked() as http:
        client = await http.connect()
        assert await client.ask(LIVEZ) == 200
        await client.send(begin)
        monkeypatch.setattr(http_connection, "_REQUEST_SECONDS", 0.5)
        closed = asyncio.create_task(client.wait_closed())
        while not closed.done():
            with contextlib.suppress(ConnectionError):
                await client.send(b"x")
            await asyncio.wait({closed}, timeout=0.02)
        assert http.closed("request_timeout") >= 1


async def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the client asks on."""
    monkeypatch.setattr(http_connection, "_ANSWER_SECONDS", 0.2)
    async with attacked(StandInNode(*(live_link(f"link-{number}") for number in range(500)))) as http:
        client = await http.connect(receive_buffer_bytes=4096)
        await unread_answers(client)
        while not http.closed("answer_timeout"):
            await asyncio.sleep(0.01)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
        await client.wait_closed()


async def test_a_large_head_is_refused() -> None:
    """16 KiB are enough for everybody."""
    async with attacked() as http:
        client = await http.connect()
        await client.send(LIVEZ[:-2] + b"X-Long: " + b"x" * 20_000)
        assert (await client.reader.readline()).split()[1] == b"400"
        await client.wait_closed()
        assert http.closed("malformed") == 1


@pytest.mark.parametrize(
    "pieces",
    [
        (b"\0\r\n\r\n",),
        (AUDIT + b"Content-Length: 100\r\n\r\n{",),  # and then it is gone
        (AUDIT + b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\n"),
        (AUDIT + b"Origin: http://example.org\r\nTransfer-Encoding: chunked\r\n\r\n", b"zz\r\n"),
    ],
)
async def test_what_a_client_does_wrong_is_not_logged_as_a_bug(
    caplog: pytest.LogCaptureFixture, pieces: tuple[bytes, ...]
) -> None:
    """No traceback, however a request goes wrong."""
    async with attacked() as http:
        client = await http.connect()
        for piece in pieces:
            await client.send(piece)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.reader.read(1000)
        client.writer.close()
        while http.http.status().connections > 1:
            await asyncio.sleep(0.01)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
