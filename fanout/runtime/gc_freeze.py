"""Garbage collection: long-lived values are moved out of its reach as they grow.

A full collection visits every container: with a million retained topics it stops the event loop for 80 to 145 ms
(`docs/decisions/0023-garbage-collection.md`). It is not needed, because a replaced value is freed by its reference
count.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

__all__ = ["LongLived", "collect_little_at_a_time", "let_go", "set_aside"]

_STEP = 50_000
_NOBODY: Final = asyncio.BufferedProtocol()


def collect_little_at_a_time() -> None:
    """Let collections be small and often, and full ones rare: after a million new objects, where Python has 77,000.

    One of the middle generation visits at most 2,800 new objects, where Python has 7,700. Among thousands of
    connections a visit takes up to 2 us, and the event loop waits for it. A full one visits all that is not set aside.
    """
    gc.set_threshold(700, 3, 500)


def let_go(transport: asyncio.BaseTransport) -> None:
    """Let the transport of a connection that has ended not hold its protocol, which holds it.

    With TLS both would keep up to 256 KiB of buffers until the next full collection.
    """
    transport.set_protocol(_NOBODY)


def set_aside() -> None:
    """Leave all that is held now out of garbage collections, without the garbage of the moment."""
    gc.collect(1)
    gc.freeze()


class LongLived:
    """Freezes what a process holds each time that it has grown."""

    def __init__(self) -> None:
        """Freeze nothing yet; the first call of `note` freezes modules and configuration too."""
        self._set_aside = -_STEP
        """Number of values at the last freeze."""

    def note(self, values: int) -> None:
        """Note the number of values now; to be called once in a while.

        Args:
            values: Retained values in all stores of this process, or values that wait for slow clients.
        """
        if values < self._set_aside // 2:
            self._set_aside = values
        elif values >= self._set_aside + _STEP:
            self._set_aside = values
            set_aside()
