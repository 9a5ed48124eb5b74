"""Backoff: the delay before the next attempt; exponential, jittered, capped.

It returns delays and does not wait, because values expire and sessions end while a link waits. A success that does not
last is no success: a peer that accepts and closes at once would be tried at the shortest delay for ever.
"""

from __future__ import annotations

from typing import Final

from tenacity import AsyncRetrying, RetryCallState, wait_exponential, wait_random

__all__ = ["LASTING_DELAYS", "Backoff"]

LASTING_DELAYS: Final = 10
"""Number of last delays for which a success must last to count."""


class Backoff:
    """The delays between attempts, until one succeeds and lasts.

    Attributes:
        attempts: Attempts that failed since the last success that lasted.
    """

    def __init__(self, *, min_s: float, max_s: float) -> None:
        """Start with no failure.

        Args:
            min_s: The first delay; each delay gets a random addition of up to this.
            max_s: The longest delay.
        """
        self._max_s = max_s
        # The sum, for `wait_exponential_jitter` renamed its arguments between releases of tenacity.
        self._wait = wait_exponential(multiplier=min_s, max=max_s) + wait_random(0, min_s)
        self._call = RetryCallState(AsyncRetrying(), None, (), {})
        self._last_delay_s = 0.0
        self.attempts = 0

    def note_success(self, *, lasted_s: float) -> bool:
        """Note a success that has ended, and return whether it lasted: then the delays begin anew.

        Args:
            lasted_s: Its duration, in seconds.
        """
        lasted = lasted_s >= LASTING_DELAYS * self._last_delay_s
        if lasted:
            self.attempts = 0
            self._last_delay_s = 0.0
        return lasted

    def next_delay_s(self) -> float:
        """Note a failure and return how long to wait, in seconds."""
        self.attempts += 1
        self._call.attempt_number = self.attempts
        self._last_delay_s = min(self._wait(self._call), self._max_s)
        return self._last_delay_s
