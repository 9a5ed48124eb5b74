"""Replacements for the machine in a simulated process: clocks, chance, listening sockets, calls between members."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, ClassVar, cast
from unittest import mock

import httpx

from bench.simulate.disks import SimulatedStore
from bench.simulate.loop import Machine
from bench.simulate.network import Address, Network, NetworkLoop
from fanout.durable.hosting.session_values import SessionValues
from fanout.pool.peer_client import PeerClient
from fanout.server.session.exported_session import ExportedSession

__all__ = ["Calls", "SimulatedClock", "patched"]

_COMMIT = "/pool/commit"
"""Path of the request with which a session changes its member."""
_DUPLICATED = 0.02
"""Share of the requests between members that come a second time."""


class SimulatedClock:
    """The clock of one process."""

    def __init__(self, loop: NetworkLoop) -> None:
        """Show the time of a loop."""
        self.now_ns = loop.now_ns
        self.monotonic = loop.time


class Calls:
    """Requests between members: what listens, and what became of each."""

    def __init__(self, network: Network, tell: Callable[[str, str], None]) -> None:
        """Prepare.

        Args:
            network: Network on which they travel.
            tell: Takes a line of the trace, and the machine that it is about.
        """
        self.network, self.tell = network, tell
        self.listeners: dict[str, tuple[Machine, Any]] = {}
        """Authority to the machine that listens, and its application."""
        self.duplicated = _DUPLICATED
        self._under_way: dict[Machine, dict[asyncio.Future[Any], Machine]] = {}
        """Calls that were not answered, by the machine that is asked, with the one that asks."""

    async def call(self, method: str, authority: str, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        """Send a request, and return the status and the document of its answer.

        Raises:
            httpx.ConnectError: Nobody listens.
            httpx.ReadError: The member was killed.
        """
        network, loop = self.network, self.network.loop
        here = network.here()
        found = self.listeners.get(authority)
        if found is None:
            await asyncio.sleep(network.latency_s())
            raise httpx.ConnectError("refused")
        machine, app = found
        answered = loop.create_future()

        async def answer() -> None:
            document = await _serve(app, method, path, headers, body)
            network.travel(machine, here, answer_comes, document)

        def request_comes() -> None:
            if path == _COMMIT:
                machine.move()
            machine.run(answer(), name=f"call {path}")

        def answer_comes(document: tuple[int, bytes]) -> None:
            if path == _COMMIT:
                here.move()
            if not answered.done():
                answered.set_result(document)

        for _ in range(2 if network.draw.random() < self.duplicated else 1):
            network.travel(here, machine, request_comes)
        under_way = self._under_way.setdefault(machine, {})
        under_way[answered] = here
        try:
            return cast("tuple[int, bytes]", await answered)
        finally:
            under_way.pop(answered, None)

    def end(self, machine: Machine) -> None:
        """End the calls to a killed machine, and listen there no more."""
        self.listeners = {where: one for where, one in self.listeners.items() if one[0] is not machine}
        for answered, asker in self._under_way.pop(machine, {}).items():
            self.network.travel(machine, asker, _reset, answered)


def _reset(answered: asyncio.Future[Any]) -> None:
    if not answered.done():
        answered.set_exception(httpx.ReadError("reset"))


async def _serve(app: Any, method: str, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
    """Ask an ASGI application."""
    status, document = 0, bytearray()

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            document.extend(message.get("body", b""))

    length = (b"content-length", str(len(body)).encode())
    scope = {"type": "http", "method": method, "path": path, "headers": [*headers, length]}
    await app(scope, receive, send)
    return status, bytes(document)


class _PeerClient(PeerClient):
    """The client of the other members, without HTTP."""

    calls: ClassVar[Calls]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._raw_headers = [(name.lower(), value) for name, value in self._http.headers.raw]

    async def _document(self, method: str, address: Any, path: str, body: bytes, *, bytes_max: int) -> bytes:
        from fanout.pool.membership import AskFailed, AskFailure
        from fanout.pool.peer_client import _FAILURES

        headers = self._raw_headers
        status, document = await self.calls.call(method, address.authority, path, headers, body)
        if status != 200 or len(document) > bytes_max:
            raise AskFailed(_FAILURES.get(status, AskFailure.ANSWER))
        return document


class _PeerServer:
    """Stands for the HTTP server of a member."""

    calls: ClassVar[Calls]

    def __init__(self, make_app: Callable[[], Any], *, host: str, port: int, **options: Any) -> None:
        self._make_app, self.port, self.url = make_app, port, f"http://{host}:{port}"
        self._authority = f"{host}:{port}"
        self._ended = asyncio.Event()

    async def start(self) -> None:
        self.calls.listeners[self._authority] = (self.calls.network.here(), self._make_app())

    async def wait_failed(self) -> None:
        await self._ended.wait()

    async def stop(self) -> None:
        self.calls.listeners.pop(self._authority, None)
        self._ended.set()


class _Bound:
    """A listening socket."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def close(self) -> None:
        """Do nothing."""


async def _listen(host: str, port: int, **options: Any) -> list[_Bound]:
    return [_Bound((host, port))]


@contextlib.contextmanager
def patched(loop: NetworkLoop, calls: Calls, *, inexact: set[str], seed: str) -> Iterator[None]:
    """Replace what is not deterministic in this process.

    Args:
        loop: Gives the time, and connections.
        calls: Takes the calls between members.
        inexact: Takes the clients whose sessions move without a marker or a place, or get retained messages again.
        seed: Decides what is drawn.
    """
    import_session = SessionValues.import_session

    def imported(values: SessionValues, exported: ExportedSession, *, retained_anew: bool = False, **more: Any) -> None:
        if retained_anew:
            inexact.add(exported.client_id)
        import_session(values, exported, retained_anew=retained_anew, **more)

    draw = random.Random(f"{seed} process")
    random.seed(f"{seed} global")
    _PeerClient.calls = _PeerServer.calls = calls
    places: dict[str, Any] = {
        "fanout.durable.hosting.session_values.SessionValues.import_session": imported,
        "fanout.node.node.SystemClock": lambda: SimulatedClock(loop),
        "fanout.node.node.WriteBehindStore": SimulatedStore,
        "fanout.node.pool.parts.HttpServer": _PeerServer,
        "fanout.pool.peer_client.PeerClient": _PeerClient,
        "fanout.server.accept.listeners.open_listening_sockets": _listen,
        "fanout.server.accept.listeners.Acceptor": lambda bound, take, failed: loop.network.listen(bound.address, take),
    }
    with contextlib.ExitStack() as stack:
        for place, other in places.items():
            stack.enter_context(mock.patch(place, other))
        for name, function in {
            "time": lambda: loop.now_ns() / 1e9,
            "time_ns": loop.now_ns,
            "monotonic": loop.time,
            "perf_counter": loop.time,
            "thread_time": loop.time,
        }.items():
            stack.enter_context(mock.patch.object(time, name, function))
        stack.enter_context(mock.patch.object(secrets, "token_bytes", lambda size=32: draw.randbytes(size)))
        stack.enter_context(mock.patch.object(secrets, "token_hex", lambda size=32: draw.randbytes(size).hex()))
        yield
