"""In which pieces a replica is removed, so that nothing else waits long for its turn (core).

Owns the size of a piece and what was measured for it. It must not know about clients or tasks.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DELIVERIES_MAX", "TOPICS_MAX", "piece_topics"]

TOPICS_MAX: Final = 2_000
"""Topics of a piece that nobody has subscribed to: some milliseconds."""
DELIVERIES_MAX: Final = 200_000
"""Topics times clients of a piece. Measured with 1,000 clients that keep up: at most 31 ms of CPU."""
_DELIVERIES: Final = 50_000
_TOPICS_WORTH: Final = 120
"""A write costs 10 us whatever is in it, so that much smaller pieces only make a tear-down longer: those of 50 topics 4
times with 1,000 clients. With 200 topics it takes a third less, but others waited for up to 135 ms, and not for 77."""


def piece_topics(clients: int) -> int:
    """Return how many topics to remove before other work gets its turn.

    Args:
        clients: How many clients are told of each removal, at most.
    """
    clients = max(1, clients)
    worth = min(_TOPICS_WORTH, DELIVERIES_MAX // clients)
    return max(1, worth, min(TOPICS_MAX, _DELIVERIES // clients))
