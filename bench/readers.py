"""The load generator's receiving side: one process with many subscribers that count bytes of packets of one size.

A read costs the same for any number of packets. At QoS 0 the bytes are counted and dropped; at QoS 1 one write of a
prepared run of PUBACKs acknowledges all whole packets of a read. A pause after each round lets packets collect and
leaves the machine's cores to the servers. Readers that measure latencies make none.
"""

from __future__ import annotations

import multiprocessing
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Protocol

from bench.load import VERSION, connect, expect, topic
from fanout.mqtt.packets import Subscribe, Subscription, encode

__all__ = ["Arrivals", "Audience", "Clients", "Readers", "allow_connections"]

_READ_BYTES = 1 << 20
_PAUSE_S = 0.001
_SILENCE_S = 60
_TRIES = 20
_LATER_S = 0.5
_AT_ONCE = 50
"""Subscribers that connect at a time: each waits for the other members of a pool twice, which they answer together."""
_SLOW_BUFFER_BYTES = 65_536
_SUBACK_BYTES = {4: 5, 5: 6}
"""By version."""
_DISCARD = socket.MSG_TRUNC if sys.platform == "linux" else 0
"""Linux counts what a TCP socket holds and throws it away without copying it."""
_PUBACKS = b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in range(1, 65536)) * 2
"""All PUBACKs in the order of their Packet Identifiers, twice, so that a run may begin anywhere."""


@dataclass(frozen=True, slots=True)
class Audience:
    """Subscribers of one kind in one process."""

    port: int
    """Port of the server on loopback."""
    root: str
    """They subscribe to all below it."""
    count: int
    """Number of those that read as fast as they can."""
    packet_bytes: int
    """Size of every packet that they get."""
    qos: int = 0
    """Of their subscriptions."""
    stalled: int = 0
    """Number of others that never read."""
    half_speed: int = 0
    """Number of others that have never read more than half of what the first fast one has."""
    latencies: bool = False
    """True if payloads start with the time at which they were sent, and the readers take the difference."""
    subscribed: bool = True
    """True if they subscribe at the start; otherwise when they are told to expect messages."""
    live_only: bool = False
    """True if they get no retained messages when they subscribe, for which they must speak MQTT 5."""
    durable: bool = False
    """True if their sessions outlive their connections."""
    name: str = "bench"
    """Start of their Client Identifiers."""

    @property
    def version(self) -> int:
        """The Protocol Level that they speak."""
        return 5 if self.live_only else VERSION


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Messages that the fast subscribers of one process got."""

    finished: float
    """Time (`time.monotonic`) at which the last of them had everything."""
    delivered: int
    """Messages, over all of them."""
    latencies_s: list[float] = field(default_factory=list)
    """Of every message of every subscriber, when they were asked for."""


class Clients(Protocol):
    """The subscribers of one process."""

    def count(self, messages: int) -> Arrivals:
        """Read until every fast subscriber has `messages` more, and no byte beyond them."""


class Readers:
    """The process of one audience; a context manager. Its subscribers are connected once it is made."""

    def __init__(self, audience: Audience, clients: Callable[[Audience], Clients] | None = None) -> None:
        """Start the process.

        Args:
            audience: Its subscribers.
            clients: Makes them, in the process; None for those of MQTT.
        """
        self._pipe, child = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(audience, clients or _Clients, child), daemon=True
        )
        self._process.start()
        child.close()
        try:
            self._answer(120)
        except BaseException:
            self.close()
            raise

    def expect(self, messages: int) -> None:
        """Tell every subscriber how many messages come next; those that have not subscribed do it now."""
        self._pipe.send(messages)

    def wait(self, *, deadline_s: float = 300.0) -> Arrivals:
        """Return once every fast subscriber has what it was told to expect.

        Raises:
            TimeoutError: This takes longer than `deadline_s`.
            ConnectionError: A subscriber failed, or got more than it was told to expect.
        """
        return self._answer(deadline_s)

    @property
    def done(self) -> bool:
        """True if `wait` returns, or fails, at once."""
        return self._pipe.poll(0)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.kill()
        self._process.join()

    def _answer(self, deadline_s: float) -> Arrivals:
        if not self._pipe.poll(deadline_s):
            raise TimeoutError(f"the subscribers did not have everything within {deadline_s:g} s")
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise ConnectionError(answer)
        assert isinstance(answer, Arrivals)
        return answer

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(audience: Audience, make: Callable[[Audience], Clients], pipe: Connection) -> None:
    """Run the subscribers' process, until the other end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        clients = make(audience)
        pipe.send(Arrivals(time.monotonic(), 0))
        while True:
            pipe.send(clients.count(pipe.recv()))
    except EOFError:
        return
    except (OSError, ValueError) as error:
        pipe.send(f"{type(error).__name__}: {error}")


def _connect(audience: Audience, client_id: str, receive_buffer_bytes: int) -> socket.socket:
    """Open a connection; a member of a pool may ask a client to come later while another one is silent."""
    for _ in range(_TRIES if audience.durable else 0):
        try:
            return _connect_once(audience, client_id, receive_buffer_bytes)
        except ConnectionError:
            time.sleep(_LATER_S)
    return _connect_once(audience, client_id, receive_buffer_bytes)


def _connect_once(audience: Audience, client_id: str, receive_buffer_bytes: int) -> socket.socket:
    return connect(
        audience.port,
        client_id,
        receive_buffer_bytes=receive_buffer_bytes,
        version=audience.version,
        durable=audience.durable,
    )


