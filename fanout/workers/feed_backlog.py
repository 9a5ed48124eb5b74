"""What has come from the hub and was not acted on yet: how much of it one turn of the event loop takes (core).

Owns the order, and which batches become one. It must not know what a worker does with them.

Batches that follow each other become one, which costs less the more clients there are. But the hub removes very many
topics in pieces that clients can be told of in some milliseconds, and one read brings hundreds of those pieces when the
worker is slower than the hub: so a turn takes a bounded number of removals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from fanout.replica.update import Update
from fanout.workers.messages import ChannelMessage, FeedBatch

__all__ = ["FeedBacklog", "removals_per_turn"]

_DELIVERIES: Final = 200_000
"""Removals times clients of one turn: what the largest piece of a tear-down may be (`fanout.link.session.teardown`)."""
_TOPICS_MAX: Final = 2_000


def removals_per_turn(clients: int) -> int:
    """Return after how many removals a turn takes no more batches.

    Args:
        clients: How many are told of each, at most.
    """
    return max(1, min(_TOPICS_MAX, _DELIVERIES // max(1, clients)))


class FeedBacklog:
    """The messages that came and were not taken."""

    def __init__(self) -> None:
        """Begin without any."""
        self._messages: deque[ChannelMessage] = deque()

    def __bool__(self) -> bool:
        """Say whether there are any."""
        return bool(self._messages)

    def add(self, messages: Iterable[ChannelMessage]) -> None:
        """Put what came behind everything else."""
        self._messages.extend(messages)

    def take(self, *, removals: int) -> list[ChannelMessage]:
        """Take the messages of one turn, in order.

        Args:
            removals: After so many no further message is taken; a batch is taken whole.
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
