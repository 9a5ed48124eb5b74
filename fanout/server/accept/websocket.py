"""WebSocket of a listener: the handshake with a client, and the limits before CONNECT (`fanout.runtime.websocket`)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from http import HTTPStatus
from typing import Final, Protocol, cast

from websockets.datastructures import MultipleValuesError
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from fanout.runtime.websocket import (
    FRAME_MARGIN_BYTES,
    SUBPROTOCOL,
    WEBSOCKET_LOGGER,
    PacketReceiver,
    PacketTransport,
    WebSocketEnd,
)

__all__ = ["PacketStream", "WebSocket"]

_READ_BYTES: Final = 16 * 1024
"""Limit of one read: the smallest frame has seven bytes and takes some 20 us."""


class PacketStream(PacketReceiver, Protocol):
    """Interface of the protocol that gets the packet stream of a WebSocket."""

    def end(self, fault: str) -> None:
        """Close the connection because its WebSocket has ended; `fault` is the client's error, if any."""

    def is_closing(self) -> bool:
        """Return whether it is being closed."""

    def count_early(self, nbytes: int) -> None:
        """Count bytes that were read before CONNECT was complete."""

    def continue_later(self) -> None:
        """Read and process nothing more in this turn of the event loop."""

    @property
    def awaits_connect(self) -> bool:
        """True until CONNECT has come."""


class WebSocket(WebSocketEnd[PacketStream]):
    """The server's end of one WebSocket connection."""

    _protocol: ServerProtocol

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
        self._origins = origins
        self._refusal = ""
        self._early_bytes_left = connect_bytes_max + FRAME_MARGIN_BYTES
        protocol = ServerProtocol(
            subprotocols=[SUBPROTOCOL], max_size=(None, packet_bytes_max + FRAME_MARGIN_BYTES), logger=WEBSOCKET_LOGGER
        )
        super().__init__(connection, protocol, read_buffer=read_buffer[:_READ_BYTES])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start on the network's transport, and start the connection on a `PacketTransport`."""
        super().connection_made(transport)
        self._receiver.connection_made(PacketTransport(self, self._transport))

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read; the connection gets the data of all their frames at once."""
        if self.has_ended():
            return
        self._read(bytes(self._read_buffer[:nbytes]))
        if self._early_bytes_left and not self.has_ended():
            self._limit_early(nbytes)
        if self.has_ended() and not self._receiver.is_closing():
            self._receiver.end(self._fault())
        elif nbytes == len(self._read_buffer) and not self._receiver.is_closing():
            self._receiver.continue_later()  # uvloop would read up to 32 times before it turns to other sockets

    def _delivers(self) -> bool:
        return not self._receiver.is_closing()

    def _limit_early(self, nbytes: int) -> None:
        """Fail when more bytes come before CONNECT than it may have: an incomplete frame is kept in memory."""
        if not self._receiver.awaits_connect:
            self._early_bytes_left = 0
            return
        self._early_bytes_left -= nbytes
        self._receiver.count_early(nbytes)
        if self._early_bytes_left <= 0:
            self._refusal = "too much came before CONNECT"
            self._protocol.fail(CloseCode.MESSAGE_TOO_BIG, self._refusal)
            self._flush()

    def _take_handshake(self, message: Request | Response) -> None:
        """Answer the handshake."""
        protocol, request = self._protocol, cast("Request", message)
        if protocol.eof_sent:  # invalid bytes followed the request, and there is no answer
            return
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


def _host_of(authority: str) -> str:
    """Return the host of `host:port`, in lower case."""
    host, _, port = authority.lower().rpartition(":")
    return host if host and port.isdigit() else authority.lower()
