"""Turnstile: a bound on the work of strangers in each turn of the event loop, such as handshakes and requests.

However many come at once, clients that are connected wait for a few milliseconds of it. The rest waits for later turns,
in which all who wait have one action each before anyone has a second one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial

__all__ = ["Turnstile"]


def _always() -> bool:
    return True


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
        """Time that the actions of this turn took, and earlier ones beyond their own turn."""
        self._waiting: OrderedDict[Hashable, OrderedDict[object, tuple[Callable[[], object], float]]] = OrderedDict()
        """Actions of later turns by who asks, in the order of their turn; each with the time that it takes at least."""
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
        if not self._waiting and self._spent_s < self._slice_s:
            self._do(action, at_least_s)
            return None
        key = object()
        self._waiting.setdefault(who, OrderedDict())[key] = (action, at_least_s)
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
        self._waiting.clear()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _withdraw(self, who: Hashable, key: object) -> None:
        actions = self._waiting.get(who)
        if actions is not None and actions.pop(key, None) is not None and not actions:
            del self._waiting[who]

    def _begin_turn(self) -> None:
        self._spent_s = max(0.0, self._spent_s - self._slice_s)
        try:
            while self._waiting and self._spent_s < self._slice_s:
                who, actions = self._waiting.popitem(last=False)
                _, (action, at_least_s) = actions.popitem(last=False)
                if actions:
                    self._waiting[who] = actions
                self._do(action, at_least_s)
        finally:
            again = self._waiting or self._spent_s
            self._next = asyncio.get_running_loop().call_soon(self._begin_turn) if again else None

    def _do(self, action: Callable[[], object], at_least_s: float) -> None:
        begun_s = self._monotonic()
        did: object = True
        try:
            did = action()
        finally:
            self._spent_s += max(0.0 if did is False else at_least_s, self._monotonic() - begun_s)
