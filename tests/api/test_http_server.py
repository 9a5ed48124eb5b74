"""uvicorn inside the node's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import threading
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from fanout.api import embedded
from fanout.api.app import create_app
from fanout.api.http_server import HttpServer
from fanout.errors import ListenError
from tests.api.stand_in import ready_node


def server(*, host: str = "127.0.0.1", port: int = 0) -> HttpServer:
    """Return a server that is not started."""
    return HttpServer(lambda: create_app(ready_node()), host=host, port=port)


def connections_of(http: HttpServer) -> set[Any]:
    """Return uvicorn's connections."""
    assert http._server is not None
    return set(http._server.server_state.connections)


async def test_start_knows_the_port_and_accepts_at_once() -> None:
    """After `start` the chosen port is known and answers."""
    http = server()
    await http.start()
    assert http.port > 0
    assert http.url == f"http://127.0.0.1:{http.port}"
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{http.url}/livez")).status_code == 200
    await http.stop()


async def test_two_servers_make_their_applications_one_after_the_other() -> None:
    """As a member of a pool does: Pydantic failed where two threads built types at a time, and the port was closed."""
    both, met = threading.Barrier(2), []

    def make() -> FastAPI:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)
            met.append(True)
        return FastAPI()

    servers = [HttpServer(make, host="127.0.0.1", port=0) for _ in range(2)]
    for http in servers:
        await http.start()
    async with httpx.AsyncClient(trust_env=False) as client:
        for http in servers:
            assert (await client.get(f"{http.url}/livez")).status_code == 404
    for http in servers:
        await http.stop()
    assert not met


async def test_stop_closes_the_port_and_leaves_no_task() -> None:
    """After `stop` nothing listens and nothing runs."""
    http = server()
    await http.start()
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get(f"{http.url}/livez")
    await http.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", http.port)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_stop_closes_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that keeps its connection open does not delay the shutdown to the deadline."""
    monkeypatch.setattr(embedded, "_DRAIN_SECONDS", 3600)
    http = server()
    await http.start()
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get(f"{http.url}/livez")
        async with asyncio.timeout(30):
            await http.stop()


async def test_stop_closes_a_connection_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is waited for as long as any request, and no longer."""
    monkeypatch.setattr(embedded, "_DRAIN_SECONDS", 0.2)
    http = server()
    await http.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port, limit=1024)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
    await reader.readline()  # it stops reading by itself when it has twice its limit
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n" * 500)
    async with asyncio.timeout(30):
        while not any(each.transport.get_write_buffer_size() for each in connections_of(http)):
            await asyncio.sleep(0.01)
        await http.stop()
        assert connections_of(http) == set()
    writer.close()


async def test_stop_without_start_is_harmless() -> None:
    """A node that failed before its HTTP server started can still clean up."""
    await server().stop()


async def test_signal_handlers_stay_the_nodes() -> None:
    """Signals belong to the node, which writes the order of shutdown."""
    before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    http = server()
    await http.start()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    await http.stop()


async def test_port_in_use_says_what_to_do() -> None:
    """A taken port is a ListenError that names the address and the setting."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ListenError) as caught:
            await server(port=port).start()
    assert str(caught.value).startswith(f"cannot listen on 127.0.0.1:{port}: address already in use.")
    assert "choose another port in http.listen" in caught.value.hint


async def test_foreign_address_says_what_to_do() -> None:
    """An address of another machine is refused with a hint (192.0.2.1 is for documentation)."""
    with pytest.raises(ListenError, match="cannot assign requested address") as caught:
        await server(host="192.0.2.1").start()
    assert "does not have that address" in caught.value.hint


async def test_unknown_host_says_what_to_do() -> None:
    """A host name that does not resolve is refused with a hint."""
    with pytest.raises(ListenError, match=r"no-such-host\.invalid:0") as caught:
        await server(host="no-such-host.invalid").start()
    assert "Check the host name" in caught.value.hint


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "Ports below 1024 need privileges: choose a higher one in http.listen"),
        (errno.ENOBUFS, "Check http.listen in the configuration"),
    ],
)
async def test_other_failures_say_what_to_do(monkeypatch: pytest.MonkeyPatch, number: int, hint: str) -> None:
    """What the system refuses is told with a hint that fits, and the socket is closed."""
    opened: list[socket.socket] = []

    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            opened.append(self)
            raise OSError(number, "refused")

    monkeypatch.setattr("fanout.api.http_server.socket.socket", Refusing)
    with pytest.raises(ListenError, match="refused") as caught:
        await server().start()
    assert caught.value.hint == hint
    assert opened[0].fileno() == -1


async def test_failure_while_starting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails behind the bound socket is told to who waits for it, and the port is closed."""

    async def startup(self: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        raise RuntimeError("impossible")

    monkeypatch.setattr(uvicorn.Server, "startup", startup)
    http = server()
    await http.start()
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="impossible"):
            await http.wait_failed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", http.port)
        await http.stop()


async def test_a_request_waits_for_the_application() -> None:
    """While the application is made the port accepts, the event loop runs, and the request is answered afterwards."""
    asked, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def make_app() -> FastAPI:
        loop.call_soon_threadsafe(asked.set)
        assert go.wait(10)
        return create_app(ready_node())

    http = HttpServer(make_app, host="127.0.0.1", port=0)
    async with asyncio.timeout(10), httpx.AsyncClient(trust_env=False) as client:
        await http.start()
        request = asyncio.create_task(client.get(f"{http.url}/livez"))
        await asked.wait()
        go.set()
        assert (await request).status_code == 200
        await http.stop()


async def test_stop_while_the_application_is_made() -> None:
    """A node that is stopped as soon as it has started serves nothing and leaves nothing."""
    http = server()
    await http.start()
    async with asyncio.timeout(10):
        await http.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", http.port)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_ipv6_address_is_bracketed() -> None:
    """The URL of an IPv6 address can be pasted."""
    http = server(host="::1")
    try:
        await http.start()
    except ListenError:
        pytest.skip("no IPv6 loopback on this machine")
    assert http.url == f"http://[::1]:{http.port}"
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{http.url}/livez")).status_code == 200
    await http.stop()


async def test_name_with_several_addresses_shares_one_port() -> None:
    """`localhost` is served on each of its addresses at the same port."""
    http = server(host="localhost")
    await http.start()
    found = await asyncio.get_running_loop().getaddrinfo("localhost", http.port, type=socket.SOCK_STREAM)
    for *_, where in found:
        _, writer = await asyncio.open_connection(str(where[0]), http.port)
        writer.close()
        await writer.wait_closed()
    await http.stop()
