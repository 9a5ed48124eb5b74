"""Pauses of this process: whoever serves a client asks first whether the process did not run for too long.

In a pool the others may have its sessions by then. The event loop alone would read from its sockets before it looks.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Pauses"]


class Pauses:
    """Tells somebody of a pause before anything else is done."""

    __slots__ = ("look", "until_s")

    def __init__(self) -> None:
        """Begin without anybody who wants to know."""
        self.until_s = float("inf")
        """Time of the monotonic clock until which no pause was too long."""
        self.look: Callable[[], object] = bool
        """Called behind that time; it sets the next one."""

    def check(self, now_s: float) -> None:
        """Tell of a pause, if there was one."""
        if now_s > self.until_s:
            self.look()
