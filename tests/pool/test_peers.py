"""Questions between members over real sockets: whom the listener refuses, and what the client does not believe."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import uvloop

from fanout.api import embedded
from fanout.api.accepting import ALL_ALIKE, Places
from fanout.api.http_server import HttpServer
from fanout.config import Address, PoolConfig
from fanout.errors import ListenError
from fanout.pool import peer_client, peer_listener
from fanout.pool.addresses import MemberAddress
from fanout.pool.member_facts import ASKER_HEADER, PROTOCOL, PROTOCOL_HEADER, MemberAnswer, encode_answer
from fanout.pool.membership import AskFailed, AskFailure
from fanout.pool.peer_client import PeerClient
from fanout.pool.peer_listener import MEMBER_PATH, PeerListener
from fanout.pool.peer_tls import PeerTls, load_peer_tls
from tests.pool.test_member_facts import ANSWER
from tests.support.certificates import Authority
from tests.support.waiting import wait_refused, wait_until

TOKEN = "a-token-of-the-pool"
ASKER = "edge-7"


def answer_for(asker: str) -> MemberAnswer:
    """Return the answer for a member by this name; another one is told no cuts."""
    return ANSWER if asker == ASKER else MemberAnswer(ANSWER.facts, {})


@contextlib.asynccontextmanager
async def listening(
    *, token: str | None = None, tls: PeerTls | None = None, places: Places = ALL_ALIKE
) -> AsyncIterator[tuple[PeerListener, str]]:
    """Give the listener of a member, and `host:port`."""
    listener = PeerListener(lambda asker: encode_answer(answer_for(asker)), token=token)
    context = None if tls is None else tls.listening
    server = HttpServer(lambda: listener, host="127.0.0.1", port=0, key="pool.listen", tls=context, places=places)
    await server.start()
    try:
        yield listener, f"127.0.0.1:{server.port}"
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def stranger(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Give the address of a server that reads a request and then does what it likes."""
    tasks = set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                await answer(reader, writer)
                writer.write_eof()
                await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ask(
    address: str, *, token: str | None = None, tls: ssl.SSLContext | None = None, server_name: str | None = None
) -> AskFailure | None:
    """Ask a member once; return why that brought nothing, or None for an answer."""
    client = PeerClient(node=ASKER, token=token, tls=tls, members_max=2)
    try:
        return await ask_with(client, address, server_name=server_name)
    finally:
        await client.close()


async def ask_with(client: PeerClient, address: str, *, server_name: str | None = None) -> AskFailure | None:
    """Ask a member with a client; see `ask`."""
    try:
        assert await client.ask(MemberAddress(address, server_name)) == ANSWER
    except AskFailed as error:
        return error.failure
    return None


