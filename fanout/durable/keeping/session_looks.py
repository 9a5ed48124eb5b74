"""Looks at sessions, to find those that have changed without a mark; shared by all keepers of sessions."""

from __future__ import annotations

from typing import Final

from fanout.server.session.session import Session

__all__ = ["LOOKED_AT", "SHARE", "seen"]

LOOKED_AT: Final = 2_000
"""Sessions of one look."""
SHARE: Final = 10
"""The next look comes after so many times the duration of the last one, so that looks take a tenth of the time."""


def seen(session: Session) -> tuple[int, ...]:
    """Return the values that change when messages are sent, acknowledged or dropped, without steps shared by others."""
    sender = session.sender
    queue, outbound = sender.queue, sender.inflight.outbound
    return (
        queue.appended_total - queue.messages,
        outbound.last_packet_id,
        len(outbound),
        session.follower.completed,
        len(sender.deliveries),
    )
