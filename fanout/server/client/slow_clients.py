"""Slow clients: connected clients with waiting messages, since when, and the log lines that name them.

A look at all connections once a second finds them, so that delivering costs nothing more. A client counts as slow while
messages wait for it and either its socket is full or it owes acknowledgements; one that merely waits for its turn at
the node does not. The delivery of a large retained set fills a socket again and again: there only a socket that stays
full counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fanout.server.base.context import ServerContext
from fanout.server.client.connection import ClientConnection
from fanout.server.routing.subscribers import SessionState
from fanout.server.session.session import Session

__all__ = ["LOOK_S", "NAMES_MAX", "SLOW_S", "SlowClients", "SlowNews"]

LOOK_S: Final = 1.0
"""Pause between two looks."""
SLOW_S: Final = 5.0
"""Time after which a slow client is named in the log."""
NAMES_MAX: Final = 3
"""Clients that news name."""


@dataclass(slots=True)
class SlowNews:
    """Clients that became slow, or ceased to be, since the news before."""

    clients: int = 0
    """Their number."""
    names: list[str] = field(default_factory=list)
    """Client Identifiers of the first `NAMES_MAX`."""

    def add(self, client_id: str) -> None:
        """Add a client."""
        self.clients += 1
        if len(self.names) < NAMES_MAX:
            self.names.append(client_id)


class SlowClients:
    """The slow clients of one server."""

    def __init__(self, context: ServerContext) -> None:
        """Begin with none.

        Args:
            context: Its clock and its log.
        """
        self._clock = context.clock
        self._logger = context.logger
        self._since_s: dict[ClientConnection, float] = {}
        self._named: dict[ClientConnection, str] = {}
        """Clients that were named, with their Client Identifiers."""
        self._began, self._ended = SlowNews(), SlowNews()

    def look(self, connections: Iterable[ClientConnection]) -> None:
        """Find out who is slow now, and name in the log who has been for `SLOW_S`, and who has caught up.

        Args:
            connections: All connections of the server.
        """
        now_s = self._clock.monotonic()
        before, self._since_s = self._since_s, {}
        for connection in connections:
            session = connection.session
            if session is not None and session.state is SessionState.QUEUED and _is_slow(connection, session, now_s):
                self._since_s[connection] = since_s = before.get(connection, now_s)
                is_expected = session.age_bound  # it said so
                if now_s - since_s >= SLOW_S and connection not in self._named and not is_expected:
                    self._named[connection] = session.client_id
                    self._began.add(session.client_id)
                    self._name(connection, session, slow_s=now_s - since_s)
        for connection in self._named.keys() - self._since_s.keys():
            self._ended.add(self._named.pop(connection))
            if connection.session is not None:  # else it is gone, which has a line of its own
                self._logger.info(
                    "client_caught_up",
                    client_id=connection.session.client_id,
                    address=connection.address,
                    slow_s=round(now_s - before[connection], 1),
                )

    def news(self) -> tuple[SlowNews, SlowNews]:
        """Return the clients that were named since the last call, and those that read again or left."""
        found = self._began, self._ended
        self._began, self._ended = SlowNews(), SlowNews()
        return found

    def slow_s(self, connection: ClientConnection) -> float | None:
        """Return for how many seconds a client has been slow, to within `LOOK_S`; None when it is not."""
        since_s = self._since_s.get(connection)
        return None if since_s is None else self._clock.monotonic() - since_s

    def _name(self, connection: ClientConnection, session: Session, *, slow_s: float) -> None:
        sender = session.sender
        self._logger.warning(
            "client_reads_slowly",
            client_id=session.client_id,
            address=connection.address,
            user=session.user,
            slow_s=round(slow_s, 1),
            messages=sender.queue.messages,
            bytes=sender.queue.bytes,
            conflated_topics=len(sender.newest_values),
            waits_for="it to read" if session.paused else "its acknowledgements",
            hint="fanout clients --slowest shows it; with QoS 0 it gets only the newest value of each topic meanwhile",
        )


def _is_slow(connection: ClientConnection, session: Session, now_s: float) -> bool:
    if session.sender.inflight.blocked:
        return True
    if not session.paused:
        return False
    return not session.sender.delivers_retained or now_s - connection.paused_at_s >= LOOK_S