def test_a_member_that_resets_each_connection_is_unreachable() -> None:
    """As one that is killed, with connections waiting to be accepted: no other error, whatever the library makes of it.

    Over uvloop one in a hundred is reset just when anyio looks at the address of the other side.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:

        def reset_all() -> None:
            with contextlib.suppress(OSError):  # it was shut down
                while True:
                    connection, _ = listening.accept()
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()

        async def ask_often() -> set[AskFailure | None]:
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            client = PeerClient(node=ASKER, token=None, tls=None, members_max=2)
            failures = set()
            for _ in range(100):
                for failed in asyncio.as_completed([ask_with(client, address) for _ in range(8)]):
                    failures.add(await failed)
            await client.close()
            return failures

        threads.submit(reset_all)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                assert runner.run(ask_often()) <= {AskFailure.UNREACHABLE, AskFailure.ANSWER}
        finally:
            listening.shutdown(socket.SHUT_RDWR)


async def test_members_with_the_same_token_talk() -> None:
    """Over one connection, however often they ask."""
    async with listening(token=TOKEN) as (listener, address):
        client = PeerClient(node=ASKER, token=TOKEN, tls=None, members_max=2)
        for _ in range(3):
            assert await client.ask(MemberAddress(address)) == ANSWER
        connections = client._http._transport._pool.connections  # type: ignore[attr-defined]  # httpx shows no number
        assert len(connections) == 1
        await client.close()
        assert listener.answered_total == 3
        assert set(listener.refused_total.values()) == {0}


async def test_a_wrong_token_is_refused_and_counted() -> None:
    """And none too, before anything else of the request is looked at."""
    async with listening(token=TOKEN) as (listener, address):
        assert await ask(address, token="another-token-of-a-pool") is AskFailure.REFUSED
        assert await ask(address) is AskFailure.REFUSED
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"http://{address}/none", content=b"x" * 1000)
            assert (answer.status_code, answer.json()["refused"]) == (401, "token")
        assert {reason: count for reason, count in listener.refused_total.items() if count} == {"token": 3}
        assert listener.answered_total == 0


async def test_another_version_of_the_protocol_is_refused() -> None:
    """By both sides, each of which can count it."""
    async with listening() as (listener, address), httpx.AsyncClient() as client:
        for headers in ({PROTOCOL_HEADER: "99"}, {}):
            answer = await client.get(f"http://{address}{MEMBER_PATH}", headers=headers)
            assert (answer.status_code, answer.json()) == (426, {"refused": "protocol", "protocol": PROTOCOL})
        assert listener.refused_total["protocol"] == 2

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")

    async with stranger(refuse) as address:
        assert await ask(address) is AskFailure.PROTOCOL


async def test_other_requests_are_refused() -> None:
    """A member asks for one path, with GET."""
    async with (
        listening() as (listener, address),
        httpx.AsyncClient(headers={PROTOCOL_HEADER: str(PROTOCOL)}) as client,
    ):
        assert (await client.get(f"http://{address}/")).status_code == 404
        assert (await client.post(f"http://{address}{MEMBER_PATH}", content=b"{}")).status_code == 404
        assert listener.refused_total["request"] == 2


@pytest.mark.parametrize(
    ("raw", "failure"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", AskFailure.ANSWER),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", AskFailure.ANSWER),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"node":"edge-2"}', AskFailure.ANSWER),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", AskFailure.ANSWER),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", AskFailure.ANSWER),
    ],
    ids=["not HTTP", "not JSON", "not whole", "elsewhere", "a bug"],
)
async def test_garbage_is_no_answer(raw: bytes, failure: AskFailure) -> None:
    """It is told apart from a member that is away."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    async with stranger(answer) as address:
        assert await ask(address) is failure


async def test_an_answer_of_100_megabytes_is_not_read() -> None:
    """The connection is closed after the bytes that a member may send at most, and what the sockets held by then."""
    sent = 0

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        for _piece in range(100):
            writer.write(b" " * 1_000_000)
            await writer.drain()
            sent += 1

    async with stranger(answer) as address:
        assert await ask(address) is AskFailure.ANSWER
    assert sent < 20


async def test_a_member_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that of the whole answer: a byte now and then does not prolong it."""
    monkeypatch.setattr(peer_client, "ANSWER_S", 0.2)

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with stranger(drip) as address:
        assert await ask(address) is AskFailure.TIMEOUT


async def test_a_member_that_is_away() -> None:
    """Nothing listens; or it ends the connection, as a member does that stops just then."""

    async def leave(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with stranger(leave) as address:
        pass
    assert await ask(address) is AskFailure.UNREACHABLE
    async with stranger(leave) as address:
        assert await ask(address) in (AskFailure.UNREACHABLE, AskFailure.ANSWER)


# TLS.


def tls_of(authority: Authority, directory: Path, name: str, *, trusts: Authority | None = None) -> PeerTls:
    """Return TLS of a member with a certificate of `authority`."""
    certificate, key = authority.issue(name)
    found = load_peer_tls(
        PoolConfig(
            listen=Address("http", "127.0.0.1", 0),
            certificate_file=certificate,
            key_file=key,
            client_ca_file=(trusts or authority).certificate,
        )
    )
    assert found is not None
    return found


async def test_members_show_each_other_certificates(tmp_path: Path) -> None:
    """Those of the pool's CA talk, by address and by the name that was looked up; nobody else gets an answer."""
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    ours, theirs = Authority(own), Authority(other, name="other")
    async with listening(tls=tls_of(ours, own, "a")) as (listener, address):
        member = tls_of(ours, own, "b").asking
        assert await ask(address, tls=member) is None
        assert await ask(address, tls=member, server_name="localhost") is None
        assert listener.answered_total == 2
        assert await ask(address, tls=member, server_name="elsewhere.test") is AskFailure.UNREACHABLE
        unknown = tls_of(theirs, other, "c", trusts=ours)  # it trusts the pool, which does not know it
        assert await ask(address, tls=unknown.asking) is AskFailure.UNREACHABLE
        assert await ask(address, tls=tls_of(theirs, other, "d").asking) is AskFailure.UNREACHABLE
        assert await ask(address) in (AskFailure.UNREACHABLE, AskFailure.ANSWER)  # without TLS
        assert listener.answered_total == 2


