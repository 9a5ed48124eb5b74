"""WebSocket of a link: the handshake with a primary, and the reason when it refuses (`fanout.runtime.websocket`)."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from websockets.client import ClientProtocol
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.uri import WebSocketURI

from fanout.config import Address
from fanout.errors import LinkLost, WebSocketRefused
from fanout.link.transport.frame_splitter import FrameSplitter
from fanout.runtime.websocket import (
    FRAME_MARGIN_BYTES,
    SUBPROTOCOL,
    WEBSOCKET_LOGGER,
    PacketReceiver,
    PacketTransport,
    WebSocketEnd,
)

__all__ = ["WebSocketClient"]

_READ_BYTES: Final = 256 * 1024
_ANSWER_BYTES_MAX: Final = 64 * 1024
"""Size of the longest answer to the handshake."""
_SHOWN_CHARACTERS_MAX: Final = 200
"""Characters shown of an error, which may quote the answer."""
_HTTP: Final = b"HTTP/"
_STATUS_LINE: Final = re.compile(rb"HTTP/[0-9.]+ ([0-9]{3})[ \r\n]")
_SWITCHING: Final = "101"
_END_OF_ANSWER: Final = b"\r\n\r\n"


class WebSocketClient(WebSocketEnd[PacketReceiver]):
    """The link's end of one WebSocket connection.

    Attributes:
        asked: True if the request of the handshake was sent.
    """

    _protocol: ClientProtocol

    def __init__(self, receiver: PacketReceiver, *, address: Address, frame_bytes_max: int) -> None:
        """Begin without a handshake; the receiver is not called before `open` is done.

        Args:
            receiver: Receiver of the stream of packets.
            address: Address of the primary.
            frame_bytes_max: Largest packet that is read; a larger frame with data is read in pieces.
        """
        self.asked = False
        self._address = address
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer = b""
        """Bytes of the answer to the handshake so far."""
        self._splitter = FrameSplitter()
        self._is_open = False
        self._is_connected = False
        self._fault: Exception | None = None
        protocol = ClientProtocol(
            WebSocketURI(address.has_tls, _ascii(address.host), address.port, address.path or "/", ""),
            subprotocols=[SUBPROTOCOL],
            max_size=(None, frame_bytes_max + FRAME_MARGIN_BYTES),
            logger=WEBSOCKET_LOGGER,
        )
        super().__init__(receiver, protocol, read_buffer=memoryview(bytearray(_READ_BYTES)))

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
        if self._is_connected:
            self._transport.abort()

    @property
    def refusal(self) -> WebSocketRefused:
        """Error for a handshake that did not complete."""
        if (status := self._status()) and status != _SWITCHING:
            return self._refused(status=status)
        return self._refused(problem="its answer is no handshake of WebSocket" if self._answer else "it gave no answer")

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the network's transport; the receiver gets its own after the handshake."""
        super().connection_made(transport)
        self._is_connected = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the receiver, or fail the handshake."""
        if not self._is_open:
            self._fail(exc if isinstance(exc, OSError) and not self._answer else self.refusal)
            return
        super().connection_lost(self._fault or exc)

    def eof_received(self) -> bool:
        """Close; an answer without a length ends here."""
        if not self._is_open:
            self._protocol.receive_eof()
        return False

    def pause_writing(self) -> None:
        """Tell the receiver, which then stops reading, so that no pongs pile up."""
        if self._is_open:
            super().pause_writing()

    def resume_writing(self) -> None:
        """Tell the receiver."""
        if self._is_open:
            super().resume_writing()

    def buffer_updated(self, nbytes: int) -> None:
        """Take a read: the answer to the handshake, or packets for the receiver."""
        protocol, data = self._protocol, bytes(self._read_buffer[:nbytes])
        if not self._is_open:
            self._answer += data
            is_http = self._answer.startswith(_HTTP[: len(self._answer)])
            if not is_http or self._status() not in ("", _SWITCHING):  # whatever follows
                self._fail(self.refusal)
                self.abort()
                return
        if self._is_open:
            data = self._splitter.feed(data)
        elif (end := self._answer.find(_END_OF_ANSWER)) >= 0 and (rest := self._answer[end + len(_END_OF_ANSWER) :]):
            data = data[: len(data) - len(rest)] + self._splitter.feed(rest)
        self._read(data)
        if not self._is_open:
            if protocol.handshake_exc is not None or len(self._answer) > _ANSWER_BYTES_MAX:
                self._fail(self.refusal)
                self.abort()
            return
        self._answer = b""
        if self._got_text and self._fault is None:
            self._fault = LinkLost("the primary sent a WebSocket frame with text")
        if protocol.state is not State.OPEN:
            self._fault = self._fault or protocol.parser_exc
            self._transport.close()

    def _delivers(self) -> bool:
        return self._is_open

    def _take_handshake(self, message: Request | Response) -> None:
        """Give the receiver its transport, unless WebSocket is refused."""
        protocol = self._protocol
        error = protocol.handshake_exc
        if error is not None:
            said = "".join(one if one.isprintable() else "?" for one in str(error)[:_SHOWN_CHARACTERS_MAX])
            self._fail(self._refused(problem=f"its answer is wrong: {said}"))
        elif protocol.subprotocol != SUBPROTOCOL:
            self._fail(self._refused(problem="it does not speak the subprotocol mqtt"))
            self.abort()
        else:
            self._is_open = True
            self._receiver.connection_made(PacketTransport(self, self._transport))
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


def _ascii(host: str) -> str:
    """Return a host for the header Host: in ASCII, and without the zone of an IPv6 address."""
    return host.partition("%")[0] if ":" in host else host.encode("idna").decode("ascii")
