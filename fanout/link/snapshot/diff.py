"""Whether a pass over a retained set shows that messages were lost (core).

Owns this one judgement. It must not know what follows from it (`fanout.link.session.lifecycle`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from fanout.replica.store import Replica
from fanout.replica.update import Stamp, Update

__all__ = ["Losses", "find_losses", "find_vanished"]

_EXPIRY_SLACK_NS = 2_000_000_000
"""A value that expires so soon may be gone at the primary already: expiry travels in whole seconds."""


@dataclass(frozen=True, slots=True)
class Losses:
    """What must have happened at the primary without a message to us."""

    removed: int
    """Topics that are gone there."""
    changed: int
    """Topics that are new there, or have another value."""

    def __bool__(self) -> bool:
        return self.removed + self.changed > 0

    def __str__(self) -> str:
        return f"messages were lost: {self.removed} topics vanished and {self.changed} changed without a message"


def find_losses(replica: Replica, *, before: Stamp | None, now_ns: int) -> Generator[None, None, Losses]:
    """Judge the closed pass of a session that should have missed nothing, a piece with each step; return what it shows.

    A primary that stamps leaves out the copy of a topic for which a live update waits, so that such a topic
    comes once, as if it had been missed. Then its sequence tells: behind that of the control message which
    came back before the pass, it happened during the pass.

    Args:
        replica: The replica, whose pass runs until the last step.
        before: Stamp of a control message that came back before the pass; None without stamps.
        now_ns: Unix time in nanoseconds of the first step.
    """
    removed = 0
    for number, values in enumerate(replica.unseen()):
        if number:
            yield
        removed += len(find_vanished(values, now_ns=now_ns))
    if before is None:
        return Losses(removed, replica.changed_count)
    changed = 0
    for number, values in enumerate(replica.changed()):
        if number:
            yield
        changed += sum(1 for value in values if not _is_behind(value[8], before))
    return Losses(removed, changed)


def find_vanished(unseen: Iterable[Update], *, now_ns: int) -> list[bytes]:
    """Return the topics that the primary does not have any more, without those that expire right now.

    Args:
        unseen: Values that the pass did not bring.
        now_ns: Unix time in nanoseconds.
    """
    soon_ns = now_ns + _EXPIRY_SLACK_NS
    return [value[0] for value in unseen if not 0 < value[6] <= soon_ns]


def _is_behind(stamp: Stamp | None, before: Stamp) -> bool:
    if stamp is None:
        return False
    same_count = (stamp.primary, stamp.epoch) == (before.primary, before.epoch)
    return same_count and stamp.sequence > before.sequence
