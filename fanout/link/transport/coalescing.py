"""Coalescing of reads: how long a link waits for more updates after a costly fan-out.

A fan-out to many clients costs about the same for one message as for fifty: one write for each client. When
updates come one by one, faster than clients can be written to, the next ones are better taken together.
"""

from __future__ import annotations

from typing import Final

__all__ = ["COALESCED_BYTES", "COALESCING_S_MAX", "FREE_S", "SHARE", "coalescing_s"]

FREE_S: Final = 0.0005
"""A cheaper fan-out causes no wait: a hundred clients, or fewer."""
SHARE: Final = 1.5
"""Wait as a multiple of the last fan-out: costly fan-outs take at most two fifths of a core until batches are large."""
COALESCING_S_MAX: Final = 0.004
"""Longest wait, hence the most by which an update is delayed; the cost of a thousand clients."""
COALESCED_BYTES: Final = 16 * 1024
"""Size of a batch that needs no wait, about 150 small messages."""


def coalescing_s(*, cost_s: float, read_bytes: int) -> float:
    """Return how long to coalesce reads after a costly one was handled, in seconds; 0 for not at all.

    Args:
        cost_s: Seconds that it took to handle the read, to the last write; at least `FREE_S`.
        read_bytes: Size of the read.
    """
    if read_bytes >= COALESCED_BYTES:
        return 0.0
    return min(SHARE * cost_s, COALESCING_S_MAX)
