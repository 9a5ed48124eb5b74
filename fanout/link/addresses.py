"""Which address of a primary is tried next, and when (core).

Owns the order: each address has pauses of its own, which grow while it fails, so that one that fails does not delay the
others. The first is preferred. It must not know what an attempt is.
"""

from __future__ import annotations

from fanout.link.backoff import Backoff

__all__ = ["AddressChoice"]


class AddressChoice:
    """The addresses of one primary, by their position in the configuration.

    Attributes:
        current: The one in use, or to be tried next.
        try_at_s: When it may be tried, monotonic seconds.
    """

    def __init__(self, count: int, *, min_s: float, max_s: float) -> None:
        """Begin with the first, at once.

        Args:
            count: How many there are.
            min_s: First pause behind a failure of one address.
            max_s: Longest one.
        """
        self.current = 0
        self.try_at_s = float("-inf")
        self._backoffs = [Backoff(min_s=min_s, max_s=max_s) for _ in range(count)]
        self._free_at_s = [float("-inf")] * count
        """When each may be tried again."""

    def fail(self, now: float) -> None:
        """Note that the current one failed: the next is that which may be tried first, in the order behind it."""
        self._free_at_s[self.current] = now + self._backoffs[self.current].next_delay_s()
        count = len(self._free_at_s)
        order = [(self.current + step) % count for step in range(1, count + 1)]
        self.current = min(order, key=lambda index: max(now, self._free_at_s[index]))
        self.try_at_s = self._free_at_s[self.current]

    def lose(self, now: float) -> None:
        """Note that the current one, which worked, lost its connection: it is tried again first, after a pause."""
        backoff = self._backoffs[self.current]
        backoff.reset()
        self.try_at_s = self._free_at_s[self.current] = now + backoff.next_delay_s()

    def take(self, index: int, now: float) -> None:
        """Use the address at a position at once: it has just answered."""
        self._backoffs[index].reset()
        self.current = index
        self.try_at_s = self._free_at_s[index] = now
