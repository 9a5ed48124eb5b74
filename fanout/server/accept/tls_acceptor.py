"""Acceptor for connections that start with TLS: it bounds and counts them.

The event loop could accept them by itself (`create_server` with a context), but it reports neither pending nor failed
handshakes, so that they could not be limited or counted.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from fanout.server.accept.admission import AcceptPipeline, ListenerContext
from fanout.server.accept.peers import address_text

__all__ = ["TlsAcceptor"]

_ACCEPTED_MAX: Final = 4
"""Limit of connections that are accepted in one turn of the event loop."""
_PAUSE_S: Final = 1.0
"""Pause before accepting again when the system has no descriptors or memory left; the same as in asyncio."""


class TlsAcceptor:
    """Accepts the connections of one listening socket."""

    def __init__(self, listening: socket.socket, listener: ListenerContext) -> None:
        """Start to accept.

        Args:
            listening: A non-blocking listening socket, closed by `close`.
            listener: Context of its listener, which has TLS.
        """
        self._listening = listening
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._resuming: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening, self._accept)

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening socket, as in `asyncio.Server`."""
        return (self._listening,)

    def close(self) -> None:
        """Stop to accept; pending handshakes continue until they are ended."""
        self._loop.remove_reader(self._listening)
        if self._resuming is not None:
            self._resuming.cancel()
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_MAX):
            try:
                connection, name = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # the connection stays in the backlog, and would wake the loop again and again
                self._listener.server.logger.error("cannot_accept", detail=str(error))
                self._loop.remove_reader(self._listening)
                self._resuming = self._loop.call_later(_PAUSE_S, self._resume)
                return
            address = address_text(name[0], name[1])
            slot = self._listener.server.take_slot(name[0], address=address)
            if slot is None:
                connection.close()
                continue
            if slot.over_rate:  # before the expensive handshake
                self._listener.server.reject("connection_rate_max", address=address)
                self._listener.server.release_slot(slot)
                connection.close()
                continue
            connection.setblocking(False)
            AcceptPipeline(self._listener, slot).accept_tls(connection, address=address)

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listening, self._accept)
