"""Turnstile: a bound on the work of strangers in each turn of the event loop, such as handshakes and requests.

However many come at once, clients that are connected wait for a few milliseconds of it. The rest waits for later turns,
by start-time fair queueing (Goyal, Vin and Cheng, 1996): the peer goes first that has used least of the time that they
share. A peer that has not asked for a while is ahead of those that always wait, so a load balancer's check is made at
once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Final

__all__ = ["Turnstile"]


_CREDIT_SLICES: Final = 3
"""By how much a peer that asks now and then is ahead of those that always wait: a connection and its request, or a
handshake and a CONNECT. In times of a turn."""


def _always() -> bool:
    return True


class Turnstile:
    """Does actions, as many in a turn of the event loop as there is time for."""

    def __init__(self, *, slice_s: float, processor_s: Callable[[], float]) -> None:
        """Begin with nothing that waits.

        Args:
            slice_s: Time of a turn in seconds after which no further action begins in it; the next turns have less by
                what the last action took beyond it.
            processor_s: Tells seconds of the processor that the thread of the event loop has taken. By another clock an
                address would pay for the time in which another process has the processor, and all would wait for it.
        """
        self._slice_s = slice_s
        self._processor_s = processor_s
        self._spent_s = 0.0
        """Time that the actions of this turn took, and earlier ones beyond their own turn."""
        self._count = 0
        """Actions that wait."""
        self._waiting: dict[Hashable, OrderedDict[object, tuple[Callable[[], object], float]]] = {}
        """Actions of later turns by who asks, each with the time it takes at least; empty if all were withdrawn."""
        self._order: list[tuple[float, int, float, Hashable]] = []
        """Heap of those who wait, each once: its place, a number for those with the same, and the time it has used."""
        self._numbers = count()
        self._credit_s = _CREDIT_SLICES * slice_s
        self._shared_s = 0.0
        """Time that one who always waits has used: all time, divided by the number that waits meanwhile."""
        self._used_s: OrderedDict[Hashable, float] = OrderedDict()
        """Time that those have used who do not wait now, if it is more."""
        self._next: asyncio.Handle | None = None

    def run(
        self, action: Callable[[], object], *, who: Hashable = "", at_least_s: float = 0.0
    ) -> Callable[[], None] | None:
        """Do an action now, if there is time in this turn and nobody waits; otherwise in a later one.

        The number that waits has no bound here: whoever asks has a bound on his connections, and withdraws what they
        no longer wait for.

        Args:
            action: The action; False that it returns means that there was nothing to do, which counts for no time.
            who: The peer that asks, such as an address; actions of one are done in their order.
            at_least_s: Time in seconds that it counts for, if it takes less; for one that causes work later.

        Returns:
            None if it was done now; otherwise withdraws it, any number of times.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._begin_turn)
        if not self._count and self._spent_s < self._slice_s:
            self._do(action, at_least_s)
            return None
        if who not in self._waiting:
            self._waiting[who] = OrderedDict()
            used_s = max(self._shared_s, self._used_s.pop(who, 0.0))
            self._line_up(who, used_s, ahead_s=self._credit_s if used_s <= self._shared_s + self._credit_s else 0.0)
        key = object()
        self._waiting[who][key] = (action, at_least_s)
        self._count += 1
        return partial(self._withdraw, who, key)

    async def turn(
        self, *, who: Hashable = "", at_least_s: float = 0.0, is_wanted: Callable[[], bool] = _always
    ) -> bool:
        """Return when there is time for an action; cancelling gives the turn up.

        Args:
            who: As for `run`.
            at_least_s: As for `run`.
            is_wanted: Tells, when it is time, whether the action is still of use; if not, it counts for no time.

        Returns:
            The newest answer of `is_wanted`.
        """
        admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def admit() -> bool:
            if admitted.cancelled():  # in this turn
                return False
            admitted.set_result(is_wanted())
            return admitted.result()

        if withdraw := self.run(admit, who=who, at_least_s=at_least_s):
            try:
                await admitted
            finally:
                withdraw()
        return admitted.result()

    def close(self) -> None:
        """Forget what waits."""
        self._forget()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _withdraw(self, who: Hashable, key: object) -> None:
        actions = self._waiting.get(who)
        if actions is not None and actions.pop(key, None) is not None:
            self._count -= 1

    def _line_up(self, who: Hashable, used_s: float, *, ahead_s: float = 0.0) -> None:
        heappush(self._order, (used_s - ahead_s, next(self._numbers), used_s, who))

    def _begin_turn(self) -> None:
        self._spent_s = max(0.0, self._spent_s - self._slice_s)
        try:
            while self._count and self._spent_s < self._slice_s:
                self._do_next()
        finally:
            if not self._count:  # all are equal again
                self._forget()
            again = self._count or self._spent_s
            self._next = asyncio.get_running_loop().call_soon(self._begin_turn) if again else None

    def _do_next(self) -> None:
        _, _, used_s, who = heappop(self._order)
        actions = self._waiting[who]
        if not actions:
            del self._waiting[who]
            return
        _, (action, at_least_s) = actions.popitem(last=False)
        self._count -= 1
        before_s = self._spent_s
        try:
            self._do(action, at_least_s)
        finally:
            took_s = self._spent_s - before_s
            used_s += took_s
            self._shared_s += took_s / len(self._waiting)
            if actions:
                self._line_up(who, used_s)
            else:
                del self._waiting[who]
                self._used_s[who] = used_s
            while self._used_s and next(iter(self._used_s.values())) <= self._shared_s:
                self._used_s.popitem(last=False)

    def _forget(self) -> None:
        self._count, self._shared_s = 0, 0.0
        for kept in (self._waiting, self._order, self._used_s):
            kept.clear()

    def _do(self, action: Callable[[], object], at_least_s: float) -> None:
        begun_s = self._processor_s()
        did: object = True
        try:
            did = action()
        finally:
            self._spent_s += max(0.0 if did is False else at_least_s, self._processor_s() - begun_s)
