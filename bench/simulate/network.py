"""The network in memory: connections, listeners, calls between members; latency, and ways that are cut.

Each way from one machine to another keeps the order of the bytes of a connection. Bytes on a way that is cut wait until
it is whole again, as with TCP. A killed machine closes its connections; some of its last bytes are lost.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from bench.simulate.loop import Machine, SimulatedLoop, current_machine

__all__ = ["Address", "Network", "NetworkLoop"]

Address = tuple[str, int]
"""An address on loopback: each port is one of a machine of its own."""
Protocol = asyncio.BaseProtocol
Take = Callable[[Any, str, int], None]
"""Takes an accepted connection, with host and port of its peer."""

_WINDOW: Final = 64 * 1024
"""Bytes under way that a sender is not told of."""
_CHUNK: Final = 1448
"""A lost machine's bytes are lost from a border of such pieces on."""
_LATENCY_S: Final = (0.000_05, 0.002)
_SLOW: Final = (0.0, 0.02, 0.2)
"""Share of the messages that take much longer; one of these for each seed."""
_SLOW_S: Final = (0.01, 0.15)


class _NoSocket:
    """Options of a socket that is none."""

    def setsockopt(self, *arguments: object) -> None:
        """Do nothing."""


class _Listener:
    """Stands for an acceptor."""

    def __init__(self, network: Network, address: Address, take: Take) -> None:
        self.machine = network.here()
        self.take = take
        self.context = self.machine.context
        self._network, self._address = network, address
        self.sockets: tuple[Any, ...] = (_Bound(address),)

    def close(self) -> None:
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]


