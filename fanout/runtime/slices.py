"""Slices of long work on the event loop: everything that grows with one client's queue is done in these.

One slice of all work that goes on is done in a turn of the event loop, so that many such tasks stop it for no longer
than one. `OneForMany` does the same work once for many that ask for it at a time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

__all__ = ["OneForMany", "Slices", "in_turns"]

_SLICE_S: Final = 0.008
"""Time after which a slice ends with its next step; a step takes a few milliseconds at most."""

K = TypeVar("K")
T = TypeVar("T")


async def in_turns(items: Iterable[T], *, slice_s: float = _SLICE_S) -> AsyncIterator[T]:
    """Yield items of one piece of work, for a slice's time in each turn of the event loop.

    Args:
        items: The items.
        slice_s: Time in seconds after which a slice ends with its next item.
    """
    until_s = time.perf_counter() + slice_s
    for item in items:
        if time.perf_counter() >= until_s:
            await asyncio.sleep(0)
            until_s = time.perf_counter() + slice_s
        yield item


class Slices:
    """Does work in slices, in the order in which it came."""

    def __init__(self, *, slice_s: float = _SLICE_S, share: float = 1.0) -> None:
        """Begin without any.

        Args:
            slice_s: Time in seconds after which a slice ends with its next step.
            share: Most of the event loop's time that slices take, above 0; after a slice others have the rest of it.
        """
        self._slice_s = slice_s
        self._pause = 1.0 / share - 1.0
        """Pause after a slice, for each second that it took."""
        self._turn = asyncio.Lock()
        self._spent_s = 0.0
        """Time of the present slice that ended work took."""

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Do the steps of a generator, and return what it returns; cancelling closes it.

        Args:
            steps: Each step takes some milliseconds at most.
        """
        try:
            while True:
                async with self._turn:
                    begun_s = time.perf_counter() - self._spent_s
                    while (spent_s := time.perf_counter() - begun_s) < self._slice_s:
                        try:
                            next(steps)
                        except StopIteration as ended:
                            result: T = ended.value
                            self._spent_s = time.perf_counter() - begun_s  # many short ones share a slice
                            return result
                    self._spent_s = 0.0
                    await asyncio.sleep(spent_s * self._pause)
        finally:
            steps.close()


@dataclass(slots=True)
class _Kept(Generic[T]):
    lock: asyncio.Lock
    made_s: float
    value: T | None = None


class OneForMany(Generic[K, T]):
    """Results that many ask for: one is made at a time for each key, and all that ask within a time get the same."""

    def __init__(self, *, keep_s: float, entries_max: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin without results.

        Args:
            keep_s: Time in seconds for which a result is given to others.
            entries_max: Most results that are kept; beyond it the oldest are forgotten.
            monotonic: Tells seconds of a clock that never goes back.
        """
        self._keep_s = keep_s
        self._entries_max = entries_max
        self._monotonic = monotonic
        self._kept: dict[K, _Kept[T]] = {}

    async def get(self, key: K, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result for a key: one that is new enough, or what `make` returns.

        If the one that makes it is cancelled, or fails, the next one that waits makes it.
        """
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(asyncio.Lock(), -math.inf)
            if len(self._kept) > self._entries_max:
                del self._kept[next(iter(self._kept))]
        async with kept.lock:
            if kept.value is None or self._monotonic() - kept.made_s >= self._keep_s:
                kept.value = None
                kept.value = await make()
                kept.made_s = self._monotonic()
            return kept.value
