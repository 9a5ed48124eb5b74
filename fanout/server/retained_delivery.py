"""Retained messages on their way to one session after a SUBSCRIBE (MQTT 5, sections 3.3.1.3 and 3.8.4).

Owns the walk through the matching retained values, piece by piece, and the rule that a value set meanwhile is
seen exactly once: a session that is being given retained messages gets its live messages afterwards, and the
retained value of a topic for which such a message waits is left out here. It must not know sockets, nor how
the store finds values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from fanout.replica.update import Update
from fanout.server.audiences import SubscriptionOptions
from fanout.server.wire import Message

__all__ = ["RetainedDelivery"]


class RetainedDelivery:
    """The retained messages for one subscription, as far as they were not delivered yet.

    It outlives the Network Connection: what a durable session did not get comes, as retained, when it is
    resumed.
    """

    __slots__ = ("_find", "_options", "_put_back", "_values", "pings", "qos_max", "topic_filter")

    def __init__(
        self, topic_filter: bytes, *, options: SubscriptionOptions, find: Callable[[bytes], Iterator[Update]]
    ) -> None:
        """Prepare the delivery; nothing is looked up before the first `take`.

        Args:
            topic_filter: That of the subscription.
            options: Those that the subscription was granted.
            find: Gives the retained values that match a Topic Filter; see `RetainedStore.match`.
        """
        self.topic_filter = topic_filter
        """The Topic Filter of the subscription."""
        self.pings = 0
        """PINGREQs to answer when it is through; see `Session.ping`."""
        self.qos_max = options.qos
        """The Maximum QoS of the subscription."""
        self._options = options
        self._find = find
        self._values: Iterator[Update] | None = None
        self._put_back: bytes | None = None  # the topic of a message that could not be sent

    def take(
        self, *, messages_max: int, bytes_max: int, waiting: Mapping[bytes, Update], now_ns: int
    ) -> tuple[list[Message], int]:
        """Take the next retained messages; none when there are none left.

        Args:
            messages_max: How many at most; at least 1.
            bytes_max: After how many payload bytes to stop; at least 1.
            waiting: Topics for which a newer message is already in the session's queue.
            now_ns: Unix time in nanoseconds; an expired value is left out [MQTT-3.3.2-5].

        Returns:
            The messages, and their payload bytes.
        """
        if self._values is None:
            self._values = self._find(self.topic_filter)
        values = self._values
        if self._put_back is not None:
            # Looked up anew: the value may have been replaced since, by a message that nobody queued.
            values = chain(self._find(self._put_back), values)
            self._put_back = None
        qos_max = self.qos_max
        identifiers = (self._options.identifier,) if self._options.identifier else ()
        found: list[Message] = []
        size = 0
        for update in values:
            if update[0] in waiting or 0 < update[6] <= now_ns:
                continue
            qos = update[2]
            # RETAIN 1 [MQTT-3.3.1-8]
            found.append((update, qos if qos < qos_max else qos_max, True, identifiers))
            size += len(update[1])
            if size >= bytes_max or len(found) == messages_max:
                break
        return found, size

    def put_back(self, message: Message) -> None:
        """Note that the last message taken could not be sent; the next `take` gives that topic again."""
        self._put_back = message[0][0]
