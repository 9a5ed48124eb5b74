"""Slices of long work on the event loop: everything that grows with one client's queue is done in these.

One slice of all work that goes on is done in a turn of the event loop, so that many such tasks stop it for no longer
than one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Final, TypeVar

__all__ = ["Slices"]

_SLICE_S: Final = 0.008
"""Time after which a slice ends with its next step; a step takes a few milliseconds at most."""

T = TypeVar("T")


class Slices:
    """Does work in slices, in the order in which it came."""

    def __init__(self) -> None:
        """Begin without any."""
        self._turn = asyncio.Lock()

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Do the steps of a generator, and return what it returns; cancelling closes it.

        Args:
            steps: Each step takes some milliseconds at most.
        """
        try:
            while True:
                async with self._turn:
                    until_s = time.perf_counter() + _SLICE_S
                    while time.perf_counter() < until_s:
                        try:
                            next(steps)
                        except StopIteration as ended:
                            result: T = ended.value
                            return result
                    await asyncio.sleep(0)
        finally:
            steps.close()