@pytest.mark.parametrize("with_tls", [False, True])
async def test_a_flood_of_connections_takes_no_place_of_a_member(tmp_path: Path, with_tls: bool) -> None:
    """Silent ones are bounded from the accept on, with TLS before a handshake; the member keeps its connection."""
    tls = tls_of(Authority(tmp_path), tmp_path, "a") if with_tls else None
    places = Places(is_kept=lambda host: host == "127.0.0.1", kept_max=4, others_max=4)
    async with listening(tls=tls, places=places) as (listener, address), contextlib.AsyncExitStack() as stack:
        host, _, port = address.rpartition(":")
        client = PeerClient(node=ASKER, token=None, tls=None if tls is None else tls.asking, members_max=2)
        stack.push_async_callback(client.close)
        assert await ask_with(client, address) is None
        flood: list[asyncio.StreamReader] = []
        for _ in range(50):
            for _ in range(4):
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
                stack.callback(writer.close)
                flood.append(reader)
            assert await ask_with(client, address) is None
        has_ended = [reader for reader in flood if reader.at_eof() or reader.exception() is not None]
        await wait_until(lambda: sum(one.at_eof() or one.exception() is not None for one in flood) >= 196)
        assert len(has_ended) > 100
        connections = client._http._transport._pool.connections  # type: ignore[attr-defined]  # httpx shows no number
        assert len(connections) == 1
        assert listener.answered_total == 51


async def test_a_large_body_over_tls_is_not_read(tmp_path: Path) -> None:
    """The connection of a member that sends one is closed; the next question is answered on another."""
    tls = tls_of(Authority(tmp_path), tmp_path, "a")
    async with listening(tls=tls) as (_, address):
        async with httpx.AsyncClient(verify=tls.asking, headers={PROTOCOL_HEADER: str(PROTOCOL)}) as client:
            with contextlib.suppress(httpx.TransportError):
                answer = await client.post(f"https://{address}{MEMBER_PATH}", content=b"x" * 10_000_000)
                assert answer.status_code == 404
        assert await ask(address, tls=tls.asking) is None


def test_faulty_files_are_told_by_their_key(tmp_path: Path) -> None:
    """A node does not start with them."""
    certificate, key = Authority(tmp_path).issue("a")
    config = PoolConfig(certificate_file=certificate, key_file=key, client_ca_file=tmp_path / "none.pem")
    with pytest.raises(ListenError, match="cannot read its client_ca_file"):
        load_peer_tls(config)


# Requests with a body.


@contextlib.asynccontextmanager
async def taking(*, token: str | None = None) -> AsyncIterator[tuple[PeerListener, str, list[tuple[str, bytes]]]]:
    """Give a listener that takes bodies of up to 1,000 bytes at one path and returns them, and what it took."""
    taken: list[tuple[str, bytes]] = []

    async def take(asker: str, body: bytes) -> bytes:
        taken.append((asker, body))
        if body == b"wrong":
            raise ValueError(body)
        return body

    async with listening(token=token) as (listener, address):
        listener.handle("/pool/some", take, body_bytes_max=1000)
        yield listener, address, taken


