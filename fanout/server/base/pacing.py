"""Round-robin turns for connections that have more to send than fits one turn of the event loop.

Retained messages for new subscribers, and queues of clients that were slow or away, are sent in pieces. All connections
together get a few milliseconds, then the event loop does its other work.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from fanout.server.base.pauses import Pauses
from fanout.server.base.ports import Clock

__all__ = ["Paced", "Pacer"]

PIECE_S: Final = 0.002
"""Limit in seconds for all connections together in one turn of the event loop."""
_TURNS_MAX = 64


class Paced(Protocol):
    """A connection that sends in pieces."""

    def pump(self) -> bool:
        """Send one piece; return whether more can be sent now."""


class Pacer:
    """Gives connections turns, one piece each."""

    def __init__(self, clock: Clock, pauses: Pauses) -> None:
        """Make a pacer with a clock; it is used inside the event loop only."""
        self._clock = clock
        self._pauses = pauses
        self._waiting: dict[Paced, None] = {}  # in order of turn
        self._handle: asyncio.Handle | None = None

    def schedule(self, paced: Paced) -> None:
        """Put `paced` at the end of the queue for a turn; does nothing when it is there already."""
        self._waiting[paced] = None
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._run)

    def discard(self, paced: Paced) -> None:
        """Remove `paced` from the queue for a turn."""
        self._waiting.pop(paced, None)

    def close(self) -> None:
        """Give no more turns."""
        self._waiting.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _run(self) -> None:
        self._handle = None
        self._pauses.check()
        until_s = self._clock.monotonic() + PIECE_S
        try:
            for _ in range(_TURNS_MAX):
                if not self._waiting:
                    return
                paced = next(iter(self._waiting))
                del self._waiting[paced]
                if paced.pump():
                    self._waiting[paced] = None
                if self._clock.monotonic() >= until_s:
                    break
        finally:  # a bug ends the turn, and concerns one connection
            if self._waiting and self._handle is None:
                self._handle = asyncio.get_running_loop().call_soon(self._run)
