"""HAProxy's agent check: a TCP port that tells in one line whether the node takes clients, and how many more.

Owns the words of the line (HAProxy's configuration manual, "agent-check") and the port. Input of a peer is ignored; it
gets the line, and the connection is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from fanout.api.models import Readiness
from fanout.errors import ListenError
from fanout.escaping import printable
from fanout.runtime.listening import BACKLOG

__all__ = ["AgentListener", "agent_line"]

_LINGER_S: Final = 2.0
"""Time for a peer to close its side after the line."""
_CONNECTIONS_MAX: Final = 256
"""Connections at a time; a further one closes the oldest, which has its line."""
_TEXT_CHARACTERS_MAX: Final = 200
"""Longest reason in a line; HAProxy cuts lines at 16 KiB and shows less."""


def agent_line(readiness: Readiness, *, connections: int, connections_max: int) -> str:
    """Return the line for HAProxy.

    A node that drains, is held or offers its values as stale says `drain`: it gets no more clients and keeps those it
    has. HAProxy remembers that for the server until it reads `ready`; therefore every other line has that word, so the
    node is taken back after its restart, or once it is held no more. The weight is the share of free connections in
    percent: 0 when none is free, so HAProxy sends no client that would be refused.

    Args:
        readiness: The document of `/readyz`.
        connections: Network Connections of clients.
        connections_max: Their limit; 0 on a node that serves no clients.
    """
    if readiness.ready:
        free = max(0, connections_max - connections)
        weight = -(-100 * free // connections_max) if connections_max else 100
        return f"ready up {weight}%\n"
    why = printable(" ".join("; ".join(readiness.reasons).split())).encode("ascii", "replace").decode()
    why = why[:_TEXT_CHARACTERS_MAX]
    goes = readiness.state in ("draining", "stopping") or readiness.held_since is not None
    if goes or readiness.stale_seconds is not None:
        return f"drain #{why}\n"
    return f"ready down #{why}\n"


class AgentListener:
    """The port; `start` once, `stop` once."""

    def __init__(self, answer: Callable[[], str], *, host: str, port: int) -> None:
        """Prepare; nothing is opened before `start`.

        Args:
            answer: Returns the line; called for each connection.
            host: Name or address to listen on.
            port: TCP port; 0 takes a free one, see `port` after `start`.
        """
        self._answer = answer
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._answered: dict[_Answer, asyncio.Transport] = {}

    @property
    def port(self) -> int:
        """The bound port; before `start`, the requested one."""
        return self._port

    async def start(self) -> None:
        """Listen.

        Raises:
            ListenError: The address cannot be bound.
        """
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Answer(self._answer, self._answered), self._host, self._port, backlog=BACKLOG
            )
        except OSError as error:
            address = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
            raise ListenError.of(error, address=address, key="http.agent_listen") from error
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening; harmless when not started."""
        if self._server is not None:
            self._server.close()
            self._server = None


class _Answer(asyncio.Protocol):
    """One connection: answered at once, and open until the peer has closed its side too."""

    def __init__(self, answer: Callable[[], str], answered: dict[_Answer, asyncio.Transport]) -> None:
        self._make_answer = answer
        self._answered = answered  # all of the listener, the oldest first
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        self._answered[self] = stream
        if len(self._answered) > _CONNECTIONS_MAX:
            self._answered.pop(next(iter(self._answered))).abort()
        stream.write(self._make_answer().encode())
        # Closing with unread input would be a reset, which can destroy the line on its way.
        stream.write_eof()
        self._deadline = asyncio.get_running_loop().call_later(_LINGER_S, stream.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._answered.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
