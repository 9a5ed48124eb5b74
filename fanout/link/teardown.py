"""In which pieces a replica is removed, so that nothing else waits long for its turn (core).

Owns the size of a piece and what was measured for it. It must not know about clients or tasks.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DELIVERIES_MAX", "TOPICS_MAX", "piece_topics"]

TOPICS_MAX: Final = 2_000
"""Topics of a piece that nobody has subscribed to: some milliseconds."""
DELIVERIES_MAX: Final = 50_000
"""Topics times clients of a piece. Measured with 1,000 clients that keep up, and 200,000: at most 21 ms of CPU."""


def piece_topics(clients: int) -> int:
    """Return how many topics to remove before other work gets its turn.

    Args:
        clients: How many clients are told of each removal, at most.
    """
    return max(1, min(TOPICS_MAX, DELIVERIES_MAX // max(1, clients)))
