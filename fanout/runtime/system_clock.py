"""The clock of the machine, for every part that takes a clock."""

from __future__ import annotations

import time
from functools import partial
from typing import Final, Protocol

__all__ = ["Clock", "SystemClock"]

_CLOCK_ID: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a monotonic clock that goes on while the machine is suspended."""


class Clock(Protocol):
    """The time, for parts that take it from outside."""

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds."""

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back, and that goes on while the machine is suspended."""


class SystemClock:
    """The clocks of the machine."""

    # Neither is a function of Python: each read of a client asks.

    now_ns = staticmethod(time.time_ns)
    """Return Unix time in nanoseconds."""

    monotonic = staticmethod(partial(time.clock_gettime, _CLOCK_ID))
    """Return seconds of a clock that never goes back, and that goes on while the machine is suspended."""
