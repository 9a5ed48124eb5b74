"""How long the next read of a link may gather, so that what it brings is worth its fan-out (core).

Owns the rule and its bounds. It must not know sockets, clocks or clients.

A fan-out to many clients costs about the same for one message as for fifty: it is one write for each client. When
updates come one by one, faster than clients can be written to, the next ones had better come together.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FREE_S", "GATHERED_BYTES", "GATHERING_S_MAX", "SHARE", "gathering_s"]

FREE_S: Final = 0.0005
"""What takes less than this is handed over at once: a hundred clients, or fewer."""
SHARE: Final = 1.5
"""Times the last fan-out: so costly fan-outs take at most two fifths of a core, until batches are large."""
GATHERING_S_MAX: Final = 0.004
"""The longest wait, hence the most that an update can be late; what a thousand clients cost."""
GATHERED_BYTES: Final = 16 * 1024
"""So many bytes, about 150 small messages, are a batch: nothing is gained by waiting for more."""


def gathering_s(*, cost_s: float, read_bytes: int) -> float:
    """Return how long to let updates gather after a read was handled; 0 to take the next one at once.

    Args:
        cost_s: What it took to handle the read, to the last write.
        read_bytes: How large the read was.
    """
    if cost_s < FREE_S or read_bytes >= GATHERED_BYTES:
        return 0.0
    return min(SHARE * cost_s, GATHERING_S_MAX)
