"""Differences between the replica and a retained set that show that messages were lost.

`fanout.link.session.lifecycle` decides what follows from them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from fanout.replica.store import Replica
from fanout.replica.update import Stamp, Update

__all__ = ["Losses", "find_losses", "find_vanished"]

_EXPIRY_SLACK_NS = 2_000_000_000
"""A value that expires so soon may be gone at the primary already, because expiry is sent in whole seconds."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Changes at the primary for which no message came."""

    removed: int
    """Number of topics that are gone there."""
    changed: int
    """Number of topics that are new there or have another value."""

    def __bool__(self) -> bool:
        return self.removed + self.changed > 0

    def __str__(self) -> str:
        return f"messages were lost: {self.removed} topics vanished and {self.changed} changed without a message"


def find_losses(replica: Replica, *, before: Stamp | None, now_ns: int) -> Generator[None, None, Losses]:
    """Find the losses that a closed pass shows, a piece per step.

    A primary that stamps omits the copy of a topic for which a live update waits, so that the update looks like a
    missed one. Its sequence tells: if it is higher than that of the control message which came back before the pass,
    the update happened during the pass.

    Args:
        replica: The replica; its pass runs until the last step.
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
    """Return the topics that the primary does not have any more, without values about to expire.

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