async def call(address: str, body: bytes, *, token: str | None = None, path: str = "/pool/some") -> bytes | AskFailure:
    """Send a body to a member; return its answer, or why there is none."""
    client = PeerClient(node=ASKER, token=token, tls=None, members_max=2)
    try:
        return await client.call(MemberAddress(address), path, body, timeout_s=30.0, answer_bytes_max=2000)
    except AskFailed as error:
        return error.failure
    finally:
        await client.close()


async def test_a_body_reaches_its_handler() -> None:
    """With the name that the member states; only at the path that it is for, and not when it is wrong."""
    async with taking(token=TOKEN) as (listener, address, taken):
        assert await call(address, b"hello", token=TOKEN) == b"hello"
        assert taken == [(ASKER, b"hello")]
        assert await call(address, b"wrong", token=TOKEN) is AskFailure.ANSWER
        assert await call(address, b"hello", token=TOKEN, path="/pool/other") is AskFailure.PROTOCOL
        assert await call(address, b"hello") is AskFailure.REFUSED
        assert listener.answered_total == 1
        assert {reason: count for reason, count in listener.refused_total.items() if count} == {
            "token": 1,
            "request": 2,
        }


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_long_body_is_not_read(chunked: bool) -> None:
    """Neither of a member, nor of a stranger without the token, who is refused for that."""
    pieces = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal pieces
        for _ in range(1000):
            pieces += 1
            yield b"x" * 100_000

    async with taking(token=TOKEN) as (listener, address, taken):
        headers = {PROTOCOL_HEADER: str(PROTOCOL), ASKER_HEADER: ASKER}
        for token, status in ((TOKEN, 413), ("wrong", 401)):
            sent = {**headers, "Authorization": f"Bearer {token}"}
            if not chunked:
                sent["Content-Length"] = "100000000"
            async with httpx.AsyncClient(headers=sent) as client:
                with contextlib.suppress(httpx.TransportError):
                    answer = await client.post(f"http://{address}/pool/some", content=body())
                    assert answer.status_code == status
        assert taken == []
        assert pieces < 400
        assert (listener.refused_total["body"], listener.refused_total["token"]) == (1, 1)


async def test_a_member_without_a_legal_name_is_refused() -> None:
    """Its name goes into logs and documents."""
    async with (
        taking() as (listener, address, taken),
        httpx.AsyncClient(headers={PROTOCOL_HEADER: str(PROTOCOL)}) as client,
    ):
        for name in ("", "a b", "x" * 65):
            answer = await client.post(f"http://{address}/pool/some", content=b"", headers={ASKER_HEADER: name})
            assert answer.status_code == 400
        assert (taken, listener.refused_total["request"]) == ([], 3)


