"""Choice of the address of a primary: which one is tried next, and when. The first is preferred.

Each address has its own pauses, which grow while it fails, so that one that fails does not delay the others. Another
set of pauses limits returns to a preferred address that answers probes but then does not work.
"""

from __future__ import annotations

from fanout.runtime.backoff import Backoff

__all__ = ["RETURN_PAUSES_MAX", "AddressChoice"]

RETURN_PAUSES_MAX = 32
"""Greatest number of longest pauses between attempts to return to a preferred address."""


class AddressChoice:
    """Addresses of one primary, by their position in the configuration.

    Attributes:
        current: Address in use, or to be tried next.
        try_at_s: When it may be tried, monotonic seconds.
    """

    def __init__(self, count: int, *, min_s: float, max_s: float) -> None:
        """Begin with the first address, at once.

        Args:
            count: Number of addresses.
            min_s: First pause after a failure of one address.
            max_s: Longest pause.
        """
        self.current = 0
        self.try_at_s = float("-inf")
        self._backoffs = [Backoff(min_s=min_s, max_s=max_s) for _ in range(count)]
        self._free_at_s = [float("-inf")] * count
        """When each address may be tried again."""
        self._returns = [Backoff(min_s=2 * max_s, max_s=RETURN_PAUSES_MAX * max_s) for _ in range(count)]
        self._return_at_s = [float("-inf")] * count
        """When each address may be probed again, while a less preferred one is in use."""
        self._returning = False
        """True if the current address replaced one that worked, and has not worked since."""

    def may_return(self, index: int, now: float) -> bool:
        """Say whether a preferred address may be probed: not soon after a failed return to it."""
        return now >= self._return_at_s[index]

    def fail(self, now: float) -> None:
        """Note that the current address failed, and choose the one that may be tried soonest, in order after it."""
        if self._returning:
            self._return_at_s[self.current] = now + self._returns[self.current].next_delay_s()
            self._returning = False
        self._free_at_s[self.current] = now + self._backoffs[self.current].next_delay_s()
        count = len(self._free_at_s)
        order = [(self.current + step) % count for step in range(1, count + 1)]
        self.current = min(order, key=lambda index: max(now, self._free_at_s[index]))
        self.try_at_s = self._free_at_s[self.current]

    def lose(self, now: float, *, live_s: float) -> None:
        """Note that the current address worked and lost its connection; it is tried again after a pause.

        One that did not work for long has failed: it may be a primary that closes each connection soon.

        Args:
            now: Monotonic seconds.
            live_s: Seconds for which the link was live on that connection.
        """
        backoff = self._backoffs[self.current]
        if not backoff.note_success(lasted_s=live_s):
            self.fail(now)
            return
        self._returns[self.current].note_success(lasted_s=live_s)
        self._returning = False
        self.try_at_s = self._free_at_s[self.current] = now + backoff.next_delay_s()

    def take(self, index: int, now: float, *, live_s: float) -> None:
        """Use an address at once, which has just answered a probe, but may not work.

        Args:
            index: Its position.
            now: Monotonic seconds.
            live_s: Seconds for which the link was live at the address that it leaves.
        """
        self._backoffs[self.current].note_success(lasted_s=live_s)
        self._returns[self.current].note_success(lasted_s=live_s)
        self._returning = True
        self.current = index
        self.try_at_s = self._free_at_s[index] = now
