"""Sessions that a server takes over from the earlier process after a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fanout.durable.hosting.session_values import SessionValues
from fanout.errors import SessionMoveRefused
from fanout.server.base.ports import Clock, Logger
from fanout.server.client.server import Server
from fanout.server.session.exported_session import ExportedSession
from fanout.server.session.session_export import MessageMaker

__all__ = ["RETURN_S", "SessionRestart"]

RETURN_S: Final = 30.0
"""Time after a start in which no Will Message is published for a session of the earlier process: clients come back,
and links connect."""
_MS_PER_S: Final = 1000
_NS_PER_MS: Final = 1_000_000


class SessionRestart:
    """Takes over the sessions of an earlier process."""

    def __init__(self, server: Server, *, clock: Clock, logger: Logger) -> None:
        """Prepare.

        Args:
            server: Serves the clients.
            clock: Gives the time.
            logger: Takes log lines.
        """
        self._server = server
        self._values = SessionValues(server)
        self._clock = clock
        self._logger = logger
        self._ended: dict[str, ExportedSession] = {}
        """Sessions that expired while no process ran, and still have a Will Message to publish, by Client Identifier.
        """
        self._makers: dict[int, MessageMaker] = {}
        self._restored = self._expired = self._refused = 0
        self._away_ms = 0

    def has_will_of(self, client_id: str) -> bool:
        """Return whether the Will Message of a session that has expired is to be published."""
        return client_id in self._ended

    def restore(self, session: ExportedSession, *, left_ns: int, was_connected: bool = False) -> bool:
        """Give the server a session, or let it end if it has expired since; return whether anything is left of it.

        Args:
            session: The session.
            left_ns: Unix time in nanoseconds at which it was left.
            was_connected: True if its client was connected then, so that its expiry begins now.
        """
        away_ms = 0 if was_connected else max(0, self._clock.now_ns() - left_ns) // _NS_PER_MS
        self._away_ms = max(self._away_ms, away_ms)
        if session.expiry_left_ms <= away_ms:
            self._expired += 1
            self._end_later(session)
            return session.will is not None
        make = self._makers.get(left_ns)
        if make is None:  # what expires does so as if nothing had happened; sessions left together share messages
            make = self._makers[left_ns] = MessageMaker(now_ns=left_ns)
        try:
            self._values.import_session(_aged(session, away_ms), messages=make, is_own=True)
        except SessionMoveRefused as refusal:
            self._refused += 1
            self._logger.warning("session not restored", reason=refusal.message, hint=refusal.hint)
            return False
        self._restored += 1
        return True

    def tell(self) -> None:
        """Log what was restored."""
        self._makers.clear()
        self._logger.info(
            "sessions restored",
            sessions=self._restored,
            expired=self._expired,
            refused=self._refused,
            away_s=round(self._away_ms / _MS_PER_S, 1),
        )

    def _end_later(self, session: ExportedSession) -> None:
        """End a session that has expired since: all that is left of it is its Will Message, if it has one."""

        def end() -> None:
            del self._ended[session.client_id]
            self._values.publish_will(session)
            self._server.lifecycles.keepers.mark(session.client_id)

        if session.will is not None:
            self._ended[session.client_id] = replace(
                session, expiry_left_ms=1, subscriptions=(), in_flight=(), queue=(), retained=(), unreleased=frozenset()
            )
            self._server.context.timer.after(RETURN_S, end)


def _aged(session: ExportedSession, away_ms: int) -> ExportedSession:
    """Return a session after so many milliseconds without a process."""
    will_left_ms = session.will_left_ms
    if will_left_ms is not None:
        will_left_ms = max(will_left_ms - away_ms, int(RETURN_S * _MS_PER_S))
    return replace(session, expiry_left_ms=session.expiry_left_ms - away_ms, will_left_ms=will_left_ms)
