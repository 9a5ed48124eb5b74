"""Which address of a primary is tried next, and when (core).

Owns the order: each address has pauses of its own, which grow while it fails, so that one that fails does not delay the
others, and others again for the returns to a better one that answers and then does not work. The first is preferred.
It must not know what an attempt is.
"""

from __future__ import annotations

from fanout.runtime.backoff import Backoff

__all__ = ["RETURN_PAUSES_MAX", "AddressChoice"]

RETURN_PAUSES_MAX = 32
"""After returns in vain a better address is left alone for so many of the longest pauses at most."""


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
        self._returns = [Backoff(min_s=2 * max_s, max_s=RETURN_PAUSES_MAX * max_s) for _ in range(count)]
        self._return_at_s = [float("-inf")] * count
        """When each may be asked again, while a worse one is in use."""
        self._returning = False
        """Whether the current one was taken in place of one that worked, and has not worked since."""

    def may_return(self, index: int, now: float) -> bool:
        """Say whether a better address than the current one may be asked: not soon after a return there in vain."""
        return now >= self._return_at_s[index]

    def fail(self, now: float) -> None:
        """Note that the current one failed: the next is that which may be tried first, in the order behind it."""
        if self._returning:
            self._return_at_s[self.current] = now + self._returns[self.current].next_delay_s()
            self._returning = False
        self._free_at_s[self.current] = now + self._backoffs[self.current].next_delay_s()
        count = len(self._free_at_s)
        order = [(self.current + step) % count for step in range(1, count + 1)]
        self.current = min(order, key=lambda index: max(now, self._free_at_s[index]))
        self.try_at_s = self._free_at_s[self.current]

    def lose(self, now: float) -> None:
        """Note that the current one, which worked, lost its connection: it is tried again first, after a pause."""
        backoff = self._backoffs[self.current]
        backoff.reset()
        self._returns[self.current].reset()
        self._returning = False
        self.try_at_s = self._free_at_s[self.current] = now + backoff.next_delay_s()

    def take(self, index: int, now: float) -> None:
        """Use the address at a position at once: it has just answered, which is not to say that it will work.

        The one that is left for it worked.
        """
        self._backoffs[self.current].reset()
        self._returns[self.current].reset()
        self._returning = True
        self.current = index
        self.try_at_s = self._free_at_s[index] = now