class _Client:
    """One subscriber: its socket, what it has read, and the start of a packet whose end has not come."""

    __slots__ = ("read_bytes", "rest", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.read_bytes = 0
        self.rest = b""


class _Clients:
    """The subscribers of one process."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._size = audience.packet_bytes
        self._identifier_at = len(topic(audience.root, 0)) + (4 if self._size < 130 else 5)
        payload_at = self._identifier_at + (2 if audience.qos else 0)
        stamp_and_rest = f"Q{self._size - payload_at - 8}x" if audience.latencies else ""
        self._stamps = struct.Struct(f"={payload_at}x{stamp_and_rest}")
        self._latencies: list[float] = []
        self._buffer = bytearray(_READ_BYTES + self._size)
        self._view = memoryview(self._buffer)
        slow = audience.stalled + audience.half_speed

        def join(number: int) -> _Client:
            buffer_bytes = _SLOW_BUFFER_BYTES if number < slow else 0
            return _Client(_connect(audience, f"{audience.name}-{number}", buffer_bytes))

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            everyone = list(threads.map(join, range(slow + audience.count)))
        self._half_speed, self._fast = everyone[audience.stalled : slow], everyone[slow:]
        self._everyone = everyone
        self._subscribed = audience.subscribed
        if audience.subscribed:
            self._subscribe()
            for client in everyone:
                expect(client.socket, _SUBACK_BYTES[audience.version], b"\x90")
        for client in everyone:
            client.socket.setblocking(False)
        self._take = self._take_and_look if audience.latencies or audience.qos else self._take_and_drop

    def _subscribe(self) -> None:
        audience = self._audience
        retain_handling = 2 if audience.live_only else 0
        subscription = Subscription(f"{audience.root}/t/#".encode(), audience.qos, retain_handling=retain_handling)
        request = encode(Subscribe(packet_id=1, subscriptions=(subscription,)), version=audience.version)
        for client in self._everyone:
            client.socket.sendall(request)

    def count(self, messages: int) -> Arrivals:
        """Read until every fast subscriber has `messages` more, and no byte beyond them."""
        audience = self._audience
        # The SUBACK of those that subscribe only now comes before, among or after the retained messages.
        wanted = messages * self._size + (0 if self._subscribed else _SUBACK_BYTES[audience.version])
        for client in self._everyone:
            client.read_bytes = 0
        self._latencies.clear()
        if not self._subscribed:
            self._subscribe()
            self._subscribed = True
        pause_s = 0.0 if audience.latencies else _PAUSE_S
        waiting = len(self._fast)
        with selectors.DefaultSelector() as selector:
            for client in self._fast:
                selector.register(client.socket, selectors.EVENT_READ, client)
            while waiting:
                ready = selector.select(_SILENCE_S)
                if not ready:
                    raise TimeoutError(f"no byte for {_SILENCE_S} s; {waiting} of {len(self._fast)} subscribers wait")
                for key, _ in ready:
                    client = key.data
                    # Updates at an even rate go on after those that are expected: they are left in the socket.
                    self._take(client, wanted - client.read_bytes if audience.latencies else _READ_BYTES)
                    if client.read_bytes >= wanted:
                        selector.unregister(client.socket)
                        waiting -= 1
                        if client.read_bytes > wanted:
                            raise ValueError(f"a subscriber got {client.read_bytes - wanted} bytes too many")
                allowed = self._fast[0].read_bytes // 2
                for client in self._half_speed:
                    if allowed - client.read_bytes >= _SLOW_BUFFER_BYTES // 4:
                        self._take(client, allowed - client.read_bytes)
                if pause_s:
                    time.sleep(pause_s)
        return Arrivals(time.monotonic(), messages * len(self._fast), list(self._latencies))

    def _take_and_drop(self, client: _Client, most: int) -> None:
        try:
            read = client.socket.recv_into(self._buffer, min(most, _READ_BYTES), _DISCARD)
        except BlockingIOError:
            return
        if not read:
            raise ConnectionError("the server closed the connection of a subscriber")
        client.read_bytes += read

    def _take_and_look(self, client: _Client, most: int) -> None:
        """Read after the rest of the last packet, so that the buffer begins with a packet."""
        start = len(client.rest)
        self._view[:start] = client.rest
        try:
            read = client.socket.recv_into(self._view[start:], min(most, _READ_BYTES))
        except BlockingIOError:
            return
        if not read:
            raise ConnectionError("the server closed the connection of a subscriber")
        client.read_bytes += read
        whole = (start + read) // self._size
        end = whole * self._size
        client.rest = bytes(self._view[end : start + read])
        if whole and self._audience.latencies:
            now = time.monotonic_ns()
            self._latencies.extend(
                [(now - sent) / 1e9 for (sent,) in self._stamps.iter_unpack(self._view[:end])],
            )
        if whole and self._audience.qos:
            self._acknowledge(client.socket, whole)

    def _acknowledge(self, connection: socket.socket, whole: int) -> None:
        """Answer the `whole` packets at the start of the buffer with PUBACKs, in one write."""
        at, size = self._identifier_at, self._size
        last_at = at + (whole - 1) * size
        first = int.from_bytes(self._buffer[at : at + 2], "big")
        last = int.from_bytes(self._buffer[last_at : last_at + 2], "big")
        if (first - 1 + whole - 1) % 65535 == last - 1:
            run: memoryview | bytearray = memoryview(_PUBACKS)[(first - 1) * 4 : (first - 1 + whole) * 4]
        else:
            run = bytearray(b"\x40\x02\x00\x00" * whole)
            run[2::4] = self._buffer[at : last_at + 1 : size]
            run[3::4] = self._buffer[at + 1 : last_at + 2 : size]
        try:
            sent = connection.send(run)
        except BlockingIOError:
            sent = 0
        if sent < len(run):
            connection.settimeout(_SILENCE_S)
            connection.sendall(run[sent:])
            connection.setblocking(False)


def allow_connections() -> None:
    """Let this process and those that it starts have as many open files as the system allows."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
