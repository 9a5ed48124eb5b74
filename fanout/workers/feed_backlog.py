"""Backlog of messages from the hub that the worker has not processed yet (core).

Consecutive batches are merged, which saves more the more clients there are. The hub removes large numbers of topics in
pieces that can be sent to all clients in some milliseconds. When the worker is slower than the hub, one read has
hundreds of those pieces, so a turn of the event loop takes a limited number of removals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from fanout.replica.update import Update
from fanout.workers.messages import ChannelMessage, FeedBatch

__all__ = ["FeedBacklog", "removals_per_turn"]

_DELIVERIES: Final = 200_000
"""Limit of removals times clients in one turn: the largest piece of a tear-down (`fanout.link.session.teardown`)."""
_TOPICS_MAX: Final = 2_000


def removals_per_turn(clients: int) -> int:
    """Return the number of removals after which a turn takes no more batches.

    Args:
        clients: Number of clients that may get each removal.
    """
    return max(1, min(_TOPICS_MAX, _DELIVERIES // max(1, clients)))


class FeedBacklog:
    """Messages that were received and not taken yet."""

    def __init__(self) -> None:
        """Start empty."""
        self._messages: deque[ChannelMessage] = deque()

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._messages)

    def add(self, messages: Iterable[ChannelMessage]) -> None:
        """Append received messages."""
        self._messages.extend(messages)

    def take(self, *, removals: int) -> list[ChannelMessage]:
        """Take the messages of one turn, in order.

        Args:
            removals: Number of removals after which no further message is taken; a batch is taken whole.
        """
        taken: list[ChannelMessage] = []
        updates: list[Update] = []
        while self._messages and removals > 0:
            message = self._messages.popleft()
            if isinstance(message, FeedBatch):
                removals -= sum(1 for update in message.updates if update[3] and not update[1])
                if message.origin is None:
                    updates += message.updates
                    continue
            if updates:
                taken.append(FeedBatch(updates, None))
                updates = []
            taken.append(message)
        if updates:
            taken.append(FeedBatch(updates, None))
        return taken