class _Bound:
    """A listening socket."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def getsockname(self) -> Address:
        return self.address

    def close(self) -> None:
        pass


class _Transport(asyncio.Transport):
    """One end of a connection."""

    other: _Transport

    def __init__(self, network: Network, machine: Machine, place: Address, peer: Address) -> None:
        super().__init__({"sockname": place, "peername": peer, "socket": _NoSocket()})
        self.network, self.machine = network, machine
        self.protocol: Any = None
        self.endpoint: socket.socket | None = None
        self.arriving: deque[tuple[float, bytes | None]] = deque()
        """Pieces on their way here, with the time at which each comes; None for the end."""
        self.unread = 0
        """Bytes on their way here, or waiting here."""
        self.is_cut_off = False
        """True if the other end sends nothing more."""
        self.reset = False
        """True if the end that comes is a reset."""
        self.reads = True
        self._is_closing = self.is_lost = False
        self._high, self._low, self.is_full = 65_536, 16_384, False
        self._waking: asyncio.TimerHandle | None = None

    # --- what protocols call ---

    def set_protocol(self, protocol: Protocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Protocol:
        return cast("Protocol", self.protocol)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        if not self.reads:
            self.reads = True
            self.wake()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65_536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return max(0, self.other.unread - _WINDOW)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self.machine.is_dead or not data:
            return
        self.network.send(self, bytes(data))
        if not self.is_full and self.get_write_buffer_size() > self._high:
            self.is_full = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Close after what was written has come."""
        self._end(reset=False)

    def abort(self) -> None:
        """Close at once."""
        self._end(reset=True)

    def _end(self, *, reset: bool, error: Exception | None = None) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if not self.machine.is_dead:
            self.network.end(self, reset=reset)
        self._lose_soon(error)

    def _lose_soon(self, error: Exception | None) -> None:
        self.network.loop.call_soon(self._lose, error, context=self.machine.context)

    def _lose(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self.network.transports.pop(self, None)
        if self.endpoint is not None:
            self.endpoint.close()
        if self.protocol is not None:  # else it was closed before it had one
            self.protocol.connection_lost(error)

    # --- what comes ---

    def wake(self) -> None:
        """Deliver what has come, and plan for what comes next."""
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        if self.arriving and not self.is_lost:
            at_s = self.arriving[0][0]
            self._waking = self.network.loop.call_at(at_s, self._deliver, context=self.machine.context)

    def _deliver(self) -> None:
        self._waking = None
        now_s = self.network.loop.now_s
        if self.protocol is None or self.network.is_cut(self.other.machine, self.machine):
            return  # its protocol, or healing, wakes it
        data = bytearray()
        while self.arriving and self.arriving[0][0] <= now_s and self.reads and not self.is_lost:
            piece = self.arriving[0][1]
            if piece is None:
                if data:
                    break
                self.arriving.popleft()
                self._ended_by_peer()
                return
            self.arriving.popleft()
            data += piece
        if data and not self._is_closing:
            self._receive(data)
        self.unread -= len(data)
        sender = self.other
        if sender.is_full and sender.get_write_buffer_size() <= sender._low and not sender.is_lost:
            sender.is_full = False
            self.network.loop.call_soon(sender._resume_writing, context=sender.machine.context)
        if self.reads:
            self.wake()

    def _receive(self, data: bytearray) -> None:
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(bytes(data))
            return
        rest = memoryview(data)
        while rest and not self._is_closing:
            room = memoryview(self.protocol.get_buffer(len(rest)))
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            self.protocol.buffer_updated(count)
            rest = rest[count:]

    def _resume_writing(self) -> None:
        if not self.is_lost:
            self.protocol.resume_writing()

    def _ended_by_peer(self) -> None:
        if self._is_closing:
            return
        if self.reset:
            self._is_closing = True
            self._lose_soon(ConnectionResetError("connection reset"))
        elif not self.protocol.eof_received():
            self._end(reset=False)


class Network:
    """All connections between all machines."""

    def __init__(self, loop: SimulatedLoop, draw: random.Random) -> None:
        """Begin with all ways whole.

        Args:
            loop: Its time.
            draw: Decides latencies and losses.
        """
        self.loop, self.draw = loop, draw
        self._slow = draw.choice(_SLOW)
        self.listeners: dict[Address, _Listener] = {}
        """Listeners by address."""
        self.transports: dict[_Transport, None] = {}
        """Ends of open connections."""
        self.route: Callable[[Address], Address] = lambda address: address
        """Returns where a connection to an address leads; a load balancer, for instance."""
        self._cut: set[tuple[str, str]] = set()
        self._whole = asyncio.Event()
        self._held: list[tuple[Machine, Machine, Callable[..., None], tuple[Any, ...]]] = []
        """Packets that came to a way that is cut."""
        self._ports = 40_000
        self._connected: dict[socket.socket, _Transport] = {}

    # --- faults ---

    def is_cut(self, source: Machine, target: Machine) -> bool:
        """Return whether nothing comes from one machine to another."""
        return (source.name, target.name) in self._cut

    def cut(self, source: str, target: str) -> None:
        """Cut a way in one direction."""
        self._cut.add((source, target))

    def heal(self) -> None:
        """Make all ways whole; what waited comes."""
        self._cut.clear()
        self._whole.set()
        self._whole = asyncio.Event()
        held, self._held = self._held, []
        for source, target, comes, arguments in held:
            self.travel(source, target, comes, *arguments)
        for transport in list(self.transports):
            transport.wake()

    def close_all(self, machine: Machine) -> None:
        """Close the connections of a machine that was killed, and its listeners."""
        for address in [where for where, one in self.listeners.items() if one.machine is machine]:
            del self.listeners[address]
        for end in [one for one in self.transports if one.machine is machine]:
            other = end.other
            if self.draw.random() < 0.5 and other.arriving:  # what had not left is lost
                keep = self.draw.randrange(len(other.arriving) + 1)
                while len(other.arriving) > keep:
                    piece = other.arriving.pop()[1]
                    other.unread -= len(piece or b"")
            self.transports.pop(end)
            self.end(end, reset=self.draw.random() < 0.5)
            if end.endpoint is not None:
                end.endpoint.close()

    # --- time on the way ---

    def latency_s(self) -> float:
        """Return how long the next message takes."""
        return self.draw.uniform(*(_SLOW_S if self.draw.random() < self._slow else _LATENCY_S))

    def travel(self, source: Machine, target: Machine, comes: Callable[..., None], *arguments: Any) -> None:
        """Call a function of the target after as long as a message takes, and after a way that is cut is whole."""

        def arrive() -> None:
            if self.is_cut(source, target):
                self._held.append((source, target, comes, arguments))
            else:
                comes(*arguments)

        self.loop.call_later(self.latency_s(), arrive, context=target.context)

    def send(self, end: _Transport, data: bytes | None) -> None:
        """Put bytes on their way to the other end; None for the end of the connection."""
        other = end.other
        if other.is_cut_off:
            return
        last_s = other.arriving[-1][0] if other.arriving else 0.0
        other.arriving.append((max(last_s, self.loop.now_s + self.latency_s()), data))
        other.unread += len(data or b"")
        if other.machine.is_client:
            end.machine.speak()
        if len(other.arriving) == 1:
            other.wake()

    def end(self, end: _Transport, *, reset: bool) -> None:
        """Put the end of a connection on its way to the other end."""
        if not end.other.is_cut_off:
            end.other.reset = reset
            self.send(end, None)
            end.other.is_cut_off = True

    # --- what the loop is asked for ---

    def here(self) -> Machine:
        """Return the machine whose code runs."""
        machine = current_machine()
        assert machine is not None, "the simulator has no connections"
        return machine

    def listen(self, address: Address, take: Take) -> _Listener:
        """Listen on an address of this machine."""
        if address in self.listeners:
            raise OSError(98, "Address already in use")
        listener = self.listeners[address] = _Listener(self, address, take)
        return listener

    async def open(self, address: Address) -> _Transport:
        """Connect this machine to an address; the other end has its protocol by then, this one has none."""
        here, wanted = self.here(), address
        await asyncio.sleep(self.latency_s())
        address = self.route(wanted)
        listener = self.listeners.get(address)
        while listener is not None and (self.is_cut(here, listener.machine) or self.is_cut(listener.machine, here)):
            await self._whole.wait()
            listener = self.listeners.get(address)
        await asyncio.sleep(self.latency_s())
        listener = self.listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(111, "Connection refused")
        self._ports += 1
        place = ("127.0.0.1", self._ports)
        near = _Transport(self, here, place, address)
        far = _Transport(self, listener.machine, address, place)
        near.other, far.other = far, near
        self.transports[near] = self.transports[far] = None
        self.loop.call_soon(self._accept, listener, far, context=listener.context)
        return near

    def _accept(self, listener: _Listener, far: _Transport) -> None:
        listener.take(far, *far.get_extra_info("peername"))

    def attach(self, near: _Transport, protocol: Protocol) -> None:
        """Give an end its protocol."""
        near.protocol = protocol
        protocol.connection_made(near)
        near.wake()


class NetworkLoop(SimulatedLoop):
    """The event loop with the network in memory."""

    network: Network

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Return the one address of a name."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Connect a socket; only its options are real."""
        self.network._connected[sock] = await self.network.open(address)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Connect a protocol."""
        endpoint = options.get("sock")
        near = await self.network.open((host, port)) if endpoint is None else self.network._connected.pop(endpoint)
        near.endpoint = endpoint
        protocol = protocol_factory()
        self.network.attach(near, protocol)
        return near, protocol

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **options: Any) -> Any:
        """Give an accepted connection its protocol."""
        protocol = protocol_factory()
        self.network.attach(sock, protocol)
        return sock, protocol
