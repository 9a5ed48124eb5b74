"""The notice that sessions of this member go on without copies, which the other members get through the primary.

A copy that another member has may be older than what a client was told from then on. So that member learns of it in
time: a notice that came back to this node is also in the stream of every other member before they can find this node
dead. They use no copy at QoS 2 until this node says, when it is asked, that all those are right.
"""

from __future__ import annotations

from typing import Final

from fanout.durable.ownership.ports import Others
from fanout.runtime.system_clock import Clock

__all__ = ["AloneNotice"]

_AGAIN_S: Final = 1.0
"""Time after which a notice that has not come back is sent once more."""


class AloneNotice:
    """The notice of one member."""

    def __init__(self, *, others: Others, clock: Clock) -> None:
        """Begin without one.

        Args:
            others: The other members.
            clock: Gives the time.
        """
        self._others = others
        self._clock = clock
        self._told_s: float | None = None
        """When it was sent first; None for never, or where it is withdrawn."""
        self._again_at_s = 0.0
        self._is_owed = False

    def is_out(self) -> bool:
        """Return True if the others know that sessions go on without copies; otherwise send the notice.

        They need not know it if no primary can carry the notice. While all primaries are away no member can take a
        session over. So if all others are dead, nothing waits, and they are told later.
        """
        others = self._others
        if not others.has_witness:
            return True
        if self._told_s is not None and others.said_alone_s(others.instance) >= self._told_s:
            self._is_owed = False
            return True
        now_s = self._clock.monotonic()
        if self._told_s is None or now_s >= self._again_at_s:
            if others.tell_alone():
                self._told_s = now_s if self._told_s is None else self._told_s
                self._again_at_s = now_s + _AGAIN_S
            else:
                self._is_owed = all(other.is_dead for other in others.states())
        return self._is_owed

    def look(self) -> None:
        """Send the notice if that could not be done when sessions went on."""
        if self._is_owed:
            self.is_out()

    def withdraw(self) -> None:
        """Note that a member has been told that all its copies are right; it needs a new notice from then on."""
        self._told_s = None
