"""Looks at sessions: what those who keep sessions have in common to find the ones that have changed without a mark."""

from __future__ import annotations

from typing import Final

from fanout.server.session.session import Session

__all__ = ["LOOKED_AT", "SHARE", "seen"]

LOOKED_AT: Final = 2_000
"""Sessions of one look."""
SHARE: Final = 10
"""The next look comes after that many times what the last one took, so that looks take a tenth of the time."""


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
