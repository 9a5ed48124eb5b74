"""A connection whose bytes go through another process: for TLS and WebSocket, which cannot be handed over.

Owns both transports of a relayed connection: what comes from one is written to the other, and a side that reads slowly
makes the other one wait. It must not know what the bytes mean.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final, cast

from fanout.server.client.connection import LINGER_S

__all__ = ["Relay", "begin_relay"]

_BUFFER: Final = memoryview(bytearray(256 * 1024))
"""What every relay of the process reads into: what was read is copied before the next read, of whichever."""


class Relay(asyncio.BufferedProtocol):
    """The protocol of one transport, which writes to that of its `other`."""

    other: Relay

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.Event()

    # The callbacks of asyncio, and those of a WebSocket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other side when what it was written has left."""
        self._closed.set()
        self.other.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Give the buffer to read into, which all relays share."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        self.receive(bytes(_BUFFER[:nbytes]))

    def receive(self, data: bytes) -> None:
        """Pass on what was read."""
        self.other.write(data)

    def pause_writing(self) -> None:
        """Let the other side wait."""
        self.other.read(False)

    def resume_writing(self) -> None:
        """Let it go on."""
        self.other.read(True)

    def end(self, fault: str) -> None:
        """Close both sides: a WebSocket cannot go on."""
        self.close()
        self.other.close()

    def is_closing(self) -> bool:
        """Return whether this side is being closed."""
        return self._transport is None or self._transport.is_closing()

    @property
    def awaits_connect(self) -> bool:
        """Whether CONNECT has not come: it has, it tells where to go."""
        return False

    # For the other side.

    def write(self, data: bytes) -> None:
        """Write to this side."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def read(self, wanted: bool) -> None:
        """Read from this side, or do not."""
        if self._transport is None or self._transport.is_closing():
            return
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close this side when what was written has left, or after some time."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    async def wait_closed(self) -> None:
        """Wait until this side is gone."""
        await self._closed.wait()

    def abort(self) -> None:
        """Close this side at once."""
        if self._transport is not None:
            self._transport.abort()


async def begin_relay(client: asyncio.Transport, end: socket.socket, read: bytes) -> Relay:
    """Relay a client's connection to one end of a pair of sockets.

    Args:
        client: The client's transport, not read from.
        end: The end.
        read: What was read from the client so far.

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
    if client.is_closing():  # and may be lost already, which nobody would tell again
        near.connection_lost(None)
    else:
        client.resume_reading()
    return near
