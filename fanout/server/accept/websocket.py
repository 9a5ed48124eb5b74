"""MQTT over WebSocket (MQTT 5, chapter 6; RFC 6455): frames on the network side, a packet stream on the other.

It is an adapter between a transport and an MQTT connection; the `websockets` package implements the protocol itself,
sans I/O. No extension is negotiated: compression would make the shared bytes of many clients different for each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

from websockets.datastructures import MultipleValuesError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

__all__ = ["PacketStream", "WebSocket"]

_SUBPROTOCOL: Final = Subprotocol("mqtt")  # [MQTT-6.0.0-4]
_FRAME_MARGIN_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 16 * 1024
"""Limit of one read: the smallest frame has seven bytes and takes some 20 us."""

_LOGGER = logging.getLogger("fanout.websockets")
_LOGGER.setLevel(logging.ERROR)  # below it, the package logs each connection and frame


class PacketStream(Protocol):
    """Interface of the protocol that gets the packet stream of a WebSocket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start on the transport of the packet stream."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the transport was closed."""

    def pause_writing(self) -> None:
        """Record that the client reads too slowly."""

    def resume_writing(self) -> None:
        """Record that the client has caught up."""

    def receive(self, data: bytes) -> None:
        """Process a part of the packet stream."""

    def end(self, fault: str) -> None:
        """Close the connection because its WebSocket has ended; `fault` is the client's error, if any."""

    def is_closing(self) -> bool:
        """Return whether it is being closed."""

    @property
    def awaits_connect(self) -> bool:
        """True until CONNECT has come."""