async def test_an_answer_to_a_call_is_bounded() -> None:
    """In bytes, and in time."""

    async def much(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b" " * 5000)

    async def never(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with stranger(much) as address:
        assert await call(address, b"") is AskFailure.ANSWER
    async with stranger(never) as address:
        client = PeerClient(node=ASKER, token=None, tls=None, members_max=2)
        with pytest.raises(AskFailed, match="timeout"):
            await client.call(MemberAddress(address), "/pool/some", b"", timeout_s=0.1, answer_bytes_max=10)
        await client.close()


async def test_a_body_that_does_not_come_whole_is_counted() -> None:
    """Nothing of it reaches the handler."""
    async with taking() as (listener, address, taken):
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /pool/some HTTP/1.1\r\nHost: a\r\n{PROTOCOL_HEADER}: {PROTOCOL}\r\n{ASKER_HEADER}: {ASKER}\r\n"
        writer.write(f"{head}Content-Length: 10\r\n\r\nhello".encode())
        await writer.drain()
        writer.close()
        await wait_until(lambda: listener.refused_total["incomplete"] == 1)
        assert taken == []


async def test_bodies_that_are_sent_by_half_take_a_bounded_part_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one address, and in total; there is room again when they have ended, and for short ones at once."""
    monkeypatch.setattr(peer_listener, "ADDRESS_BODIES_BYTES_MAX", 2_500)
    async with taking() as (listener, address, taken):
        host, _, port = address.rpartition(":")
        head = f"POST /pool/some HTTP/1.1\r\nHost: a\r\n{PROTOCOL_HEADER}: {PROTOCOL}\r\n{ASKER_HEADER}: {ASKER}\r\n"
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
        for _, writer in opened:
            writer.write(f"{head}Content-Length: 1000\r\n\r\n".encode() + b"x" * 999)
        await wait_until(lambda: listener.refused_total["busy"] == 2)
        assert await call(address, b"short") == b"short"
        for _, writer in opened:
            writer.close()
        await wait_until(lambda: listener.refused_total["incomplete"] == 2)
        assert await call(address, b"y" * 1000) == b"y" * 1000
        assert [body for _, body in taken] == [b"short", b"y" * 1000]


async def test_requests_that_are_handled_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of askers that have left count; afterwards there is room again. A question about the member has no part."""
    monkeypatch.setattr(peer_listener, "HANDLED_MAX", 2)
    may_answer = asyncio.Event()
    begun = 0

    async def wait(_asker: str, _body: bytes) -> bytes:
        nonlocal begun
        begun += 1
        await may_answer.wait()
        return b"done"

    async with listening() as (listener, address):
        listener.handle("/pool/some", wait, body_bytes_max=10)
        askers = [asyncio.create_task(call(address, b"")) for _ in range(2)]
        await wait_until(lambda: begun == 2)
        for asker in askers:
            asker.cancel()
        await asyncio.wait(askers)
        assert await call(address, b"") is AskFailure.TIMEOUT
        assert await ask(address) is None
        assert (begun, listener.refused_total["busy"]) == (2, 1)
        may_answer.set()
        assert await call(address, b"") == b"done"


async def test_slow_calls_hold_up_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are kinds of calls may wait for each member; it is asked about itself all the same."""
    monkeypatch.setattr(peer_client, "ANSWER_S", 5.0)
    may_answer = asyncio.Event()
    begun = 0

    async def wait(_asker: str, _body: bytes) -> bytes:
        nonlocal begun
        begun += 1
        await may_answer.wait()
        return b"done"

    async with listening() as (listener, address):
        listener.handle("/pool/some", wait, body_bytes_max=10)
        client = PeerClient(node=ASKER, token=None, tls=None, members_max=1)
        member = MemberAddress(address)
        calls = [
            asyncio.create_task(client.call(member, "/pool/some", b"", timeout_s=30.0, answer_bytes_max=10))
            for _ in range(5)
        ]
        await wait_until(lambda: begun == 5)
        assert await client.ask(member) == ANSWER
        may_answer.set()
        assert await asyncio.gather(*calls) == [b"done"] * 5
        await client.close()


async def test_a_connection_is_not_used_again_when_the_member_may_close_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call would fail that the member answers on a new connection."""
    assert peer_client.KEPT_S < embedded._KEEP_ALIVE_SECONDS
    monkeypatch.setattr(peer_client, "KEPT_S", 0.0)
    connections = 0

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        await asyncio.sleep(60)  # it answers one request on each connection

    async with stranger(answer) as address:
        client = PeerClient(node=ASKER, token=None, tls=None, members_max=2)
        for _ in range(2):
            assert (
                await client.call(MemberAddress(address), "/pool/some", b"", timeout_s=30.0, answer_bytes_max=10)
                == b"ok"
            )
        await client.close()
    assert connections == 2


async def test_a_handler_at_work_ends_with_the_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for less than the time that the listener gives is answered; its asker gets the answer."""
    monkeypatch.setattr(embedded, "_DRAIN_SECONDS", 30)
    begun = asyncio.Event()

    async def wait(_asker: str, _body: bytes) -> bytes:
        begun.set()
        await wait_refused(int(address.rpartition(":")[2]))
        return b"done"

    async with listening() as (listener, address):
        listener.handle("/pool/some", wait, body_bytes_max=10)
        asker = asyncio.create_task(call(address, b""))
        await begun.wait()
    assert await asker == b"done"
