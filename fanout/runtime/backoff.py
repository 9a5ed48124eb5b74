"""Backoff: the delay before the next attempt to connect; exponential, jittered, capped.

It returns delays and does not wait, because values expire and sessions end while a link waits.
"""

from __future__ import annotations

import random
from typing import Final

__all__ = ["Backoff"]

_DOUBLINGS_MAX: Final = 32
"""Doublings after which a delay is longer than any that is configured."""


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
        self._min_s, self._max_s = min_s, max_s
        self.attempts = 0

    def reset(self) -> None:
        """Note a success."""
        self.attempts = 0

    def next_delay_s(self) -> float:
        """Note a failure and return how long to wait, in seconds."""
        self.attempts += 1
        doubled_s = self._min_s * (1 << min(self.attempts - 1, _DOUBLINGS_MAX))
        return min(doubled_s + random.uniform(0, self._min_s), self._max_s)
