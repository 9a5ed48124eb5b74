"""Channel between the hub and one worker: messages over a pair of stream sockets, in order.

Owns the framing, a length of four bytes before each pickled message, and the water marks of unsent bytes. Pickle is
safe here: the hub makes the sockets and only its child inherits them.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Callable
from typing import Final, cast

from fanout.workers.messages import ChannelMessage

__all__ = ["HIGH_BYTES", "LOW_BYTES", "Channel", "encode", "open_channel"]

HIGH_BYTES: Final = 16 * 1024 * 1024
"""Unsent bytes above which backpressure starts."""
LOW_BYTES: Final = 4 * 1024 * 1024
"""Unsent bytes below which backpressure ends."""
_READ_BYTES: Final = 1024 * 1024
_BUFFER_BYTES: Final = 1024 * 1024
_LENGTH_BYTES: Final = 4
_POLL_S: Final = 0.005


class Channel(asyncio.BufferedProtocol):
    """One end of a channel."""

    def __init__(
        self,
        *,
        on_messages: Callable[[list[ChannelMessage]], None],
        on_closed: Callable[[], None],
        on_backpressure: Callable[[bool], None] | None = None,
    ) -> None:
        """Make an end for `open_channel`.

        Args:
            on_messages: Called with the messages of one read, in order.
            on_closed: Called when the other end has closed.
            on_backpressure: Called with True above the high mark of unsent bytes, and with False below the low one.
        """
        self.closed = False
        """True when the other end has closed."""
        self.crash: Exception | None = None
        """Exception of `on_messages`, a bug; the channel is closed then."""
        self._on_messages = on_messages
        self._on_closed = on_closed
        self._on_backpressure = on_backpressure
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._data = bytearray()
        self._reading = True
        self._transport: asyncio.Transport

    # The callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start on the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_BYTES, low=LOW_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the other end has closed."""
        self.closed = True
        if self._on_backpressure is not None:
            self._on_backpressure(False)
        self._on_closed()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the read buffer."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read: decode the complete messages."""
        data = self._data
        data += self._buffer[:nbytes]
        messages: list[ChannelMessage] = []
        start = 0
        while len(data) - start >= _LENGTH_BYTES:
            end = start + _LENGTH_BYTES + int.from_bytes(data[start : start + _LENGTH_BYTES], "big")
            if end > len(data):
                break
            messages.append(pickle.loads(bytes(data[start + _LENGTH_BYTES : end])))
            start = end
        del data[:start]
        if not messages:
            return
        try:
            self._on_messages(messages)
        except Exception as error:
            self.fail(error)

    def pause_writing(self) -> None:
        """Start backpressure."""
        if self._on_backpressure is not None:
            self._on_backpressure(True)

    def resume_writing(self) -> None:
        """End backpressure."""
        if self._on_backpressure is not None:
            self._on_backpressure(False)

    # For its owner.

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the other end has not read."""
        return self._transport.get_write_buffer_size()

    def send(self, message: ChannelMessage) -> None:
        """Send a message."""
        self.write(encode(message))

    def write(self, data: bytes) -> None:
        """Send an encoded message; does nothing when the other end has closed."""
        if not self._transport.is_closing():
            self._transport.write(data)

    async def wait_almost_sent(self) -> None:
        """Yield once, then wait until few bytes are unsent or the other end has closed."""
        await asyncio.sleep(0)
        # Far below the high mark of asyncio, so that feeding does not cause backpressure.
        while self.unsent_bytes > LOW_BYTES and not self.closed:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    def read(self, wanted: bool) -> None:
        """Resume or pause reading."""
        if wanted is not self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def fail(self, error: Exception) -> None:
        """Record a bug in the handling of messages, and close at once."""
        self.crash = error
        self._transport.abort()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()


def encode(message: ChannelMessage) -> bytes:
    """Return the encoded message for `Channel.write`."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


async def open_channel(channel: Channel, end: socket.socket) -> None:
    """Open a channel on one end of a pair of stream sockets."""
    end.setblocking(False)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=end)
