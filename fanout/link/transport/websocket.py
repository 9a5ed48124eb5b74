"""MQTT over WebSocket for a link (MQTT 5, chapter 6; RFC 6455): frames to the network, a byte stream to the link.

The `websockets` package does the protocol without I/O; this module joins it with a transport and a link's connection.
No extension is offered, because compression would cost more than it saves in a plant's network.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, Final, Protocol, cast

from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from fanout.config import Address
from fanout.errors import LinkLost, WebSocketRefused

__all__ = ["StreamReceiver", "WebSocketClient"]

_SUBPROTOCOL: Final = Subprotocol("mqtt")  # [MQTT-6.0.0-4]
_FRAME_MARGIN_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 256 * 1024
_ANSWER_BYTES_MAX: Final = 64 * 1024
"""Size of the longest answer to the handshake."""
_SHOWN_CHARACTERS_MAX: Final = 200
"""Characters shown of an error, which may quote the answer."""
_HTTP: Final = b"HTTP/"
_STATUS_LINE: Final = re.compile(rb"HTTP/[0-9.]+ ([0-9]{3})[ \r\n]")
_SWITCHING: Final = "101"

_LOGGER = logging.getLogger("fanout.websockets.client")
_LOGGER.setLevel(logging.ERROR)  # at lower levels the package logs each connection and frame


class StreamReceiver(Protocol):
    """Receiver of the stream of packets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of packets."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""

    def pause_writing(self) -> None:
        """Note that the primary reads too slowly."""

    def resume_writing(self) -> None:
        """Note that the primary has caught up."""

    def receive(self, data: bytes) -> None:
        """Take a piece of the stream of packets."""


class WebSocketClient(asyncio.BufferedProtocol):
    """One WebSocket connection: a protocol to the network, and through `_Stream` a transport to a connection.

    Attributes:
        asked: Whether the request of the handshake was sent.
    """

    def __init__(self, receiver: StreamReceiver, *, address: Address, frame_bytes_max: int) -> None:
        """Begin without a handshake; the receiver is not called before `open` is done.

        Args:
            receiver: Receiver of the stream of packets.
            address: Address of the primary.
            frame_bytes_max: Largest frame, hence about the largest packet, that is read.
        """
        self.asked = False
        self._receiver = receiver
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._answer = b""
        """Bytes of the answer to the handshake so far."""
        self._is_open = False
        self._fault: Exception | None = None
        self._protocol = ClientProtocol(
            WebSocketURI(address.has_tls, _ascii(address.host), address.port, address.path or "/", ""),
            subprotocols=[_SUBPROTOCOL],
            max_size=(None, frame_bytes_max + _FRAME_MARGIN_BYTES),
            logger=_LOGGER,
        )

    async def open(self) -> None:
        """Do the handshake, and give the receiver its transport.

        A caller that cancels it must call `abort`.

        Raises:
            WebSocketRefused: The primary refuses WebSocket.
        """
        self.asked = True
        self._protocol.send_request(self._protocol.connect())
        self._flush()
        await self._opened

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def refusal(self) -> WebSocketRefused:
        """Error for a handshake that did not complete."""
        if (status := self._status()) and status != _SWITCHING:
            return self._refused(status=status)
        return self._refused(problem="its answer is no handshake of WebSocket" if self._answer else "it gave no answer")

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the network's transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the receiver, or fail the handshake."""
        if not self._is_open:
            self._fail(exc if isinstance(exc, OSError) and not self._answer else self.refusal)
            return
        self._receiver.connection_lost(self._fault or exc)

    def eof_received(self) -> bool:
        """Close; an answer without a length ends here."""
        if not self._is_open:
            self._protocol.receive_eof()
        return False

    def pause_writing(self) -> None:
        """Tell the receiver, which then stops reading, so that no pongs pile up."""
        if self._is_open:
            self._receiver.pause_writing()

    def resume_writing(self) -> None:
        """Tell the receiver."""
        if self._is_open:
            self._receiver.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take a read; all packets in it go to the receiver at once, wherever frames begin and end."""
        protocol, data = self._protocol, bytes(self._buffer[:nbytes])
        if not self._is_open:
            self._answer += data
            is_http = self._answer.startswith(_HTTP[: len(self._answer)])
            if not is_http or self._status() not in ("", _SWITCHING):  # whatever follows
                self._fail(self.refusal)
                self.abort()
                return
        protocol.receive_data(data)
        pieces: list[bytes] = []
        for event in protocol.events_received():
            if isinstance(event, Response):
                self._take_answer()
            elif isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
                    protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")
                    self._fault = LinkLost("the primary sent a WebSocket frame with text")
                    break
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    pieces.append(bytes(event.data))
        self._flush()
        if not self._is_open:
            if protocol.handshake_exc is not None or len(self._answer) > _ANSWER_BYTES_MAX:
                self._fail(self.refusal)
                self.abort()
            return
        self._answer = b""
        if pieces:
            self._receiver.receive(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if protocol.state is not State.OPEN and self._transport is not None:
            self._fault = self._fault or protocol.parser_exc
            self._transport.close()

    def _take_answer(self) -> None:
        """Give the receiver its transport, unless WebSocket is refused."""
        protocol = self._protocol
        error = protocol.handshake_exc
        if error is not None:
            said = "".join(one if one.isprintable() else "?" for one in str(error)[:_SHOWN_CHARACTERS_MAX])
            self._fail(self._refused(problem=f"its answer is wrong: {said}"))
        elif protocol.subprotocol != _SUBPROTOCOL:
            self._fail(self._refused(problem="it does not speak the subprotocol mqtt"))
            self.abort()
        elif self._transport is not None:
            self._is_open = True
            self._receiver.connection_made(_Stream(self, self._transport))
            if not self._opened.done():
                self._opened.set_result(None)

    def _status(self) -> str:
        """Return the HTTP status code of the answer; empty until it is complete, or if it is not HTTP."""
        found = _STATUS_LINE.match(self._answer)
        return found[1].decode() if found else ""

    def _refused(self, *, status: str = "", problem: str = "") -> WebSocketRefused:
        return WebSocketRefused(address=str(self._address), status=status, problem=problem)

    def _fail(self, error: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # retrieved, in case no caller waits any more

    def _flush(self) -> None:
        data = b"".join(self._protocol.data_to_send())
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # --- called by the receiver ---

    def send(self, data: bytes) -> None:
        """Write packets as one frame."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self._flush()

    def close(self) -> None:
        """Send a close frame; the primary answers, or the caller aborts after some time."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()
        elif self._transport is not None:
            self._transport.close()


class _Stream(asyncio.Transport):
    """Transport that writes to a WebSocket, for the receiver."""

    def __init__(self, websocket: WebSocketClient, transport: asyncio.Transport) -> None:
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

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


def _ascii(host: str) -> str:
    """Return a host for the header Host: in ASCII, and without the zone of an IPv6 address."""
    return host.partition("%")[0] if ":" in host else host.encode("idna").decode("ascii")
