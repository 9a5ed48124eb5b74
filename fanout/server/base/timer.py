"""Timer of the server: runs the actions that are due by its clock, in order.

Owns the one timer of the event loop, which is set for the earliest of all deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fanout.server.base.deadlines import Deadline, Deadlines
from fanout.server.base.ports import Clock

__all__ = ["Timer"]


class Timer:
    """Runs actions when they are due."""

    def __init__(self, clock: Clock) -> None:
        """Make a timer for a clock; it is used inside the event loop only."""
        self._clock = clock
        self._deadlines = Deadlines()
        self._handle: asyncio.TimerHandle | None = None
        self._set_for_s = 0.0
        self._closed = False

    def after(self, seconds: float, action: Callable[[], None]) -> Deadline:
        """Run `action` in `seconds`, by the clock."""
        deadline = self._deadlines.add(self._clock.monotonic() + seconds, action)
        self._set()
        return deadline

    def run_due(self) -> None:
        """Run the actions that are due now; called by the event loop, and by tests that set the clock."""
        now_s = self._clock.monotonic()
        try:
            while (action := self._deadlines.take_due(now_s)) is not None:
                action()
        finally:
            self._set()

    def close(self) -> None:
        """Stop the timer; `run_due` still works."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()

    def _set(self) -> None:
        next_s = self._deadlines.next_s
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
