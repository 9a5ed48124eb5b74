"""Heap of deadlines that can be cancelled: connect timeouts, Keep Alive, Session Expiry, Will Delay.

It reads no clock: `Timer` passes the time, and wakes up when the next deadline is due.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["Deadline", "Deadlines"]

_COMPACT_ABOVE = 64


class Deadline:
    """An action that is due at a given time."""

    __slots__ = ("_deadlines", "action", "at_s")

    def __init__(self, at_s: float, action: Callable[[], None], deadlines: Deadlines) -> None:
        self.at_s = at_s
        """Time when it is due, in seconds of the monotonic clock."""
        self.action: Callable[[], None] | None = action
        """The action; None once it has run or was cancelled."""
        self._deadlines = deadlines

    def cancel(self) -> None:
        """Cancel the action; does nothing when it has run already."""
        if self.action is not None:
            self.action = None
            self._deadlines.note_cancelled()


class Deadlines:
    """A heap of deadlines, in the order in which they are due."""

    __slots__ = ("_cancelled", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._number = 0
        self._cancelled = 0

    def __len__(self) -> int:
        """Return the number of deadlines that are not cancelled."""
        return len(self._heap) - self._cancelled

    def add(self, at_s: float, action: Callable[[], None]) -> Deadline:
        """Run `action` at `at_s`, in seconds of the monotonic clock."""
        deadline = Deadline(at_s, action, self)
        self._number += 1
        heapq.heappush(self._heap, (at_s, self._number, deadline))
        return deadline

    def note_cancelled(self) -> None:
        """Count a cancelled deadline; remove the cancelled ones once they are the greater part of the heap."""
        self._cancelled += 1
        if self._cancelled > _COMPACT_ABOVE and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    @property
    def next_s(self) -> float | None:
        """Time of the next deadline; None when there is none."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_s: float) -> Callable[[], None] | None:
        """Take the earliest action that is due at `now_s`; None when there is none (left)."""
        due_s = self.next_s
        if due_s is None or due_s > now_s:
            return None
        deadline = heapq.heappop(self._heap)[2]
        action, deadline.action = deadline.action, None
        return action
