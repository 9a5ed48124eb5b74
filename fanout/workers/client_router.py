"""Router of connections to the worker that serves the client, which its Client Identifier decides.

Owns the connections before their CONNECT, and the handover of connections between workers. The server of the receiving
worker processes the bytes again, from the first one.

While a worker is silent the others serve its new clients, and the hub takes the connections out of its queue.

A plain connection is handed over by its descriptor. The state of TLS and WebSocket is in this process, so these
connections stay here and are relayed over a pair of sockets.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from collections.abc import Sequence, Set
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
from fanout.workers.ownership import serving_worker_of
from fanout.workers.relay import Relay, begin_relay

__all__ = ["ClientRouter", "new_handover_sockets", "redirect_handovers"]

_INLINE_BYTES_MAX: Final = 32 * 1024
"""Limit of read bytes that are sent with the descriptor; with more, the connection is relayed."""
_MESSAGE_BYTES_MAX: Final = 64 * 1024
_HANDOVERS_MAX: Final = 64
"""Limit of connections received in one turn of the event loop."""
_REDIRECTED_MAX: Final = 256
"""Limit of connections that the hub takes out of the queue of a silent worker in one turn."""
_QUEUE_BYTES: Final = 1024 * 1024
"""Requested size of the handover queue, which the system may reduce."""


def new_handover_sockets() -> tuple[socket.socket, socket.socket]:
    """Return a pair of sockets: one worker receives its connections from the first, the others send to the second."""
    taking, sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (taking, sending):
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUE_BYTES)
    return taking, sending


@dataclass(frozen=True, slots=True)
class _Handover:
    """Message that accompanies a descriptor."""

    peer: Peer
    read: bytes
    client_id: str


def redirect_handovers(taking: socket.socket, others: Sequence[socket.socket], *, silent: Set[int]) -> int:
    """Send connections that wait for a silent worker to the workers that serve its clients; return their number.

    Args:
        taking: Socket from which the silent worker receives them.
        others: As in `ClientRouter`.
        silent: Workers that say nothing, not all of them.
    """
    redirected = 0
    for _ in range(_REDIRECTED_MAX):
        try:
            data, descriptors, _, _ = socket.recv_fds(taking, _MESSAGE_BYTES_MAX, 1)
        except OSError:  # nothing waits, or no descriptors are left
            break
        client_id = pickle.loads(data).client_id
        try:
            socket.send_fds(others[serving_worker_of(client_id, len(others), silent=silent)], [data], descriptors)
            redirected += 1
        except OSError:  # that queue is full: the client connects again
            pass
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
    return redirected


class ClientRouter:
    """The connection router of one worker (`fanout.server.accept.routing_stream.ConnectionRouter`).

    Attributes:
        silent: Other workers that say nothing, whose new clients are served elsewhere.
    """

    server: Server
    """The worker's server, set before `open`."""

    def __init__(self, *, number: int, handovers: socket.socket, others: Sequence[socket.socket]) -> None:
        """Make a router; `open` starts to receive connections.

        Args:
            number: Number of the worker.
            handovers: Socket from which this worker receives connections that others have accepted.
            others: For each worker the socket to which its connections are sent.
        """
        self.silent: Set[int] = frozenset()
        self._number = number
        self._handovers = handovers
        self._others = others
        self._unrouted: dict[_UnroutedConnection, None] = {}
        self._relays: dict[Relay, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Start to receive connections from other workers."""
        asyncio.get_running_loop().add_reader(self._handovers, self._receive_handovers)

    def close(self) -> None:
        """Stop to receive connections, and end those without CONNECT; relays stay."""
        asyncio.get_running_loop().remove_reader(self._handovers)
        for connection in list(self._unrouted):
            connection.abort()

    async def end(self) -> None:
        """End the relays, after the other workers had time to close them."""
        for relay in list(self._relays):
            relay.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def new_stream(self, peer: Peer, slot: ConnectionSlot, *, websocket: bool) -> RoutingStream:
        """Make the first protocol of a new connection."""
        connection = _UnroutedConnection(self, peer, slot, websocket=websocket)
        self._unrouted[connection] = None
        return connection

    # For unrouted connections.

    def forget(self, connection: _UnroutedConnection) -> None:
        """Forget a connection that was routed or has ended."""
        self._unrouted.pop(connection, None)

    def serves(self, client_id: str) -> bool:
        """Return whether this worker serves a client."""
        return not client_id or self._serving_worker_of(client_id) == self._number

    def hand_over(self, client_id: str, transport: asyncio.Transport, peer: Peer, read: bytes) -> bool:
        """Hand a plain connection over to the worker of its client; return False when that fails."""
        handover = _Handover(peer, read, client_id)
        if not self._send(handover, transport.get_extra_info("socket").fileno()):
            return False
        transport.abort()  # closes this process's descriptor only
        return True

    def relay(self, client_id: str, transport: asyncio.Transport, peer: Peer, read: bytes) -> bool:
        """Relay a connection to the worker of its client; return False when that fails."""
        try:
            near, far = socket.socketpair()
        except OSError:  # no descriptors are left
            return False
        with far:
            if not self._send(_Handover(peer, b"", client_id), far.fileno()):
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

    def _serving_worker_of(self, client_id: str) -> int:
        return serving_worker_of(client_id, len(self._others), silent=self.silent)

    def _send(self, handover: _Handover, descriptor: int) -> bool:
        other = self._others[self._serving_worker_of(handover.client_id)]
        try:
            socket.send_fds(other, [pickle.dumps(handover)], [descriptor])
        except OSError:  # the queue of that worker is full, or no descriptors are left in the system
            return False
        return True

    # Connections that other workers have accepted.

    def _receive_handovers(self) -> None:
        for _ in range(_HANDOVERS_MAX):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._handovers, _MESSAGE_BYTES_MAX, 1)
            except (BlockingIOError, InterruptedError):
                return
            if not data:  # the hub has ended
                asyncio.get_running_loop().remove_reader(self._handovers)
                return
            if not descriptors:  # no descriptors are left
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
        except OSError:  # the client has left already
            connection.close()
        finally:
            received.release()


class _ReceivedConnection(asyncio.BufferedProtocol):
    """Protocol of a connection that another worker has accepted, until its transport is ready."""

    def __init__(self, server: Server, handover: _Handover, slot: ConnectionSlot) -> None:
        self._server = server
        self._handover = handover
        self._slot: ConnectionSlot | None = slot

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the connection to the server, with the bytes that the other worker read."""
        slot, self._slot = self._slot, None
        assert slot is not None
        _hand_on(self._server, cast("asyncio.Transport", transport), self._handover.peer, slot, self._handover.read)

    def release(self) -> None:
        """Free the slot, unless the connection was passed to the server."""
        if self._slot is not None:
            self._server.release_slot(self._slot)


class _UnroutedConnection(RoutingStream):
    """Protocol of a connection until CONNECT decides which worker serves it."""

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
        """Start the connection, with a deadline for CONNECT."""
        self._transport = cast("asyncio.Transport", transport)
        passed_s = self._server.context.clock.monotonic() - self._slot.since_s
        self._deadline = self._server.after(self._server.config.connect_timeout_s - passed_s, self._timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the transport was closed."""
        self._release()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the read buffer that all connections share."""
        return self._server.context.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read."""
        self.receive(bytes(self._server.context.read_buffer[:nbytes]))

    def receive(self, data: bytes) -> None:
        """Process a part of the packet stream: CONNECT decides the worker."""
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
            self._keep()  # the server refuses it

    def end(self, fault: str) -> None:
        """Let the server end and count the connection."""
        connection = self._keep()
        connection.end(fault)

    def is_closing(self) -> bool:
        """Return whether it is being closed."""
        return self._left or self._transport.is_closing()

    @property
    def awaits_connect(self) -> bool:
        """True until CONNECT has come."""
        return self._decoder.version is None

    def abort(self) -> None:
        """End the connection at once."""
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
