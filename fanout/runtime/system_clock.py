"""The clock of the machine, for every part that takes a clock."""

from __future__ import annotations

import time

__all__ = ["SystemClock"]


class SystemClock:
    """The clocks of the machine."""

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back."""
        return time.monotonic()
