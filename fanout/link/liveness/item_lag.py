"""How many updates of the primary a link has not got yet, as far as the primary's count tells (core).

Owns the comparison of what the primary has counted with what has come. A stamp says how far the count was when its
update, or the link's own heartbeat, passed the primary; but what is behind comes on the same way, in order, so nothing
on that way can tell how much it is. That is asked for on a connection of its own (`fanout.link.connack_probe`), while
heartbeats are late. It must not know how.
"""

from __future__ import annotations

from fanout.chain.stamp import Count
from fanout.link.protocol.control_channel import ControlChannel
from fanout.replica.update import Stamp

__all__ = ["Backlog"]


class Backlog:
    """The backlog of one link."""

    def __init__(self, control: ControlChannel) -> None:
        """Begin without a figure.

        Args:
            control: The control channel, whose messages carry the primary's stamps.
        """
        self._control = control
        self._told: Count | None = None

    def is_wanted(self, now: float) -> bool:
        """Say whether the primary is to be asked for its count: it tells one, and heartbeats are late."""
        return self._told is not None and self._control.stamp is not None and self._control.is_late(now)

    def tell(self, count: Count | None) -> None:
        """Note how far the primary has counted by now; None when it does not tell that."""
        self._told = count

    def items(self, now: float, *, newest: Stamp | None) -> int | None:
        """Return how many updates the primary had stamped and this link had not got, when that was known last.

        Of all the primary's topics, so of those that are selected at most; None when it is not known.

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
