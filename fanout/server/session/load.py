"""Sums over all sessions: what they have queued and in flight."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping
from typing import Final

from fanout.server.base.counters import Load
from fanout.server.routing.audiences import AudienceIndex
from fanout.server.routing.subscribers import SessionState
from fanout.server.session.session import Session

__all__ = ["SessionLoad"]

_PIECE: Final = 1000
"""Sessions that are counted without a pause: 0.5 to 1 ms."""
_KEPT_S: Final = 1.0
"""Time for which a count of many sessions is given to all who ask: 50,000 take some 40 ms."""


class SessionLoad:
    """Counts the load of sessions: at once if they are few, otherwise in pieces, once for all who ask."""

    def __init__(self, sessions: Mapping[str, Session], index: AudienceIndex) -> None:
        """Count nothing yet.

        Args:
            sessions: All sessions, by Client Identifier.
            index: Their audiences.
        """
        self._sessions = sessions
        self._index = index
        self._newest: Load | None = None
        self._until_s = 0.0
        """When a count of many sessions is too old, monotonic seconds."""
        self._under_way: Generator[None, None, None] | None = None
        """The count under way, of which each who waits for it does pieces."""

    def now(self) -> Load:
        """Return the load; with more than a thousand sessions as of the newest `count`, if there was one."""
        if self._newest is None or len(self._sessions) <= _PIECE:
            return self._sum(self._sessions.values(), in_flight_bytes=self._index.in_flight_bytes)
        return self._newest

    def count(self) -> Generator[None, None, None]:
        """Bring the load up to date in steps of a millisecond at most, unless that was done within a second."""
        while len(self._sessions) > _PIECE and time.monotonic() >= self._until_s:
            if self._under_way is None:
                self._under_way = self._count()
            for _ in self._under_way:
                break
            else:
                self._under_way = None
            yield

    def _count(self) -> Generator[None, None, None]:
        sessions = list(self._sessions.values())
        load = self._sum((), in_flight_bytes=self._index.in_flight_bytes)
        for begin in range(0, len(sessions), _PIECE):
            piece = self._sum(sessions[begin : begin + _PIECE])
            load = Load(*map(sum, zip(load, piece, strict=True)))
            yield
        self._newest = load
        self._until_s = time.monotonic() + _KEPT_S

    @staticmethod
    def _sum(sessions: Iterable[Session], *, in_flight_bytes: int = 0) -> Load:
        """Return the load of sessions, and these bytes.

        This is one loop on local variables, which skips the queue of sessions that are DIRECT: a sum for each figure
        takes three times as long.
        """
        subscriptions = queued = queued_bytes = conflated = in_flight = 0
        direct = SessionState.DIRECT
        for session in sessions:
            subscriptions += len(session.subscriptions) + len(session.shared)
            sender = session.sender
            if session.state is not direct:
                queue = sender.queue
                queued += queue.messages
                queued_bytes += queue.bytes
                conflated += len(sender.newest_values)
            outbound, follower = sender.inflight.outbound, session.follower
            if outbound.bytes:
                in_flight += len(outbound)
                in_flight_bytes += outbound.bytes
            if follower.log is not None:
                in_flight += follower.log.end - follower.completed
        return Load(subscriptions, queued, queued_bytes, conflated, in_flight, in_flight_bytes)
