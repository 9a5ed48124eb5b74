"""Who serves a connection: this worker, or the one that its Client Identifier names.

Owns the connections whose CONNECT has not come, their hand-over to other workers, and the arrival of those that others
have accepted. It must not know sessions, nor whether a client is let in: the server of the worker that it belongs to
reads the same bytes again, from the first on.

A plain connection is handed over as its descriptor. One with TLS or WebSocket, whose state is in this process, stays
here and is relayed: what goes over then is one end of a pair of sockets.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from fanout.mqtt.packets import Connect
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.accept.peers import Peer
from fanout.server.accept.routing_stream import RoutingStream
from fanout.server.accept.slots import ConnectionSlot
from fanout.server.base.counters import Limit
from fanout.server.base.deadlines import Deadline
from fanout.server.client.connack import encode_refusal
from fanout.server.client.connection import LINGER_S, ClientConnection
from fanout.server.client.server import Server
from fanout.workers.ownership import owner_of
from fanout.workers.relay import Relay, begin_relay

__all__ = ["ClientRouter", "new_handover_sockets"]

_INLINE_BYTES_MAX: Final = 32 * 1024
"""So much of what was read goes with the descriptor; with more, the connection is relayed."""
_MESSAGE_BYTES_MAX: Final = 64 * 1024
_HANDOVERS_MAX: Final = 64
"""Connections taken in one turn of the event loop."""
_QUEUE_BYTES: Final = 1024 * 1024
"""Room asked for what waits to be taken, which the system may make less."""


def new_handover_sockets() -> tuple[socket.socket, socket.socket]:
    """Return a pair of sockets: where one worker takes its connections, and to which the others send them."""
    taking, sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (taking, sending):
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUE_BYTES)
    return taking, sending


@dataclass(frozen=True, slots=True)
class _Handover:
    """What goes with a descriptor."""

    peer: Peer
    read: bytes


class ClientRouter:
    """The doorman of one worker (`fanout.server.accept.routing_stream.Doorman`)."""

    server: Server
    """The worker's server, set before `open`."""

    def __init__(self, *, number: int, handovers: socket.socket, others: Sequence[socket.socket]) -> None:
        """Make a doorman; `open` begins.

        Args:
            number: Of the worker.
            handovers: From which connections come that others have accepted.
            others: For each worker where its connections go.
        """
        self._number = number
        self._handovers = handovers
        self._others = others
        self._unrouted: dict[_UnroutedConnection, None] = {}
        self._relays: dict[Relay, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Take what others have accepted, from now on."""
        asyncio.get_running_loop().add_reader(self._handovers, self._receive_handovers)

    def close(self) -> None:
        """Take nothing more, and end what has not sent its CONNECT; relays stay."""
        asyncio.get_running_loop().remove_reader(self._handovers)
        for connection in list(self._unrouted):
            connection.abort()

    async def end(self) -> None:
        """End the relays: the other workers have had their time."""
        for relay in list(self._relays):
            relay.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def new_stream(self, peer: Peer, slot: ConnectionSlot, *, websocket: bool) -> RoutingStream:
        """Make what a new connection talks to first."""
        connection = _UnroutedConnection(self, peer, slot, websocket=websocket)
        self._unrouted[connection] = None
        return connection

    # For doorways.

    def forget(self, connection: _UnroutedConnection) -> None:
        """Note that a connection has been handed on, or has lost it."""
        self._unrouted.pop(connection, None)

    def serves(self, client_id: str) -> bool:
        """Say whether a client is served by this worker."""
        return not client_id or owner_of(client_id, len(self._others)) == self._number

    def hand_over(self, client_id: str, transport: asyncio.Transport, peer: Peer, read: bytes) -> bool:
        """Give a plain connection to the worker of its client; return False when that one cannot take it."""
        if not self._send(client_id, _Handover(peer, read), transport.get_extra_info("socket").fileno()):
            return False
        transport.abort()  # closes this process's descriptor only
        return True

    def relay(self, client_id: str, transport: asyncio.Transport, peer: Peer, read: bytes) -> bool:
        """Relay a connection to the worker of its client; return False when that one cannot take it."""
        try:
            near, far = socket.socketpair()
        except OSError:  # this process has no room for them
            return False
        with far:
            if not self._send(client_id, _Handover(peer, b""), far.fileno()):
                near.close()
                return False
        if not transport.is_closing():
            transport.pause_reading()
        near.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._relay(transport, near, read), name="relay")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _relay(self, transport: asyncio.Transport, near: socket.socket, read: bytes) -> None:
        try:
            relay = await begin_relay(transport, near, read)
        except OSError:
            near.close()
            transport.abort()
            return
        self._relays[relay] = None
        try:
            await relay.wait_closed()
        finally:
            del self._relays[relay]

    def _send(self, client_id: str, handover: _Handover, descriptor: int) -> bool:
        other = self._others[owner_of(client_id, len(self._others))]
        try:
            socket.send_fds(other, [pickle.dumps(handover)], [descriptor])
        except OSError:  # too many wait there, or in the whole system
            return False
        return True

    # What others have accepted.

    def _receive_handovers(self) -> None:
        for _ in range(_HANDOVERS_MAX):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._handovers, _MESSAGE_BYTES_MAX, 1)
            except (BlockingIOError, InterruptedError):
                return
            if not data:  # the hub is gone
                asyncio.get_running_loop().remove_reader(self._handovers)
                return
            if not descriptors:  # this process has no room for one more
                self.server.logger.error("cannot_accept", detail="no descriptors are left")
                continue
            self._arrive(pickle.loads(data), socket.socket(fileno=descriptors[0]))

    def _arrive(self, handover: _Handover, connection: socket.socket) -> None:
        peer = handover.peer
        slot = self.server.take_slot(peer.host, address=peer.address, accepted_here=False)
        if slot is None:
            connection.close()
            return
        connection.setblocking(False)
        received = _ReceivedConnection(self.server, handover, slot)
        task = asyncio.get_running_loop().create_task(self._connect(received, connection), name="arrival")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, received: _ReceivedConnection, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: received, connection)
        except OSError:  # the client is gone already
            connection.close()
        finally:
            received.release()


class _ReceivedConnection(asyncio.BufferedProtocol):
    """A connection that another worker has accepted, until this one has a transport for it."""

    def __init__(self, server: Server, handover: _Handover, slot: ConnectionSlot) -> None:
        self._server = server
        self._handover = handover
        self._slot: ConnectionSlot | None = slot

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the server have it, with what was read elsewhere."""
        slot, self._slot = self._slot, None
        assert slot is not None
        _hand_on(self._server, cast("asyncio.Transport", transport), self._handover.peer, slot, self._handover.read)

    def release(self) -> None:
        """Free the slot, unless the connection has come to it."""
        if self._slot is not None:
            self._server.release_slot(self._slot)


class _UnroutedConnection(RoutingStream):
    """A connection of which it is not known yet who serves it."""

    def __init__(self, connection_router: ClientRouter, peer: Peer, slot: ConnectionSlot, *, websocket: bool) -> None:
        self._connection_router = connection_router
        self._server = connection_router.server
        self._peer = peer
        self._slot = slot
        self._websocket = websocket
        self._decoder = self._server.new_decoder()
        self._read: list[bytes] = []
        self._deadline: Deadline | None = None
        self._left = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, for a limited time."""
        self._transport = cast("asyncio.Transport", transport)
        passed_s = self._server.context.clock.monotonic() - self._slot.since_s
        self._deadline = self._server.after(self._server.config.connect_timeout_s - passed_s, self._timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._release()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Give the buffer that all connections share."""
        return self._server.context.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        self.receive(bytes(self._server.context.read_buffer[:nbytes]))

    def receive(self, data: bytes) -> None:
        """Take a piece of the stream of packets: CONNECT tells where all of it goes."""
        if self._left:
            return
        self._read.append(data)
        items = self._decoder.feed(data)
        connect = items[0] if items else None
        if isinstance(connect, Connect) and not self._slot.over_rate:
            if self._connection_router.serves(connect.client_id):
                self._keep()
            else:
                self._route_away(connect)
        elif connect is not None or self._decoder.fault is not None:
            self._keep()  # and be refused

    def end(self, fault: str) -> None:
        """Let the server end it, which counts that."""
        connection = self._keep()
        connection.end(fault)

    def is_closing(self) -> bool:
        """Return whether it is being closed."""
        return self._left or self._transport.is_closing()

    @property
    def awaits_connect(self) -> bool:
        """Whether CONNECT has not come."""
        return self._decoder.version is None

    def abort(self) -> None:
        """End it at once."""
        self._transport.abort()

    def _keep(self) -> ClientConnection:
        self._leave()
        return _hand_on(self._server, self._transport, self._peer, self._slot, b"".join(self._read))

    def _route_away(self, connect: Connect) -> None:
        read = b"".join(self._read)
        transport, connection_router = self._transport, self._connection_router
        is_plain = not self._websocket and transport.get_extra_info("sslcontext") is None
        give = connection_router.hand_over if is_plain and len(read) <= _INLINE_BYTES_MAX else connection_router.relay
        gone = give(connect.client_id, transport, self._peer, read)
        self._release()
        if not gone:
            self._server.reject("worker_unavailable", address=self._peer.address)
            transport.write(encode_refusal(ReasonCode.SERVER_UNAVAILABLE, version=connect.version))
            transport.close()
            asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def _timed_out(self) -> None:
        self._release()
        self._server.reject("connect_timeout", address=self._peer.address, why=Limit.CONNECT_TIMEOUT)
        self._transport.abort()

    def _release(self) -> None:
        if not self._left:
            self._leave()
            self._server.release_slot(self._slot)

    def _leave(self) -> None:
        self._left = True
        self._connection_router.forget(self)
        if self._deadline is not None:
            self._deadline.cancel()


def _hand_on(
    server: Server, transport: asyncio.Transport, peer: Peer, slot: ConnectionSlot, read: bytes
) -> ClientConnection:
    connection = server.new_connection(peer, slot)
    transport.set_protocol(connection)
    connection.connection_made(transport)
    if read:
        connection.receive(read)
    return connection
