"""Timer of the server: actions that are due by its clock, in order, and can be cancelled.

Connect timeouts, Keep Alive, Session Expiry and Will Delay use it. It owns the one timer of the event loop, which is
set for the earliest of all deadlines.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from fanout.server.base.ports import Clock

__all__ = ["Deadline", "Timer"]

_COMPACT_ABOVE = 64


class Deadline:
    """An action that is due at a given time."""

    __slots__ = ("_timer", "action", "at_s")

    def __init__(self, at_s: float, action: Callable[[], None], timer: Timer) -> None:
        self.at_s = at_s
        """Time when it is due, in seconds of the monotonic clock."""
        self.action: Callable[[], None] | None = action
        """The action; None once it has run or was cancelled."""
        self._timer = timer

    def cancel(self) -> None:
        """Cancel the action; does nothing when it has run already."""
        if self.action is not None:
            self.action = None
            self._timer.note_cancelled()


class Timer:
    """Runs actions when they are due."""

    def __init__(self, clock: Clock) -> None:
        """Make a timer for a clock; it is used inside the event loop only."""
        self._clock = clock
        self._heap: list[tuple[float, int, Deadline]] = []
        self._number = 0
        self._cancelled = 0
        self._handle: asyncio.TimerHandle | None = None
        self._set_for_s = 0.0
        self._closed = False

    def __len__(self) -> int:
        """Return the number of deadlines that are not cancelled."""
        return len(self._heap) - self._cancelled

    def after(self, seconds: float, action: Callable[[], None]) -> Deadline:
        """Run `action` in `seconds`, by the clock."""
        deadline = Deadline(self._clock.monotonic() + seconds, action, self)
        self._number += 1
        heapq.heappush(self._heap, (deadline.at_s, self._number, deadline))
        self._set()
        return deadline

    def note_cancelled(self) -> None:
        """Count a cancelled deadline; remove the cancelled ones once they are the greater part of the heap."""
        self._cancelled += 1
        if self._cancelled > _COMPACT_ABOVE and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def run_due(self) -> None:
        """Run the actions that are due now; called by the event loop, and by tests that set the clock."""
        now_s = self._clock.monotonic()
        try:
            while (next_s := self._next_s()) is not None and next_s <= now_s:
                deadline = heapq.heappop(self._heap)[2]
                action, deadline.action = deadline.action, None
                assert action is not None
                action()
        finally:
            self._set()

    def close(self) -> None:
        """Stop the timer; `run_due` still works."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()

    def _next_s(self) -> float | None:
        """Return the time of the next deadline; None when there is none."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def _set(self) -> None:
        next_s = self._next_s()
        if self._handle is not None:
            if next_s is not None and self._set_for_s <= next_s:
                return  # it fires earlier, and is set again then
            self._handle.cancel()
            self._handle = None
        if next_s is None or self._closed:
            return
        self._set_for_s = next_s
        delay_s = max(0.0, next_s - self._clock.monotonic())
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._fired)

    def _fired(self) -> None:
        self._handle = None
        self.run_due()
