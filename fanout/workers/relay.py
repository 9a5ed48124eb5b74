"""Relay of a connection to another process: for TLS and WebSocket, whose state cannot be handed over.

Bytes from one transport are written to the other, with backpressure.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final, cast

from fanout.server.client.connection import LINGER_S

__all__ = ["Relay", "begin_relay"]

_BUFFER: Final = memoryview(bytearray(256 * 1024))
"""Read buffer that all relays of the process share: each read is copied before the next one."""


class Relay(asyncio.BufferedProtocol):
    """Protocol of one transport, which writes to the transport of its `other`."""

    other: Relay

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.Event()

    # The callbacks of asyncio, and those of a WebSocket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start on the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other side after its written bytes are sent."""
        self._closed.set()
        self.other.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the read buffer that all relays share."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read."""
        self.receive(bytes(_BUFFER[:nbytes]))

    def receive(self, data: bytes) -> None:
        """Write the bytes to the other side."""
        self.other.write(data)

    def pause_writing(self) -> None:
        """Pause reading from the other side."""
        self.other.read(False)

    def resume_writing(self) -> None:
        """Resume reading from the other side."""
        self.other.read(True)

    def end(self, fault: str) -> None:
        """Close both sides because the WebSocket has ended."""
        self.close()
        self.other.close()

    def is_closing(self) -> bool:
        """Return whether this side is being closed."""
        return self._transport is None or self._transport.is_closing()

    @property
    def awaits_connect(self) -> bool:
        """False: a relayed connection has sent its CONNECT."""
        return False

    # For the other side.

    def write(self, data: bytes) -> None:
        """Write to this side."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def read(self, wanted: bool) -> None:
        """Resume or pause reading from this side."""
        if self._transport is None or self._transport.is_closing():
            return
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close this side after its written bytes are sent, or after some time."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    async def wait_closed(self) -> None:
        """Wait until this side is closed."""
        await self._closed.wait()

    def abort(self) -> None:
        """Close this side at once."""
        if self._transport is not None:
            self._transport.abort()


async def begin_relay(client: asyncio.Transport, end: socket.socket, read: bytes) -> Relay:
    """Relay a client's connection to one end of a pair of sockets.

    Args:
        client: The client's transport, with reading paused.
        end: One end of the pair of sockets.
        read: The bytes read from the client so far.

    Returns:
        The relay on the client's side.

    Raises:
        OSError: The end cannot be used.
    """
    near, far = Relay(), Relay()
    near.other, far.other = far, near
    near.connection_made(client)
    client.set_protocol(near)
    await asyncio.get_running_loop().create_unix_connection(lambda: far, sock=end)
    far.write(read)
    if client.is_closing():  # its `connection_lost` may have been called already
        near.connection_lost(None)
    else:
        client.resume_reading()
    return near
