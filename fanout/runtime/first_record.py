"""First record of a TLS connection (RFC 8446, section 5.1): a handshake begins when all of its ClientHello is there.

The answer to a ClientHello takes a millisecond of the processor. The event loop would give it as soon as the bytes
come, for any number of connections in one turn; so a server waits for them first, and then for a turn.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Hashable
from typing import Final

from fanout.runtime.turnstile import Turnstile

__all__ = ["HANDSHAKE_S", "wait_first_record"]

HANDSHAKE_S: Final = 0.001
"""Time of the processor that a handshake takes."""
_HANDSHAKE: Final = 0x16
_HEAD_BYTES: Final = 9
"""Bytes of a record's head, and of the head of the handshake message in it."""
_BYTES_MAX: Final = 16 * 1024 + 5
_CLOSE_WAIT: Final = 8
"""State of a connection in TCP_INFO of Linux."""
_LOOK_COSTS_S: Final = 0.0001
_LOOK_S: Final = 0.01
"""Pause before another look at a record that is not whole; it doubles with each."""
_LOOK_S_MAX: Final = 1.0


async def wait_first_record(connection: socket.socket, turnstile: Turnstile, *, who: Hashable) -> None:
    """Wait until the first record of a connection can be read whole, or cannot be a ClientHello that comes whole.

    Args:
        connection: An accepted socket that does not block; nothing is read from it.
        turnstile: Bounds the looks at such sockets in a turn of the event loop.
        who: Who connects, as for the turnstile.

    Raises:
        OSError: The connection was reset.
    """
    pause_s = _LOOK_S
    while True:
        try:
            data = connection.recv(_BYTES_MAX, socket.MSG_PEEK)
        except BlockingIOError:
            await _wait_readable(connection, turnstile, who)
            continue
        if not data or data[0] != _HANDSHAKE or len(data) == _BYTES_MAX or _has_left(connection):
            return
        if len(data) >= _HEAD_BYTES:
            record, message = int.from_bytes(data[3:5]), int.from_bytes(data[6:9])
            if len(data) >= 5 + max(record, 4 + message):
                return
        await asyncio.sleep(pause_s)  # it stays readable
        pause_s = min(2 * pause_s, _LOOK_S_MAX)


def _has_left(connection: socket.socket) -> bool:
    """Return True if the other end has closed the connection, which the bytes before hide; False if that is unknown."""
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSE_WAIT
    except (OSError, AttributeError):  # not TCP, or not Linux
        return False


async def _wait_readable(connection: socket.socket, turnstile: Turnstile, who: Hashable) -> None:
    loop = asyncio.get_running_loop()
    looks = loop.create_future()

    def look() -> None:
        if not looks.done():
            looks.set_result(None)

    def take_turn() -> None:
        loop.remove_reader(connection)
        turnstile.run(look, who=who, at_least_s=_LOOK_COSTS_S)

    loop.add_reader(connection, take_turn)
    try:
        await looks
    finally:
        loop.remove_reader(connection)
