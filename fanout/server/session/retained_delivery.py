"""Retained messages on their way to one session after a SUBSCRIBE (MQTT 5, sections 3.3.1.3 and 3.8.4).

Owns the walk through the matching retained values, piece by piece, each read when its turn comes: a delivery that
waits for a slow client holds no values. What a live message makes superfluous is the session's business. It must not
know sockets, nor how the store finds values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fanout.chain.manifest import MANIFEST_TOPIC, Manifest, ManifestSum
from fanout.mqtt.publish import encode_publish
from fanout.replica.update import Update
from fanout.server.base.ports import RetainedStore
from fanout.server.messages.encoding import Message, WireVariant
from fanout.server.messages.queue import MessageBatch
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.retained_cache import RetainedPieces

__all__ = ["RetainedDelivery"]


class RetainedDelivery:
    """The retained messages for one subscription, as far as they were not delivered yet.

    It outlives the Network Connection: what a durable session did not get comes, as retained, when it is
    resumed.
    """

    __slots__ = (
        "__weakref__",
        "_identifiers",
        "_left",
        "_left_from",
        "_pieces",
        "_store",
        "_sum",
        "_sum_begun",
        "_values",
        "_whole",
        "pings",
        "qos_max",
        "topic_filter",
    )

    def __init__(
        self,
        topic_filter: bytes,
        *,
        options: SubscriptionOptions,
        store: RetainedStore,
        pieces: RetainedPieces,
        manifest: bool = False,
    ) -> None:
        """Prepare the delivery; nothing is looked up before the first `take`.

        Args:
            topic_filter: That of the subscription.
            options: Those that the subscription was granted.
            store: Gives the retained values.
            pieces: Encodes what several deliveries have in common.
            manifest: Whether the client is told in the end what it should have got.
        """
        self.topic_filter = topic_filter
        """The Topic Filter of the subscription."""
        self.pings = 0
        """PINGREQs to answer when it is through; see `Session.ping`."""
        self.qos_max = options.qos
        """The Maximum QoS of the subscription."""
        self._identifiers = (options.identifier,) if options.identifier else ()
        self._store = store
        self._pieces = pieces
        pieces.add_user(self)
        self._values: Iterator[list[Update]] | None = None
        self._left: list[bytes] = []  # topics of a piece that was not sent whole, from the index `_left_from`
        self._left_from = 0
        self._whole = False  # whether a whole piece was taken, as others take it
        self._sum = ManifestSum() if manifest else None
        self._sum_begun = False

    def take(self, count: int) -> list[Update] | None:
        """Take the next values; None when there are none left.

        Args:
            count: How many, of a piece of which some were put back; a new one is given whole.

        Returns:
            Values; maybe none, after a long search.
        """
        while self._left_from < len(self._left):  # looked up anew: they may have been replaced since
            topics = self._left[self._left_from : self._left_from + count]
            self._left_from += len(topics)
            if values := self._store.get_many(topics):
                self._whole = False
                return values
        if self._values is None:
            self._values = self._store.match(self.topic_filter)
        self._whole = True
        return next(self._values, None)

    def put_back(self, values: Sequence[Update]) -> None:
        """Note that the last ones of the values taken could not be sent; the next `take` begins with their topics."""
        self._left = [value[0] for value in values] + self._left[self._left_from :]
        self._left_from = 0

    def begin_manifest(self) -> bytes:
        """Return the message in front of the first retained one; empty when none is due."""
        if self._sum is None or self._sum_begun:
            return b""
        self._sum_begun = True
        return self._manifest(None)

    def end_manifest(self) -> bytes:
        """Return the message behind the last retained one; empty when none is wanted."""
        return b"" if self._sum is None else self.begin_manifest() + self._manifest(self._sum)

    def note(self, values: Sequence[Update]) -> None:
        """Note that values were sent, or dropped for a reason that the client is not to take for their absence."""
        if self._sum is not None:
            for value in values:
                self._sum.add(value[0], value[1])

    def _manifest(self, total: ManifestSum | None) -> bytes:
        topic_filter = self.topic_filter.decode()
        manifest = Manifest(topic_filter, None) if total is None else Manifest(topic_filter, total.count, total.digest)
        return encode_publish(MANIFEST_TOPIC, manifest.encode(), version=5)

    def message(self, value: Update) -> Message:
        """Return the message with a value."""
        qos = value[2]
        return (value, qos if qos < self.qos_max else self.qos_max, True, self._identifiers)  # [MQTT-3.3.1-8]

    def batch(self, values: Sequence[Update], *, wire: WireVariant) -> MessageBatch | None:
        """Return the messages with `values`, which were just taken, shared with other deliveries.

        Returns:
            A batch; None when each must be encoded alone: for a part of a piece nobody else has a use.
        """
        if not self._whole or len(values) == 1:
            return None
        return self._pieces.batch(values, wire=wire, qos_max=self.qos_max, identifiers=self._identifiers)
