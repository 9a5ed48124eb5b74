"""Fence in front of durable sessions: while it is up, none is served, none expires, and no Will Message is published.

Owns what remained of the deadlines of these sessions, and the Will Messages of those that ended meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

from fanout.server.session.session import Session
from fanout.server.session.wills import WillMessage

__all__ = ["HeldDeadlines", "SessionFence"]


class HeldDeadlines(NamedTuple):
    """Deadlines of a session without a connection, which stand still."""

    expiry_s: float
    """Seconds until it ends."""
    will_s: float | None
    """Seconds until its Will Message; None when it has none."""


class SessionFence:
    """The fence of one server."""

    def __init__(self) -> None:
        """Begin without a fence."""
        self.is_up = False
        """True if durable sessions are fenced."""
        self._deadlines: dict[Session, HeldDeadlines] = {}
        self._wills: list[tuple[Session, WillMessage]] = []

    def deadlines_of(self, session: Session) -> HeldDeadlines | None:
        """Return the deadlines of a session that stand still; None when they do not, or it has none."""
        return self._deadlines.get(session)

    def hold_deadlines(self, session: Session, *, expiry_s: float, will_s: float | None) -> bool:
        """Keep the deadlines of a session; return False when they go on."""
        if not (self.is_up and session.expiry_s):
            return False
        self._deadlines[session] = HeldDeadlines(expiry_s, will_s)
        return True

    def hold_will(self, session: Session, will: WillMessage) -> bool:
        """Keep the Will Message of a session that has ended; return False when it may be published."""
        if not (self.is_up and session.expiry_s):
            return False
        self._wills.append((session, will))  # as many as there are sessions: none begins meanwhile
        return True

    def forget(self, session: Session) -> None:
        """Forget the deadlines of a session."""
        self._deadlines.pop(session, None)

    def lower(self) -> tuple[dict[Session, HeldDeadlines], list[tuple[Session, WillMessage]]]:
        """Take the fence down, and return the deadlines that go on and the Will Messages that are due."""
        self.is_up = False
        held = self._deadlines, self._wills
        self._deadlines, self._wills = {}, []
        return held
