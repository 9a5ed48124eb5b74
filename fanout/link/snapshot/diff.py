"""Differences between the replica and a retained set: what changed at the primary without a message.

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
    """Changes at the primary without a message to the link."""

    removed: int
    """Number of topics that are gone there."""
    changed: int
    """Number of topics that are new there or have another value."""
    topics: tuple[bytes, ...] = ()
    """Local topics that are new there or have another value, the first ones of them."""


def find_losses(
    replica: Replica, *, before: Stamp | None, now_ns: int, topics_max: int = 0
) -> Generator[None, None, Losses]:
    """Find the losses that a closed pass shows, a piece per step.

    A primary that stamps omits the copy of a topic with a waiting live update, so the update looks like a missed one.
    Its sequence tells: if it is higher than that of the control message which came back before the pass, the update
    happened during the pass.

    Args:
        replica: The replica; its pass runs until the last step.
        before: Stamp of a control message that came back before the pass; None without stamps.
        now_ns: Unix time in nanoseconds of the first step.
        topics_max: Number of changed topics that are named.
    """
    removed = 0
    for number, values in enumerate(replica.unseen()):
        if number:
            yield
        removed += len(find_vanished(values, now_ns=now_ns))
    if before is None and not topics_max:
        return Losses(removed, replica.changed_count)
    changed, topics = 0, list[bytes]()
    for number, values in enumerate(replica.changed()):
        if number:
            yield
        missed = [value[0] for value in values if before is None or not _is_behind(value[8], before)]
        changed += len(missed)
        topics += missed[: topics_max - len(topics)]
    return Losses(removed, changed, tuple(topics))


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
