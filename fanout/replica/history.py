"""History of messages: the batches that were dispatched to clients, so that queues can be made again after a kill.

Owns the numbers of batches, and which of them are kept. A session on disk names the number from which on its queue
follows from the history; so a message is written once, for however many sessions it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fanout.replica.update import QOS, Changes, Update

__all__ = ["HistoryBatch", "MessageHistory", "Origin"]


class Origin(NamedTuple):
    """The local client that published a batch."""

    client_id: str
    """Its Client Identifier."""
    packet_ids: tuple[int, ...] = ()
    """Packet Identifiers of its messages at QoS 2 in the batch: from then on they are received, and not released."""


class HistoryBatch(NamedTuple):
    """A batch as it was dispatched."""

    position: int
    """Its number; from 1, ascending."""
    dispatched_ns: int
    """Unix time in nanoseconds."""
    origin: Origin | None
    """The local client that published all of it; None when it came from elsewhere."""
    updates: list[Update]
    """Its updates, in order."""


class MessageHistory:
    """Numbers batches while a session needs them; nothing is kept here."""

    def __init__(self) -> None:
        """Begin with number 1, and keep nothing."""
        self.position = 0
        """Number of the newest batch."""
        self.updates = 0
        """Number of updates in all batches that were numbered."""
        self.is_wanted = False
        """True if there is a session that needs what comes."""

    def takes(self, changes: Changes) -> bool:
        """Return whether a session without a connection may wait for a batch: it waits for none at QoS 0."""
        return self.is_wanted and any(update[QOS] for update in changes.dispatch)

    def note(self, changes: Sequence[Changes], *, now_ns: int, origin: Origin | None = None) -> list[HistoryBatch]:
        """Number the batches that a session may wait for, and return them.

        Args:
            changes: Effects of batches that are about to be dispatched, which get their numbers.
            now_ns: Unix time in nanoseconds.
            origin: The local client that published all of them; None for others.
        """
        noted: list[HistoryBatch] = []
        for one in changes:
            if self.takes(one):
                self.position += 1
                self.updates += len(one.dispatch)
                one.position = self.position
                noted.append(HistoryBatch(self.position, now_ns, origin, one.dispatch))
        return noted