class WebSocket(asyncio.BufferedProtocol):
    """One WebSocket connection: a protocol on the network side, and by `_Stream` a transport for a connection."""

    def __init__(
        self,
        connection: PacketStream,
        *,
        read_buffer: memoryview,
        packet_bytes_max: int,
        connect_bytes_max: int,
        origins: Collection[str] = (),
    ) -> None:
        """Make a WebSocket for a connection.

        Args:
            connection: Gets the packet stream.
            read_buffer: A shared read buffer; each read is processed before the next one.
            packet_bytes_max: Limit of a packet: a frame may be a little larger; a message of many frames has no limit,
                since frames are not kept.
            connect_bytes_max: Limit of CONNECT: all bytes before it is complete may be a little more.
            origins: Origins of the web pages that may connect, "*" for all; empty allows those from the same host.
        """
        self._connection = connection
        self._origins = origins
        self._refusal = ""
        self._wanted = True  # whether the connection reads
        self._full = False  # whether the client reads too slowly
        self._unread = False  # whether reading is paused because the client does not read its pongs
        self._read_buffer = read_buffer[:_READ_BYTES]
        self._transport: asyncio.Transport
        self._ended = False  # whether the network's transport is being closed
        self._early_bytes_left = connect_bytes_max + _FRAME_MARGIN_BYTES
        self._protocol = ServerProtocol(
            subprotocols=[_SUBPROTOCOL],
            max_size=(None, packet_bytes_max + _FRAME_MARGIN_BYTES),
            logger=_LOGGER,
        )

    # The network's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start on the network's transport, and start the connection on a `_Stream`."""
        self._transport = cast("asyncio.Transport", transport)
        self._connection.connection_made(_Stream(self, self._transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the connection."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Tell the connection."""
        self._full = True
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Tell the connection."""
        self._full = False
        if self._unread:
            self._unread = False
            self._set_reading()
        self._connection.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the read buffer."""
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read; the connection gets the data of all their frames at once."""
        protocol = self._protocol
        if self.has_ended():
            return
        protocol.receive_data(bytes(self._read_buffer[:nbytes]))
        pieces: list[bytes] = []
        for event in protocol.events_received():
            if isinstance(event, Request):
                if not protocol.eof_sent:  # otherwise invalid bytes followed the request, and there is no answer
                    self._answer(event)
            elif isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
                    protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")
                    break
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    pieces.append(bytes(event.data))
        answered = self._flush()
        if pieces and not self._connection.is_closing():
            self._connection.receive(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if answered and self._full and not self._unread:
            self._unread = True
            self._set_reading()
        if self._early_bytes_left and not self.has_ended():
            self._limit_early(nbytes)
        if self.has_ended() and not self._connection.is_closing():
            self._connection.end(self._fault())

    def _limit_early(self, nbytes: int) -> None:
        """Fail when more bytes come before CONNECT than it may have: an incomplete frame is kept in memory."""
        if not self._connection.awaits_connect:
            self._early_bytes_left = 0
            return
        self._early_bytes_left -= nbytes
        if self._early_bytes_left <= 0:
            self._refusal = "too much came before CONNECT"
            self._protocol.fail(CloseCode.MESSAGE_TOO_BIG, self._refusal)
            self._flush()

    def _answer(self, request: Request) -> None:
        """Answer the handshake."""
        protocol = self._protocol
        if self._has_allowed_origin(request):
            protocol.send_response(protocol.accept(request))  # 400 without the subprotocol [MQTT-6.0.0-3]
        else:
            self._refusal = "an origin that is not allowed"
            protocol.send_response(protocol.reject(HTTPStatus.FORBIDDEN, "This origin is not allowed.\n"))

    def _has_allowed_origin(self, request: Request) -> bool:
        """Return whether a request comes from an allowed web page, or from no page (RFC 6455, section 10.2)."""
        try:
            origin, host = request.headers.get("Origin"), request.headers.get("Host", "")
        except MultipleValuesError:
            return False
        if origin is None:
            return True
        if self._origins:
            return "*" in self._origins or origin.lower() in self._origins
        return _host_of(origin.partition("://")[2]) == _host_of(host) != ""

    def _fault(self) -> str:
        """Return the client's error; an empty text when it closed in good order."""
        protocol = self._protocol
        error = protocol.handshake_exc or protocol.parser_exc
        if self._refusal or error is not None:
            return self._refusal or str(error)
        return "" if protocol.close_rcvd is not None else "a text frame"

    def _flush(self) -> bool:
        """Write the output of the protocol; return whether there was any."""
        writes = self._protocol.data_to_send()
        data = b"".join(writes)
        if data and not self._transport.is_closing():
            self._transport.write(data)
        if b"" in writes:  # the end of the stream
            self._ended = True
            self._transport.close()
        return bool(data)

    def _set_reading(self) -> None:
        """Read while the connection reads and the client reads its pongs."""
        if self._transport.is_closing():
            return
        if self._wanted and not self._unread:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # The connection's side.

    def hand_on(self, connection: PacketStream) -> None:
        """Pass the packet stream to another connection from now on."""
        self._connection = connection

    def has_ended(self) -> bool:
        """Return whether the WebSocket has ended in both directions."""
        return self._ended

    def send(self, data: bytes) -> None:
        """Write packets as one frame."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self._flush()

    def want(self, *, wanted: bool) -> None:
        """Record whether the connection reads."""
        self._wanted = wanted
        self._set_reading()

    def close(self) -> None:
        """Start the closing handshake; the connection aborts when the client does not answer in time."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()
        elif self._protocol.state is State.CONNECTING:
            self._transport.close()


class _Stream(asyncio.Transport):
    """Transport for a connection, on top of a WebSocket."""

    def __init__(self, websocket: WebSocket, transport: asyncio.Transport) -> None:
        super().__init__()
        self._websocket = websocket
        self._transport = transport
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._websocket.send(bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._websocket.close()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._websocket.hand_on(cast("PacketStream", protocol))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._websocket.want(wanted=False)

    def resume_reading(self) -> None:
        self._websocket.want(wanted=True)


def _host_of(authority: str) -> str:
    """Return the host of `host:port`, in lower case."""
    host, _, port = authority.lower().rpartition(":")
    return host if host and port.isdigit() else authority.lower()
