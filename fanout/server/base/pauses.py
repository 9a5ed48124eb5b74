"""Pauses of this process: before it serves a client, code asks here whether the process did not run for too long.

In a pool the others may have the sessions after such a pause, and the event loop would read from sockets first.
"""

from __future__ import annotations

from collections.abc import Callable

from fanout.server.base.ports import Clock

__all__ = ["Pauses"]


class Pauses:
    """Tells somebody of a pause before anything else is done."""

    __slots__ = ("_clock", "look", "until_s")

    def __init__(self, clock: Clock) -> None:
        """Begin without anybody who wants to know: then the clock is not read.

        Args:
            clock: Tells of pauses: it goes on while the machine is suspended.
        """
        self._clock = clock
        self.until_s: float | None = None
        """Time of the clock until which no pause was too long; None when none is."""
        self.look: Callable[[], object] = bool
        """Called after that time; it sets the next one."""

    def check(self) -> None:
        """Tell of a pause, if there was one."""
        if self.until_s is not None and self._clock.monotonic() > self.until_s:
            self.look()
