"""Turnstile: a bound on the work of strangers in each turn of the event loop, such as handshakes and requests.

However many come at once, clients that are connected wait for a few milliseconds of it. The rest waits for later turns,
in which all who wait have one action each before anyone has a second one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable

__all__ = ["Turnstile"]


class Turnstile:
    """Does actions, as many in a turn of the event loop as there is time for."""

    def __init__(self, *, slice_s: float, monotonic: Callable[[], float]) -> None:
        """Begin with nothing that waits.

        Args:
            slice_s: Time of a turn in seconds after which no further action begins in it; the next turns have less by
                what the last action took beyond it.
            monotonic: Tells seconds of a clock that never goes back.
        """
        self._slice_s = slice_s
        self._monotonic = monotonic
        self._spent_s = 0.0
        """What the actions of this turn took, and earlier ones beyond the time of theirs."""
        self._waiting: dict[Hashable, deque[tuple[Callable[[], object], float]]] = {}
        """Actions of later turns by who asks, in the order of their turn; each with the time that it takes at least."""
        self._next: asyncio.Handle | None = None

    def run(self, action: Callable[[], object], *, who: Hashable = "", at_least_s: float = 0.0) -> bool:
        """Do an action now, if there is time in this turn and nobody waits; otherwise in a later one.

        Args:
            action: The action.
            who: Who asks, such as an address; actions of one are done in their order.
            at_least_s: Time in seconds that it counts for, if it takes less; for one that causes work later.

        Returns:
            True if it was done now.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._begin_turn)
        if not self._waiting and self._spent_s < self._slice_s:
            self._do(action, at_least_s)
            return True
        self._waiting.setdefault(who, deque()).append((action, at_least_s))
        return False

    async def turn(self, *, who: Hashable = "", at_least_s: float = 0.0) -> None:
        """Return when there is time for an action; cancelling gives the turn up. Arguments are those of `run`."""
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def admit() -> None:
            if not admitted.done():
                admitted.set_result(None)

        self.run(admit, who=who, at_least_s=at_least_s)
        if not admitted.done():
            await admitted

    def close(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _begin_turn(self) -> None:
        self._spent_s = max(0.0, self._spent_s - self._slice_s)
        try:
            while self._waiting and self._spent_s < self._slice_s:
                who = next(iter(self._waiting))
                actions = self._waiting.pop(who)
                action, at_least_s = actions.popleft()
                if actions:
                    self._waiting[who] = actions
                self._do(action, at_least_s)
        finally:
            again = self._waiting or self._spent_s
            self._next = asyncio.get_running_loop().call_soon(self._begin_turn) if again else None

    def _do(self, action: Callable[[], object], at_least_s: float) -> None:
        begun_s = self._monotonic()
        try:
            action()
        finally:
            self._spent_s += max(at_least_s, self._monotonic() - begun_s)
