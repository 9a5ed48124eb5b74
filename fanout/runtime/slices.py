"""Slices of long work on the event loop: everything that grows with one client's queue is done in these.

One slice of all work that goes on is done in a turn of the event loop, so that many such tasks stop it for no longer
than one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterable
from typing import Final, TypeVar

__all__ = ["Slices", "in_turns"]

_SLICE_S: Final = 0.008
"""Time after which a slice ends with its next step; a step takes a few milliseconds at most."""

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

    def __init__(self) -> None:
        """Begin without any."""
        self._turn = asyncio.Lock()
        self._spent_s = 0.0
        """What the work that has ended took of the present slice."""

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Do the steps of a generator, and return what it returns; cancelling closes it.

        Args:
            steps: Each step takes some milliseconds at most.
        """
        try:
            while True:
                async with self._turn:
                    begun_s = time.perf_counter() - self._spent_s
                    while (spent_s := time.perf_counter() - begun_s) < _SLICE_S:
                        try:
                            next(steps)
                        except StopIteration as ended:
                            result: T = ended.value
                            self._spent_s = spent_s  # many short ones share a slice
                            return result
                    self._spent_s = 0.0
                    await asyncio.sleep(0)
        finally:
            steps.close()
