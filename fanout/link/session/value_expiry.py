"""Expiry of the values that a link holds, and the time of day that decides it.

When the time of day was set, no value expires until all are compared with the primary: a copy has the rest of the
value's expiry, so its time is right again after the comparison.
"""

from __future__ import annotations

from typing import Final

from fanout.replica.store import Replica
from fanout.replica.update import Changes

__all__ = ["ValueExpiry"]

_CLOCK_STEP_NS: Final = 2_000_000_000
"""A difference between the time of day and the monotonic clock that is larger than their drift between two looks."""


class ValueExpiry:
    """Expiry of the values of one replica.

    Attributes:
        expired_ns: When the newest expired value was removed, Unix time in nanoseconds; 0 for never.
    """

    def __init__(self, replica: Replica) -> None:
        """Begin without having looked at the clocks."""
        self.expired_ns = 0
        self._replica = replica
        self._clock_ahead_ns: int | None = None
        """Nanoseconds by which the time of day was ahead of the monotonic clock when it was last looked at."""
        self._clock_set_s: float | None = None
        """When the time of day was set, monotonic seconds; None once a pass that began after it has ended."""

    @property
    def next_ns(self) -> int | None:
        """When `remove` has something to remove, Unix time in nanoseconds; None for never."""
        return None if self._clock_set_s is not None else self._replica.next_expiry_ns

    def remove(self, now_ns: int, *, piece: int) -> Changes:
        """Remove at most `piece` values that have expired at `now_ns`, Unix time in nanoseconds."""
        removed = self._replica.remove_expired(now_ns, piece)
        if removed.updates:
            self.expired_ns = now_ns
        return removed

    def watch_clock(self, *, now_ns: int, now: float) -> bool:
        """Return whether the time of day was set since the last call, and values may have expired too early by it.

        Call it before `remove`.

        Args:
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.
        """
        before_ns, self._clock_ahead_ns = self._clock_ahead_ns, now_ns - round(now * 1e9)
        if before_ns is None or abs(self._clock_ahead_ns - before_ns) <= _CLOCK_STEP_NS:
            return False
        if self._replica.next_expiry_ns is None:
            return False
        self._clock_set_s = now
        self._replica.clock_was_set = True
        return True

    def note_compared(self, began_s: float | None) -> None:
        """Note that a pass over all values has ended; it began at `began_s`, monotonic seconds, None for not at all."""
        if self._clock_set_s is not None and began_s is not None and began_s >= self._clock_set_s:
            self._clock_set_s = None
            self._replica.clock_was_set = False
