"""Backoff: the delay before the next attempt to connect; exponential, jittered, capped.

It returns delays and does not wait, because values expire and sessions end while a link waits.
"""

from __future__ import annotations

from tenacity import AsyncRetrying, RetryCallState, wait_exponential, wait_random

__all__ = ["Backoff"]


class Backoff:
    """The delays between attempts, until one succeeds.

    Attributes:
        attempts: Attempts that failed since the last success.
    """

    def __init__(self, *, min_s: float, max_s: float) -> None:
        """Start with no failure.

        Args:
            min_s: The first delay, to which up to as much is added by chance.
            max_s: The longest delay.
        """
        self._max_s = max_s
        # The sum, for `wait_exponential_jitter` renamed its arguments between releases of tenacity.
        self._wait = wait_exponential(multiplier=min_s, max=max_s) + wait_random(0, min_s)
        self._call = RetryCallState(AsyncRetrying(), None, (), {})
        self.attempts = 0

    def reset(self) -> None:
        """Note a success."""
        self.attempts = 0

    def next_delay_s(self) -> float:
        """Note a failure and return how long to wait, in seconds."""
        self.attempts += 1
        self._call.attempt_number = self.attempts
        return min(self._wait(self._call), self._max_s)
