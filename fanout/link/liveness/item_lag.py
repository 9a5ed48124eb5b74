"""Lag of a link in items: how many updates the primary has stamped that have not come.

A stamp tells the primary's count at the moment when its update, or the link's own heartbeat, passed the primary. All
later updates come after it on the same connection, so that connection cannot tell how many they are. While heartbeats
are late, the count is therefore requested on a connection of its own (`fanout.link.connack_probe`).
"""

from __future__ import annotations

from fanout.chain.stamp import Count
from fanout.link.protocol.control_channel import ControlChannel
from fanout.replica.update import Stamp

__all__ = ["ItemLag"]


class ItemLag:
    """Lag in items of one link."""

    def __init__(self, control: ControlChannel) -> None:
        """Begin without a count.

        Args:
            control: The control channel, whose messages carry the primary's stamps.
        """
        self._control = control
        self._told: Count | None = None

    def is_wanted(self, now: float) -> bool:
        """Say whether to request the primary's count: it gives one, and heartbeats are late."""
        return self._told is not None and self._control.stamp is not None and self._control.is_late(now)

    def note_count(self, count: Count | None) -> None:
        """Note the primary's present count; None when it gives none."""
        self._told = count

    def items(self, now: float, *, newest: Stamp | None) -> int | None:
        """Return how many updates the primary had stamped that had not come, as last known; None when unknown.

        This counts all topics of the primary, so it is an upper bound for those that are selected.

        Args:
            now: Monotonic seconds.
            newest: Stamp of the newest update that came, if it has one.
        """
        passed, told = self._control.stamp, self._told
        if passed is None:
            return None
        came = passed.sequence
        if newest is not None and (newest.primary, newest.epoch) == (passed.primary, passed.epoch):
            came = max(came, newest.sequence)
        if told is not None and (told.primary, told.epoch) == (passed.primary, passed.epoch) and told.sequence > came:
            return told.sequence - came
        return None if self._control.is_late(now) else 0
