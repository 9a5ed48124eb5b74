"""First record of a TLS connection (RFC 8446, section 5.1): a handshake begins when all of its ClientHello is there.

The answer to a ClientHello takes a millisecond of the processor. The event loop would give it as soon as the bytes
come, for any number of connections in one turn; so a server waits for them first, and then for a turn. A ClientHello
in several records is refused: OpenSSL would answer it in the turn in which the last of them comes. No client sends one:
with a post-quantum key share it has some 1,500 bytes, and a record holds 16 KiB.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Hashable
from typing import Final

from fanout.runtime.turnstile import Turnstile

__all__ = ["HANDSHAKE_S", "wait_for_handshake"]

HANDSHAKE_S: Final = 0.001
"""Time of the processor that a handshake takes."""
_HANDSHAKE: Final = 0x16
_HEAD_BYTES: Final = 9
"""Bytes of a record's head, and of the head of the handshake message in it."""
_RECORD_BYTES_MAX: Final = 16 * 1024
_CLOSED: Final = (7, 8)
"""States of a connection in TCP_INFO of Linux that the other end has closed: CLOSE after a reset, CLOSE_WAIT."""
_LOOK_COSTS_S: Final = 0.0001
_LEFT: Final = "the client left"


async def wait_for_handshake(connection: socket.socket, turnstile: Turnstile, *, who: Hashable) -> None:
    """Wait until all of a ClientHello can be read, or what is no TLS, and then for a turn.

    Args:
        connection: An accepted socket of TCP that does not block; nothing is read from it.
        turnstile: Bounds the handshakes, and the looks at such sockets, in a turn of the event loop.
        who: The peer that connects, as for the turnstile.

    Raises:
        OSError: The client has left, or its ClientHello does not come in one record.
    """
    await _wait_first_record(connection, turnstile, who)
    if not await turnstile.turn(who=who, at_least_s=HANDSHAKE_S, is_wanted=lambda: not _has_left(connection)):
        raise ConnectionResetError(_LEFT)


async def _wait_first_record(connection: socket.socket, turnstile: Turnstile, who: Hashable) -> None:
    while True:
        try:
            data = connection.recv(5 + _RECORD_BYTES_MAX, socket.MSG_PEEK)
        except BlockingIOError:
            await _wait_readable(connection)
            await turnstile.turn(who=who, at_least_s=_LOOK_COSTS_S)
            continue
        if not data or _has_left(connection):
            raise ConnectionResetError(_LEFT)
        if data[0] != _HANDSHAKE:
            return  # TLS tells the client
        if len(data) >= _HEAD_BYTES:
            record, message = int.from_bytes(data[3:5]), int.from_bytes(data[6:9])
            if not 4 + message <= record <= _RECORD_BYTES_MAX:
                raise ssl.SSLError("the ClientHello does not come in one record")
            if len(data) >= 5 + record:
                _wake_at(connection, 1)
                return
        _wake_at(connection, _HEAD_BYTES if len(data) < _HEAD_BYTES else 5 + record)
        await _wait_readable(connection)
        await turnstile.turn(who=who, at_least_s=_LOOK_COSTS_S)


def _wake_at(connection: socket.socket, nbytes: int) -> None:
    """Let a TCP connection be readable with so many bytes, or at its end: fewer cost the event loop nothing."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)


def _has_left(connection: socket.socket) -> bool:
    """Return True if the other end has closed the connection, which the bytes before hide; False if that is unknown."""
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _CLOSED
    except (OSError, AttributeError):  # not TCP, or not Linux
        return False


async def _wait_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def note() -> None:
        loop.remove_reader(connection)
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(connection, note)
    try:
        await readable
    finally:
        loop.remove_reader(connection)
