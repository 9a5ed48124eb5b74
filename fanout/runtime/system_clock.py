"""The clock of the machine, for every part that takes a clock."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """The time, for parts that take it from outside."""

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds."""

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back."""


class SystemClock:
    """The clocks of the machine."""

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back."""
        return time.monotonic()
