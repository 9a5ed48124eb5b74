"""Observer: a reader inside the node, which gets updates as they are dispatched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fanout.mqtt.delivery import Outbound
from fanout.replica.update import Update
from fanout.server.messages.encoding import Message, WireVariant
from fanout.server.messages.queue import MessageBatch
from fanout.server.messages.shared_inflight import Follower
from fanout.server.routing.subscribers import SessionState, Subscriber, SubscriptionOptions

__all__ = ["OBSERVED", "Observer"]

OBSERVED: Final = SubscriptionOptions(qos=2, retain_as_published=True)
"""Options of an observer: it gets each update as it is."""
_WIRE: Final = WireVariant(version=5)


class Observer(Subscriber):
    """A subscriber without a session: it calls a function with each batch, and nothing waits for it."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[list[Update]], None]) -> None:
        """Make an observer that is not subscribed yet.

        Args:
            take: Gets the updates of each batch, in order. It must return at once and must not subscribe.
        """
        outbound: Outbound[Message] = Outbound()
        super().__init__("", wire=_WIRE, follower=Follower(outbound))
        self.state = SessionState.QUEUED  # so batches come as messages, and nothing is encoded for it
        self._take = take

    def enqueue(self, batch: MessageBatch) -> None:
        """Hand the updates of a batch over."""
        self._take([message[0] for message in batch.messages])

    def send(self, batch: MessageBatch, *, now_ns: int) -> bytes:
        """Hand the updates of a batch over; nothing is to be written."""
        self.enqueue(batch)
        return b""
