"""The Network Connection of a link: reads in large pieces, and reads first while a snapshot arrives.

Owns the socket and its buffers. It must not know what the bytes mean.

While a retained set arrives, a primary drops what does not fit its queue when the reader is slow. So then
(`read_ahead`) a read is only put aside, and decoded in slices of about a millisecond, with a chance to read
between two of them. Otherwise a read is handed over at once: one read, one batch; after one that was costly to
handle, what comes gathers for a moment (`fanout.link.transport.coalescing`).
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
from typing import cast

from fanout.config import Address
from fanout.errors import PrimaryUnreachable, WebSocketRefused
from fanout.link.transport.coalescing import GATHERED_BYTES, gathering_s
from fanout.link.transport.tls import LinkTls, peer_expires_s
from fanout.link.transport.websocket import WebSocketClient

__all__ = ["READ_AHEAD_FACTOR", "LinkConnection", "connect"]

_READ_BYTES = 256 * 1024
_SLICE_BYTES = 64 * 1024
"""About 600 updates of 64 bytes, which take about a millisecond."""
READ_AHEAD_FACTOR = 64
"""So many receive buffers may be read ahead; beyond, the socket has to wait after all."""
_CLOSE_TIMEOUT_S = 1.0
_SMALL_READ_BYTES = 4096
"""A read below it may be the first of two small packets, of which the primary sends the second when the first is
acknowledged (Nagle's algorithm; Mosquitto leaves it on): the system would wait 40 ms with that. Larger ones are
acknowledged at once anyway."""
_FRAME_BYTES_MAX = 16 * 1024 * 1024
_NEVER_S = 10 * 86_400.0
_OTHER_PROTOCOLS = ((b"\x15\x03", "TLS"), (b"HTTP/", "HTTP"))
"""How the first answer begins of what is no MQTT server: an alert of TLS, a status line."""
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux


class LinkConnection(asyncio.BufferedProtocol):
    """One connection to a primary: the stream of packets, with or without TLS and WebSocket below it.

    Attributes:
        read_ahead: Whether to read before decoding.
        socket: What it reads from, for the options of the system; `connect` sets it.
        error: Why the connection was lost; None when the primary closed it.
        closed: Set when the connection is gone and everything that was read has been handed over.
    """

    def __init__(
        self,
        *,
        on_data: Callable[[bytes], None],
        on_closed: Callable[[], None],
        read_ahead_bytes_max: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a protocol for `connect`.

        Args:
            on_data: Takes what was read, in order; must not raise.
            on_closed: Told once, when `closed` is set.
            read_ahead_bytes_max: How much may be read before it is decoded.
            monotonic: Returns seconds, to see how long `on_data` takes.
        """
        self.read_ahead = True
        self.closed = asyncio.Event()
        self.error: Exception | None = None
        self.socket: socket.socket | None = None
        self.speaks: Callable[[str], Exception] | None = None
        """Makes the error for a peer that does not speak MQTT, but a protocol of that name; `connect` sets it."""
        self._on_data: Callable[[bytes], None] = self._take_first
        """What takes a read: first a look at what the peer speaks, then the link."""
        self._on_mqtt = on_data
        self._on_closed = on_closed
        self._read_ahead_bytes_max = read_ahead_bytes_max
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._decoding = False
        """Whether a call of `_decode_slice` is due."""
        self._monotonic = monotonic
        self._coalescing: asyncio.TimerHandle | None = None
        """Until it is over, reads are put aside."""
        self._answered = False
        """Whether something was written since the last read was begun to be handled."""
        self._lost = False
        self._reading = True
        self._writable = True
        self._held = False
        self._transport: asyncio.Transport | None = None

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its class

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next read goes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take a read."""
        self.receive(bytes(self._buffer[:nbytes]))

    def receive(self, data: bytes) -> None:
        """Take what was read."""
        nbytes = len(data)
        if not (self.read_ahead or self._pending or self._held or self._coalescing):
            self._hand_over(data)
        else:
            self._pending.append(data)
            self._pending_bytes += nbytes
            self._adjust_reading()
            if self._coalescing is not None and self._pending_bytes >= GATHERED_BYTES:
                self._end_gathering()
            self._schedule()
        if nbytes < _SMALL_READ_BYTES and self.socket is not None and _QUICKACK is not None:
            # The system forgets it with the next write, so it is said with each read; behind the delivery, which it
            # would keep waiting. The transport is still there: it closes no sooner than with the next turn.
            self.socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    def eof_received(self) -> bool:
        """Close: a primary that has closed its side takes nothing more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end; what was read before is still handed over."""
        self.error = self.error or exc
        self._lost = True
        if not self._pending:
            self._finish()

    def pause_writing(self) -> None:
        """Stop reading: the primary does not read our acknowledgements."""
        self._writable = False
        self._adjust_reading()

    def resume_writing(self) -> None:
        """Read again."""
        self._writable = True
        self._adjust_reading()

    # --- what the link calls ---

    def write(self, data: bytes) -> None:
        """Write `data`; a connection that is closing drops it."""
        if data and self._transport is not None and not self._transport.is_closing():
            self._answered = True
            self._transport.write(data)

    def hold(self, held: bool) -> None:
        """Hand nothing over and read nothing while held."""
        self._held = held
        self._adjust_reading()
        if self._pending:
            self._schedule()

    async def close(self) -> None:
        """Close after what was written has left, for a second at most; what is read from now on is dropped."""
        self._pending.clear()
        self._pending_bytes = 0
        if self._transport is None:
            return
        if self._lost:
            self._finish()
            return
        self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.closed.wait()
        except TimeoutError:
            self._transport.abort()
            self._finish()

    # --- reading ahead, and gathering ---

    def _hand_over(self, data: bytes) -> None:
        """Hand a read over, and let the next ones gather when that was costly.

        Not after an answer: the primary may have as many messages in flight as it likes to, and wait for more answers
        before it sends more.
        """
        self._answered = False
        started = self._monotonic()
        self._on_data(data)
        if self.read_ahead or self._answered:
            return
        delay_s = gathering_s(cost_s=self._monotonic() - started, read_bytes=len(data))
        if delay_s:
            self._coalescing = asyncio.get_running_loop().call_later(delay_s, self._end_gathering)

    def _take_first(self, data: bytes) -> None:
        """Look whether the first bytes are MQTT at all, then be out of the way."""
        self._on_data = self._on_mqtt
        other = next((name for start, name in _OTHER_PROTOCOLS if data.startswith(start)), "")
        if not other or self.speaks is None:
            self._on_mqtt(data)
        elif self._transport is not None:
            self.error = self.speaks(other)
            self._transport.abort()

    def _end_gathering(self) -> None:
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
        self._hand_over(data)
        self._adjust_reading()
        if self._pending:
            self._schedule()
        elif self._lost:
            self._finish()

    def _adjust_reading(self) -> None:
        if self._transport is None or self._lost or self._transport.is_closing():
            return
        high, low = self._read_ahead_bytes_max, self._read_ahead_bytes_max // 2
        wanted = self._writable and not self._held and self._pending_bytes <= (high if self._reading else low)
        if wanted and not self._reading:
            self._transport.resume_reading()
        elif self._reading and not wanted:
            self._transport.pause_reading()
        self._reading = wanted

    def _finish(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            self._on_closed()


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
        protocol: Unused so far.
        address: Where; every IP address of the host is tried.
        receive_buffer_bytes: Receive buffer asked from the system.
        timeout_s: How long it may take.
        tls: Of an address with TLS, from `load_tls`.
        frame_bytes_max: Of an address with WebSocket: the largest packet.

    Returns:
        When the certificate that the primary showed expires, in Unix seconds; None without TLS.

    Raises:
        PrimaryUnreachable: Nothing accepted the connection in time.
        TlsFailed: No TLS could be agreed on.
        WebSocketRefused: It is no WebSocket that speaks MQTT.
    """
    loop = asyncio.get_running_loop()
    protocol.speaks = partial(_other_protocol, address)
    websocket = (
        WebSocketClient(protocol, address=address, frame_bytes_max=frame_bytes_max) if address.has_websocket else None
    )
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
                        transport = await _hand_socket(endpoint, protocol, address, tls=tls)
                    else:
                        transport = await _open_websocket(endpoint, websocket, address, tls=tls)
                    return None if tls is None else peer_expires_s(transport.get_extra_info("ssl_object"))
    except TimeoutError as error:
        reason = f"no answer within {timeout_s:g} s"
        if websocket is not None and websocket.asked:
            raise WebSocketRefused(address=str(address), problem=reason) from error
        if tls is not None and protocol.socket is not None:
            raise tls.failure(error, address) from error
    except OSError as error:  # the name is not known
        reason = _reason(error)
    raise PrimaryUnreachable(
        f"cannot connect to {address}: {reason}", hint="Check that the primary runs and can be reached from here"
    )


async def _hand_socket(
    endpoint: socket.socket, protocol: asyncio.BaseProtocol, address: Address, *, tls: LinkTls | None
) -> asyncio.BaseTransport:
    """Give a connected socket to a protocol; who cancels that closes the protocol, and finds it with its transport.

    So a cancellation waits the one or two turns that it takes: uvloop closes a transport that is given up in between,
    and never tells the protocol that it is lost. A TLS handshake is given up at once, and the protocol hears of none.

    Raises:
        TlsFailed: No TLS could be agreed on.
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
            ssl_handshake_timeout=_NEVER_S,  # the caller's comes first
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
        transport = await _hand_socket(endpoint, websocket, address, tls=tls)
        await websocket.open()
    except BaseException as error:
        websocket.abort()
        if isinstance(error, ssl.SSLError) and tls is not None:  # an alert behind the handshake
            raise tls.failure(error, address) from error
        raise
    return transport


def _other_protocol(address: Address, spoken: str) -> PrimaryUnreachable:
    hint = "Write the port of its MQTT listener; or ws:// with its path, where it serves MQTT over WebSocket"
    if spoken == "TLS":
        hint = f"Write {'wss' if address.has_websocket else 'mqtts'}:// in primary"
    return PrimaryUnreachable(f"what listens on {address} speaks {spoken}, not MQTT", hint=hint)


def _reason(error: OSError) -> str:
    """Return why, in the system's words; asyncio puts its own, with the address again, in place of them."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _make_socket(
    family: socket.AddressFamily | int, kind: socket.SocketKind | int, number: int, *, receive_buffer_bytes: int
) -> socket.socket:
    endpoint = socket.socket(family, kind, number)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    # Linux counts twice what it grants, and grants what net.core.rmem_max allows. Less than asked is worse than not
    # having asked: a buffer with a fixed size no longer grows by itself.
    if endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < receive_buffer_bytes:
        endpoint.close()
        endpoint = socket.socket(family, kind, number)
    endpoint.setblocking(False)
    endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return endpoint
