"""WebSocket below MQTT (MQTT 5, chapter 6; RFC 6455): frames on the network side, a stream of packets on the other.

It joins the `websockets` package, which does the protocol without I/O, with a transport and a connection. Links and
listeners derive their ends from it and add the handshake. No extension is negotiated: compression would make the bytes
that many clients share different for each, and costs more than it saves in a plant's network.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from fanout.runtime.gc_freeze import let_go

__all__ = ["FRAME_MARGIN_BYTES", "SUBPROTOCOL", "WEBSOCKET_LOGGER", "PacketReceiver", "PacketTransport", "WebSocketEnd"]

SUBPROTOCOL: Final = Subprotocol("mqtt")  # [MQTT-6.0.0-4]
FRAME_MARGIN_BYTES: Final = 64 * 1024
"""Bytes by which a frame may be larger than the largest packet."""

WEBSOCKET_LOGGER = logging.getLogger("fanout.websockets")
WEBSOCKET_LOGGER.setLevel(logging.ERROR)  # below it, the package logs each connection and frame


class PacketReceiver(Protocol):
    """Interface of the protocol that gets the packet stream of a WebSocket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start on the transport of the packet stream."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the transport was closed."""

    def pause_writing(self) -> None:
        """Record that the peer reads too slowly."""

    def resume_writing(self) -> None:
        """Record that the peer has caught up."""

    def receive(self, data: bytes) -> None:
        """Process a part of the packet stream."""


R = TypeVar("R", bound=PacketReceiver)


class WebSocketEnd(asyncio.BufferedProtocol, abc.ABC, Generic[R]):
    """One end of a WebSocket connection: a protocol to the network; `PacketTransport` is the transport for packets."""

    def __init__(self, receiver: R, protocol: ClientProtocol | ServerProtocol, *, read_buffer: memoryview) -> None:
        self._receiver = receiver
        self._protocol = protocol
        self._read_buffer = read_buffer
        self._transport: asyncio.Transport
        self._ended = False  # whether the network's transport is being closed
        self._got_text = False  # whether the peer broke MQTT by a frame of text
        self._wanted = True  # whether the receiver reads
        self._full = False  # whether the peer reads too slowly
        self._unread = False  # whether reading is paused because the peer does not read its pongs

    # The network's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start on the network's transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the receiver."""
        self._receiver.connection_lost(exc)
        let_go(self._transport)

    def pause_writing(self) -> None:
        """Tell the receiver."""
        self._full = True
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        """Tell the receiver."""
        self._full = False
        if self._unread:
            self._unread = False
            self._set_reading()
        self._receiver.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the read buffer."""
        return self._read_buffer

    @abc.abstractmethod
    def _take_handshake(self, message: Request | Response) -> None:
        """Process the peer's part of the handshake."""

    @abc.abstractmethod
    def _delivers(self) -> bool:
        """Return whether the receiver takes packets now."""

    def _read(self, data: bytes) -> None:
        """Process bytes that were read: the receiver gets all their packets at once, wherever frames begin and end."""
        protocol = self._protocol
        protocol.receive_data(data)
        pieces: list[bytes] = []
        for event in protocol.events_received():
            if not isinstance(event, Frame):
                self._take_handshake(event)
            elif event.opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
                protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")
                self._got_text = True
                break
            elif event.opcode in (Opcode.BINARY, Opcode.CONT):
                pieces.append(bytes(event.data))
        answered = self._flush()
        if pieces and self._delivers():
            self._receiver.receive(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if answered and self._full and not self._unread:
            self._unread = True
            self._set_reading()

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
        """Read while the receiver reads and the peer reads its pongs."""
        if self._transport.is_closing():
            return
        if self._wanted and not self._unread:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # The receiver's side, by `PacketTransport`.

    def has_ended(self) -> bool:
        """Return whether the WebSocket has ended in both directions."""
        return self._ended

    def hand_on(self, receiver: R) -> None:
        """Pass the packet stream to another receiver from now on."""
        self._receiver = receiver

    def send(self, data: bytes) -> None:
        """Write packets as one frame."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self._flush()

    def want(self, *, wanted: bool) -> None:
        """Record whether the receiver reads."""
        self._wanted = wanted
        self._set_reading()

    def close(self) -> None:
        """Start the closing handshake; the receiver aborts when the peer does not answer in time."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()
        elif self._protocol.state is State.CONNECTING:
            self._transport.close()


class PacketTransport(asyncio.Transport, Generic[R]):
    """Transport for the receiver of packets, on top of a WebSocket."""

    def __init__(self, websocket: WebSocketEnd[R], transport: asyncio.Transport) -> None:
        super().__init__()
        self._websocket = websocket
        self._transport = transport
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write packets as one frame."""
        self._websocket.send(bytes(data))

    def can_write_eof(self) -> bool:
        """Return False: the closing handshake ends both directions."""
        return False

    def close(self) -> None:
        """Start the closing handshake, once."""
        if not self._closing:
            self._closing = True
            self._websocket.close()

    def is_closing(self) -> bool:
        """Return whether it is being closed, by either side."""
        return self._closing or self._transport.is_closing()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the network's transport tells."""
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass the packet stream to another receiver."""
        self._websocket.hand_on(cast("R", protocol))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks of the network's transport."""
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the network's transport has not sent."""
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Stop reading."""
        self._websocket.want(wanted=False)

    def resume_reading(self) -> None:
        """Read again."""
        self._websocket.want(wanted=True)
