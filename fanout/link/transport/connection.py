"""Network Connection of a link: the socket and its buffers, with large reads and reading ahead.

While a retained set arrives, a primary drops messages that exceed its queue when the reader is slow. In that phase
(`read_ahead`) a read is only queued, and decoded in slices of about a millisecond, with a chance to read
between two of them. Otherwise a read is delivered at once: one read, one batch. After a read that was costly to
handle, the next ones are coalesced for a moment (`fanout.link.transport.coalescing`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from fanout.config import Address
from fanout.errors import PrimaryUnreachable, WebSocketRefused
from fanout.link.transport.coalescing import COALESCED_BYTES, FREE_S, coalescing_s
from fanout.link.transport.tls import LinkTls, peer_expires_s

if TYPE_CHECKING:
    from fanout.link.transport.websocket import WebSocketClient

__all__ = ["READ_AHEAD_FACTOR", "LinkConnection", "connect", "is_close"]

_FULL_READ_BYTES = 192 * 1024
"""A larger read has filled the buffer of the event loop, or nearly: 250 KiB with uvloop, 256 KiB without."""
_SLICE_BYTES = 64 * 1024
"""About 600 updates of 64 bytes, which take about a millisecond."""
READ_AHEAD_FACTOR = 64
"""Number of receive buffers that may be read ahead; beyond it reading pauses."""
_TURN_S = 0.002
"""A full read that took longer ends the turn of its connection: uvloop would read up to 32 times
before it turns to other sockets."""
_CLOSE_TIMEOUT_S = 1.0
_SMALL_READ_BYTES = 4096
"""A smaller read may be the first of two small packets, and the primary sends the second only when the first is
acknowledged (Nagle's algorithm; Mosquitto leaves it on). The system would delay that acknowledgement by 40 ms; it
acknowledges larger reads at once."""
_FRAME_BYTES_MAX = 16 * 1024 * 1024
_NEVER_S = 10 * 86_400.0
_OTHER_PROTOCOLS = ((b"\x15\x03", "TLS"), (b"HTTP/", "HTTP"))
"""First bytes of an answer that is not MQTT: an alert of TLS, a status line."""
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux


class LinkConnection(asyncio.Protocol):
    """One connection to a primary: the stream of packets, with or without TLS and WebSocket below it.

    Attributes:
        read_ahead: True to read before decoding.
        socket: Socket, for its options; `connect` sets it.
        error: Why the connection was lost; None when the primary closed it.
        closed: Set when the connection is gone and everything that was read has been delivered.
    """

    def __init__(
        self,
        *,
        on_data: Callable[[bytes], None],
        on_closed: Callable[[], None],
        read_ahead_bytes_max: int,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        """Begin without a connection; `connect` opens it.

        Args:
            on_data: Called with each read, in order; must not raise.
            on_closed: Called once, when `closed` is set.
            read_ahead_bytes_max: Bytes that may be read before they are decoded.
            monotonic: Returns seconds, to measure `on_data`; None for `time.monotonic`.
        """
        self.read_ahead = True
        self.closed = asyncio.Event()
        self.error: Exception | None = None
        self.socket: socket.socket | None = None
        self.make_protocol_error: Callable[[str], Exception] | None = None
        """Returns the error for a peer that speaks the named protocol instead of MQTT; `connect` sets it."""
        self._on_data: Callable[[bytes], None] = self._check_protocol
        """Consumer of reads: a check of the protocol for the first read, then `on_data`."""
        self._on_mqtt = on_data
        self._on_closed = on_closed
        self._read_ahead_bytes_max = read_ahead_bytes_max
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._decoding = False
        """True if a call of `_decode_slice` is scheduled."""
        # As a default it would be the clock at the import: with a simulated clock, the one of another simulation.
        self._monotonic = monotonic or time.monotonic
        self._coalescing: asyncio.TimerHandle | None = None
        """Timer until which reads are queued; None while they are not coalesced."""
        self._answered = False
        """True if something was written since the handling of the last read began."""
        self._lost = False
        self._reading = True
        self._writable = True
        self._held = False
        self._ending = False
        """True if nothing is written any more, and the primary is to close."""
        self._resting = False
        """True until the next turn of the event loop, after a read that was large and costly."""
        self._transport: asyncio.Transport | None = None

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its class

    def data_received(self, data: bytes) -> None:
        """Deliver or queue a read."""
        nbytes = len(data)
        if not (self.read_ahead or self._pending or self._held or self._coalescing):
            self._deliver(data)
        else:
            self._pending.append(data)
            self._pending_bytes += nbytes
            self._adjust_reading()
            if self._coalescing is not None and self._pending_bytes >= COALESCED_BYTES:
                self._end_coalescing()
            self._schedule()
        if nbytes < _SMALL_READ_BYTES and self.socket is not None and _QUICKACK is not None:
            # The next write resets this option, so it is set at each read; after the delivery, so as not to delay it.
            # The socket is still open: the transport closes it no sooner than in the next turn.
            self.socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    receive = data_received
    """The same for the packets in WebSocket frames."""

    def eof_received(self) -> bool:
        """Close the connection: a primary that closed its side reads nothing more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection; queued reads are still delivered."""
        self.error = self.error or exc
        self._lost = True
        if not self._pending:
            self._finish()

    def pause_writing(self) -> None:
        """Stop reading, because the primary does not read the acknowledgements."""
        self._writable = False
        self._adjust_reading()

    def resume_writing(self) -> None:
        """Resume reading."""
        self._writable = True
        self._adjust_reading()

    # --- called by the link ---

    def write(self, data: bytes) -> None:
        """Write `data`; a connection that is closing drops it."""
        if data and self._transport is not None and not (self._ending or self._transport.is_closing()):
            self._answered = True
            self._transport.write(data)

    def hold(self, held: bool) -> None:
        """Apply backpressure: deliver and read nothing while held."""
        self._held = held
        self._adjust_reading()
        if self._pending:
            self._schedule()

    async def close(self, *, after_disconnect: bool = False) -> None:
        """Close after pending output has left, within a second; further reads are dropped.

        Args:
            after_disconnect: True if a DISCONNECT was written, so that the primary closes. Until then this side reads
                on: else the system would answer what the primary still sends with a reset. The primary could lose the
                DISCONNECT to that, and keep the session.
        """
        self._pending.clear()
        self._pending_bytes = 0
        if self._transport is None:
            return
        if self._lost:
            self._finish()
            return
        if after_disconnect and self._transport.can_write_eof():
            self._ending = True
            self._on_data = _drop
            self.read_ahead = False
            self.hold(False)
            self._end_coalescing()
            try:
                self._transport.write_eof()
            except OSError:  # the primary was quicker
                self._transport.close()
        else:
            self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.closed.wait()
        except TimeoutError:
            self._transport.abort()
            self._finish()

    # --- reading ahead, and coalescing ---

    def _deliver(self, data: bytes) -> None:
        """Deliver a read, and coalesce the next ones when that was costly.

        Reads are not coalesced after an answer, because the primary may wait for it before it sends more.
        """
        self._answered = False
        started = self._monotonic()
        self._on_data(data)
        cost_s = self._monotonic() - started
        if cost_s > _TURN_S and len(data) >= _FULL_READ_BYTES:
            self._rest()
        if cost_s < FREE_S or self.read_ahead or self._answered:
            return
        delay_s = coalescing_s(cost_s=cost_s, read_bytes=len(data))
        if delay_s:
            self._coalescing = asyncio.get_running_loop().call_later(delay_s, self._end_coalescing)

    def _rest(self) -> None:
        """Read nothing until the event loop has served other sockets."""
        if not self._resting:
            self._resting = True
            self._adjust_reading()
            asyncio.get_running_loop().call_soon(self._end_rest)

    def _end_rest(self) -> None:
        self._resting = False
        self._adjust_reading()

    def _check_protocol(self, data: bytes) -> None:
        """Check that the first bytes are not those of another protocol; later reads go to the link directly."""
        self._on_data = self._on_mqtt
        other = next((name for start, name in _OTHER_PROTOCOLS if data.startswith(start)), "")
        if not other or self.make_protocol_error is None:
            self._on_mqtt(data)
        elif self._transport is not None:
            self.error = self.make_protocol_error(other)
            self._transport.abort()

    def _end_coalescing(self) -> None:
        if self._coalescing is not None:
            self._coalescing.cancel()
            self._coalescing = None
        if self._pending:
            self._schedule()

    def _schedule(self) -> None:
        if not self._decoding and not self._held and self._coalescing is None:
            self._decoding = True
            asyncio.get_running_loop().call_soon(self._decode_slice)

    def _decode_slice(self) -> None:
        self._decoding = False
        if not self._pending or self._held:
            return
        pieces = [self._pending.popleft()]
        size = len(pieces[0])
        while self._pending and size + len(self._pending[0]) <= _SLICE_BYTES:
            pieces.append(self._pending.popleft())
            size += len(pieces[-1])
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if size > _SLICE_BYTES:
            self._pending.appendleft(data[_SLICE_BYTES:])
            data = data[:_SLICE_BYTES]
        self._pending_bytes -= len(data)
        self._deliver(data)
        self._adjust_reading()
        if self._pending:
            self._schedule()
        elif self._lost:
            self._finish()

    def _adjust_reading(self) -> None:
        if self._transport is None or self._lost or self._transport.is_closing():
            return
        high, low = self._read_ahead_bytes_max, self._read_ahead_bytes_max // 2
        wanted = (
            self._writable
            and not self._held
            and not self._resting
            and self._pending_bytes <= (high if self._reading else low)
        )
        if wanted and not self._reading:
            self._transport.resume_reading()
        elif self._reading and not wanted:
            self._transport.pause_reading()
        self._reading = wanted

    def _finish(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            self._on_closed()


def _drop(data: bytes) -> None:
    """Take a read that nobody wants any more."""


async def connect(
    protocol: LinkConnection,
    address: Address,
    *,
    receive_buffer_bytes: int,
    timeout_s: float,
    tls: LinkTls | None = None,
    frame_bytes_max: int = _FRAME_BYTES_MAX,
) -> int | None:
    """Connect `protocol` to a primary, as its address says: with TLS, with WebSocket, or with neither.

    Args:
        protocol: A connection that was not opened yet.
        address: Address of the primary; every IP address of the host is tried.
        receive_buffer_bytes: Receive buffer requested from the system.
        timeout_s: Seconds that it may take.
        tls: TLS from `load_tls`, for an address with TLS.
        frame_bytes_max: Largest packet, for an address with WebSocket.

    Returns:
        When the primary's certificate expires, in Unix seconds; None without TLS.

    Raises:
        PrimaryUnreachable: Nothing accepted the connection in time.
        TlsFailed: The TLS handshake failed.
        WebSocketRefused: The WebSocket handshake failed.
    """
    loop = asyncio.get_running_loop()
    protocol.make_protocol_error = partial(_other_protocol, address)
    websocket: WebSocketClient | None = None
    if address.has_websocket:
        from fanout.link.transport.websocket import WebSocketClient  # most links do without it

        websocket = WebSocketClient(protocol, address=address, frame_bytes_max=frame_bytes_max)
    reason = "no address was found"
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            for family, kind, number, _, place in found:
                endpoint = _make_socket(family, kind, number, receive_buffer_bytes=receive_buffer_bytes)
                try:
                    await loop.sock_connect(endpoint, place)
                except OSError as error:
                    endpoint.close()
                    reason = _reason(error)
                except BaseException:
                    endpoint.close()
                    raise
                else:
                    protocol.socket = endpoint
                    if websocket is None:
                        transport = await _attach_socket(endpoint, protocol, address, tls=tls)
                    else:
                        transport = await _open_websocket(endpoint, websocket, address, tls=tls)
                    return None if tls is None else peer_expires_s(transport.get_extra_info("ssl_object"))
    except TimeoutError as error:
        reason = f"no answer within {timeout_s:g} s"
        if websocket is not None and websocket.asked:
            raise WebSocketRefused(address=str(address), problem=reason) from error
        if tls is not None and protocol.socket is not None:
            raise tls.failure(error, address) from error
    except OSError as error:  # the host name is unknown
        reason = _reason(error)
    raise PrimaryUnreachable(
        f"cannot connect to {address}: {reason}", hint="Check that the primary runs and can be reached from here"
    )


async def _attach_socket(
    endpoint: socket.socket, protocol: asyncio.BaseProtocol, address: Address, *, tls: LinkTls | None
) -> asyncio.BaseTransport:
    """Attach a connected socket to a protocol.

    A cancellation waits the one or two turns until the protocol has its transport, so that the caller can close it:
    uvloop closes a transport that is abandoned in between without telling the protocol. A TLS handshake is abandoned at
    once; its protocol has no transport yet.

    Raises:
        TlsFailed: The TLS handshake failed.
    """
    loop = asyncio.get_running_loop()
    making = (
        loop.create_connection(lambda: protocol, sock=endpoint)
        if tls is None
        else loop.create_connection(
            lambda: protocol,
            sock=endpoint,
            ssl=tls.context,
            server_hostname=tls.server_hostname,
            ssl_handshake_timeout=_NEVER_S,  # the timeout of the caller comes first
        )
    )
    handing = asyncio.ensure_future(making)
    try:
        transport, _ = await asyncio.shield(handing)
    except asyncio.CancelledError:
        if tls is not None:
            handing.cancel()
        await asyncio.wait([handing])
        _ = handing.cancelled() or handing.exception()  # seen
        raise
    except OSError as error:
        if tls is None:
            raise
        raise tls.failure(error, address) from error
    return transport


async def _open_websocket(
    endpoint: socket.socket, websocket: WebSocketClient, address: Address, *, tls: LinkTls | None
) -> asyncio.BaseTransport:
    try:
        transport = await _attach_socket(endpoint, websocket, address, tls=tls)
        await websocket.open()
    except BaseException as error:
        websocket.abort()
        if isinstance(error, ssl.SSLError) and tls is not None:  # an alert may come after the handshake
            raise tls.failure(error, address) from error
        raise
    return transport


def _other_protocol(address: Address, spoken: str) -> PrimaryUnreachable:
    hint = "Write the port of its MQTT listener; or ws:// with its path, if it serves MQTT over WebSocket"
    if spoken == "TLS":
        hint = f"Write {'wss' if address.has_websocket else 'mqtts'}:// in primary"
    return PrimaryUnreachable(f"the server at {address} speaks {spoken}, not MQTT", hint=hint)


def _reason(error: OSError) -> str:
    """Return the system's text of an error; asyncio replaces it by its own, which repeats the address."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _make_socket(
    family: socket.AddressFamily | int, kind: socket.SocketKind | int, number: int, *, receive_buffer_bytes: int
) -> socket.socket:
    endpoint = socket.socket(family, kind, number)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    # Linux reports twice the size that it grants, which net.core.rmem_max limits. A buffer of a fixed size no longer
    # grows by itself, so with less than requested the default is better.
    if endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < receive_buffer_bytes:
        endpoint.close()
        endpoint = socket.socket(family, kind, number)
    endpoint.setblocking(False)
    endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return endpoint


def is_close(error: Exception | None) -> bool:
    """Say whether a connection ended because the other end closed it, and neither the network nor TLS failed.

    Args:
        error: `LinkConnection.error`.
    """
    return error is None or isinstance(error, ConnectionResetError | BrokenPipeError)
