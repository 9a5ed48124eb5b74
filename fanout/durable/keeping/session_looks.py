"""Looks at sessions: what those who keep sessions have in common to find the ones that have changed without a mark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from fanout.server.messages.encoding import Message
from fanout.server.session.exported_session import ExportedInFlight, ExportedSession
from fanout.server.session.session import Session
from fanout.server.session.session_export import ExportedMessages

__all__ = ["LOOKED_AT", "SHARE", "SessionValues", "seen"]

LOOKED_AT: Final = 2_000
"""Sessions of one look."""
SHARE: Final = 10
"""The next look comes after that many times what the last one took, so that looks take a tenth of the time."""


class SessionValues(Protocol):
    """Makes values of sessions; `SessionMoves` is one."""

    def value_of(
        self,
        session: Session,
        messages: ExportedMessages,
        *,
        waiting: Sequence[Message],
        in_flight: Sequence[ExportedInFlight] | None = None,
    ) -> tuple[ExportedSession, int]:
        """Return the value of a session with these queued messages, and how many of them have expired.

        Of the messages in flight it has those that are given, or all.
        """

    def epoch_of(self, client_id: str) -> bytes:
        """Return since when a session is this node's, as a pool writes it; empty without a pool."""


def seen(session: Session) -> tuple[int, ...]:
    """Return what tells that messages were sent, acknowledged or dropped, but for those in step with others."""
    sender = session.sender
    queue, outbound = sender.queue, sender.inflight.outbound
    return (
        queue.appended_total - queue.messages,
        outbound.last_packet_id,
        len(outbound),
        session.follower.completed,
        len(sender.deliveries),
    )
