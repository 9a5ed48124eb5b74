"""Shares of places: how many who ask over HTTP have at a time, in total and of one who asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Shares"]


class Shares:
    """Places that are taken for a while; none of those who ask can take all of them."""

    def __init__(self, places_max: int, *, of_one_max: int | None = None) -> None:
        """Begin with all of them free.

        Args:
            places_max: Most places that are taken at a time.
            of_one_max: Most places of one who asks; None for no bound but the other.
        """
        self._max = places_max
        self._of_one_max = places_max if of_one_max is None else of_one_max
        self._total = 0
        self._taken: dict[str, int] = {}

    @contextmanager
    def take(self, who: str, *, own_max: int | None = None) -> Iterator[bool]:
        """Take a place until the block ends; give False if there is none.

        Args:
            who: The user or address that asks.
            own_max: Most places of this one, if it may have fewer than others; None for as many.
        """
        own = self._taken.get(who, 0)
        if self._total >= self._max or own >= min(self._of_one_max, self._max if own_max is None else own_max):
            yield False
            return
        self._total += 1
        self._taken[who] = own + 1
        try:
            yield True
        finally:
            self._total -= 1
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]
